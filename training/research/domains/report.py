"""Output of a comparison: JSON with all values, an HTML page, and tables and sentences for the terminal."""

from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from training.reporting.page import Section, render_page
from training.reporting.tables import Table
from training.reporting.text import format_count
from training.research.domains.comparison import Comparison
from training.research.domains.plots import pictures
from training.research.domains.samples import SAMPLE_EXAMPLES, SAMPLES
from training.research.domains.tables import short_tables, tables
from training.research.domains.words import sentences
from transforms.files import replace_synced

JSON, HTML = "domains.json", "domains.html"
"""Names of the two files that `write_comparison` writes."""


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Write `domains.json` and `domains.html` into the folder `out`, replacing older ones, and return both paths."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    files = {JSON: orjson.dumps(as_json(comparison), option=options), HTML: page(comparison).encode()}
    for name, content in files.items():
        replace_synced(out / name, content)
    return [out / name for name in files]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as a dict, with its sentences, library versions, today's UTC date and the sample sizes."""
    return {
        "libraries": {name: version(name) for name in ("lathe", "mteb", "scipy", "statsmodels", "numpy")},
        "date": datetime.now(UTC).date().isoformat(),
        "samples": {"drawn": SAMPLES, "examples": SAMPLE_EXAMPLES},
        "sentences": sentences(comparison),
        **asdict(comparison),
    }


def page(comparison: Comparison) -> str:
    """Return the HTML page of a comparison: its sentences, plots as inline SVG, tables and problems."""
    section = Section(
        title=f"Is it another domain: {comparison.titles[0]} against {comparison.titles[1]}",
        sentences=sentences(comparison),
        figures=pictures(comparison),
        tables={title: Table.from_rows(rows) for title, rows in tables(comparison).items()},
        problems=comparison.problems,
    )
    return render_page([section], about=about(comparison), files=JSON)


def about(comparison: Comparison) -> str:
    """Return a sentence with the numbers of data sets per suite and of encoders, and the mteb version."""
    parts = [
        f"{title}: {format_count(count, 'data set')}"
        for title, count in zip(comparison.titles, comparison.data_sets, strict=True)
    ]
    return (
        "; ".join([*parts, format_count(len(comparison.encoders), "encoder")]) + f"; metrics of mteb {version('mteb')}."
    )


def in_terminal(comparison: Comparison) -> str:
    """Return the sentences, the short tables and the problems of a comparison as plain text for a terminal."""
    parts = ["\n".join(sentences(comparison))]
    parts += [f"{name}\n{Table.from_rows(rows).to_text()}" for name, rows in short_tables(comparison).items()]
    if comparison.problems:
        parts.append("Problems\n" + "\n".join(comparison.problems))
    return "\n\n".join(parts)
