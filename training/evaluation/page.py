"""HTML page of an evaluation: sentences, figures, tables; the page is self-contained."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from training.evaluation.audit.findings import find_audit
from training.evaluation.audit.plots import audit_pictures
from training.evaluation.audit.tables import audit_tables
from training.evaluation.audit.words import audit_sentences
from training.evaluation.findings import Findings
from training.evaluation.plots import pictures
from training.evaluation.run import Results
from training.evaluation.tables import problem_lines, tables
from training.evaluation.words import counted

TEMPLATE = "report.html.j2"
"""File name of the Jinja template beside this module."""


@dataclass(frozen=True)
class Part:
    """Further section of a page, with a title; its fields have the meaning they have in `render_page`."""

    title: str
    sentences: Sequence[str]
    pictures: Mapping[str, str]
    tables: Mapping[str, Sequence[Sequence[str]]]


def page(results: Results, findings: Findings, said: Sequence[str]) -> str:
    """Render the page of an evaluation as HTML text."""
    return render_page(
        title=f"Evaluation: {results.request.suite.title}",
        about=about(results),
        sentences=said,
        pictures=pictures(results, findings),
        tables=tables(results, findings),
        problems=problem_lines(results),
        files="evaluation.json and scores.csv",
        reference=results.request.suite.reference,
        parts=audit_parts(results),
    )


def audit_parts(results: Results) -> list[Part]:
    """Return a list with the section of the audit; empty if no encoder was audited."""
    found = find_audit(results)
    return [Part("Audit", audit_sentences(found), audit_pictures(found), audit_tables(found))] if found else []


def render_page(
    title: str,
    about: str,
    sentences: Sequence[str],
    pictures: Mapping[str, str],
    tables: Mapping[str, Sequence[Sequence[str]]],
    problems: Iterable[str],
    files: str,
    reference: str | None = None,
    parts: Sequence[Part] = (),
) -> str:
    """Render a self-contained HTML page: sentences, then figures, tables and problems, then further sections.

    Args:
        title: title of the page.
        about: sentence on what was measured.
        sentences: findings.
        pictures: SVG text by title.
        tables: rows of cells by title; the first row is the header.
        problems: messages on what went wrong.
        files: names of the files beside the page that hold all numbers; empty for none.
        reference: URL for further reading, or None.
        parts: further sections.
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
        parts=parts,
        version=version("lathe"),
    )


def about(results: Results) -> str:
    """Return a sentence on what was evaluated: data sets, rows, encoders, corpus, version of mteb."""
    request = results.request
    usable = [task for task in results.tasks if task.error is None]
    rows = "all rows" if request.limit is None else f"at most {request.limit:,} rows of each"
    words = [f"{len(usable)} of {len(results.tasks)} data sets, {rows}", counted(results.encoders, "encoder")]
    if results.corpus_rows:
        words.append(f"methods fitted on {results.corpus_rows:,} sentences of {Path(request.corpus).name}")
    return "; ".join(words) + f"; metrics of mteb {version('mteb')}; 95 % intervals by resampling the tasks."
