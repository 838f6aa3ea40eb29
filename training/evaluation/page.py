"""The page of an evaluation: sentences first, then pictures, then tables; it needs nothing but itself."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from training.evaluation.findings import Findings
from training.evaluation.plots import pictures
from training.evaluation.run import Results
from training.evaluation.tables import problem_lines, tables
from training.evaluation.words import counted

TEMPLATE = "report.html.j2"


def page(results: Results, findings: Findings, said: Sequence[str]) -> str:
    """The whole page as HTML."""
    return render_page(
        title=f"Evaluation: {results.request.suite.title}",
        about=about(results),
        sentences=said,
        pictures=pictures(results, findings),
        tables=tables(results, findings),
        problems=problem_lines(results),
        files="evaluation.json and scores.csv",
        reference=results.request.suite.reference,
    )


def render_page(
    title: str,
    about: str,
    sentences: Sequence[str],
    pictures: Mapping[str, str],
    tables: Mapping[str, Sequence[Sequence[str]]],
    problems: Iterable[str],
    files: str,
    reference: str | None = None,
) -> str:
    """A page that needs nothing but itself: sentences, then pictures, then tables.

    Args:
        title: of the page.
        about: what was measured, in a sentence.
        sentences: what it says.
        pictures: SVG by what it shows.
        tables: rows of cells by what they show; the first row is the header.
        problems: what went wrong.
        files: which files beside the page hold all figures.
        reference: an address to read on.
    """
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    return environment.get_template(TEMPLATE).render(
        title=title,
        reference=reference,
        about=about,
        sentences=sentences,
        pictures=pictures,
        tables=tables,
        problems=list(problems),
        files=files,
        version=version("lathe"),
    )


def about(results: Results) -> str:
    """What was run, in a sentence."""
    request = results.request
    usable = [task for task in results.tasks if task.error is None]
    rows = "all rows" if request.limit is None else f"at most {request.limit:,} rows of each"
    words = [f"{len(usable)} of {len(results.tasks)} data sets, {rows}", counted(results.encoders, "encoder")]
    if results.corpus_rows:
        words.append(f"methods fitted on {results.corpus_rows:,} sentences of {Path(request.corpus).name}")
    return "; ".join(words) + f"; metrics of mteb {version('mteb')}; 95 % intervals by resampling the tasks."
