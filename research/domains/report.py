"""Output of a comparison: JSON with all values, an HTML page, and tables and sentences for the terminal."""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lathe.training.reporting.page import Section, describe_environment, format_text, render_page, write_files
from lathe.training.reporting.text import format_count
from research.domains.comparison import Comparison
from research.domains.plots import draw_all
from research.domains.samples import SAMPLE_EXAMPLES, SAMPLES
from research.domains.summary import summarize_comparison
from research.domains.tables import build_short_tables, build_tables

JSON, HTML = "domains.json", "domains.html"
"""Names of the two files that `write_comparison` writes."""


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Write `domains.json` and `domains.html` into the folder `out`, replacing older ones, and return both paths."""
    section = Section(
        title=f"Is it another domain: {comparison.titles[0]} against {comparison.titles[1]}",
        sentences=summarize_comparison(comparison),
        figures=draw_all(comparison),
        tables=build_tables(comparison),
        problems=comparison.problems,
    )
    page = render_page([section], about=describe_evaluations(comparison), files=JSON)
    return write_files(out, {JSON: to_json(comparison), HTML: page})


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as a dict, with its sentences, library versions, today's UTC date and the sample sizes."""
    return {
        **describe_environment("lathe-training", "mteb", "scipy", "statsmodels", "numpy"),
        "samples": {"drawn": SAMPLES, "examples": SAMPLE_EXAMPLES},
        "sentences": summarize_comparison(comparison),
        **asdict(comparison),
    }


def describe_evaluations(comparison: Comparison) -> str:
    """Return a sentence with the numbers of data sets per suite and of encoders, and the mteb version."""
    counts = [
        f"{title}: {format_count(count, 'data set')}"
        for title, count in zip(comparison.titles, comparison.data_sets, strict=True)
    ]
    encoders = format_count(len(comparison.encoders), "encoder")
    return f"{'; '.join([*counts, encoders])}; metrics of mteb {version('mteb')}."


def format_terminal(comparison: Comparison) -> str:
    """Format the sentences, the short tables and the problems of a comparison as plain text."""
    sentences = Section("", summarize_comparison(comparison))
    rest = Section("", tables=build_short_tables(comparison), problems=comparison.problems)
    return "\n\n".join(text for section in (sentences, rest) if (text := format_text(section)))
