"""A comparison written down: JSON with everything, a page to read, tables and sentences for the terminal."""

from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from training.evaluation.page import render_page
from training.evaluation.report import aligned
from training.evaluation.words import counted
from training.research.domains.comparison import Comparison
from training.research.domains.plots import pictures
from training.research.domains.samples import SAMPLE_EXAMPLES, SAMPLES
from training.research.domains.tables import short_tables, tables
from training.research.domains.words import sentences
from transforms.files import replace_synced

JSON, HTML = "domains.json", "domains.html"


def write_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Write both files into a folder; give where they are."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    files = {JSON: orjson.dumps(as_json(comparison), option=options), HTML: page(comparison).encode()}
    for name, content in files.items():
        replace_synced(out / name, content)
    return [out / name for name in files]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything, with what made it."""
    return {
        "libraries": {name: version(name) for name in ("lathe", "mteb", "scipy", "statsmodels", "numpy")},
        "date": datetime.now(UTC).date().isoformat(),
        "samples": {"drawn": SAMPLES, "examples": SAMPLE_EXAMPLES},
        "sentences": sentences(comparison),
        **asdict(comparison),
    }


def page(comparison: Comparison) -> str:
    """The whole page as HTML."""
    return render_page(
        title=f"Is it another domain: {comparison.titles[0]} against {comparison.titles[1]}",
        about=about(comparison),
        sentences=sentences(comparison),
        pictures=pictures(comparison),
        tables=tables(comparison),
        problems=comparison.problems,
        files=JSON,
    )


def about(comparison: Comparison) -> str:
    """What was compared, in a sentence."""
    parts = [
        f"{title}: {counted(range(count), 'data set')}"
        for title, count in zip(comparison.titles, comparison.data_sets, strict=True)
    ]
    return "; ".join([*parts, counted(comparison.encoders, "encoder")]) + f"; metrics of mteb {version('mteb')}."


def in_terminal(comparison: Comparison) -> str:
    """The sentences, the shorter tables and the problems as plain text."""
    parts = ["\n".join(sentences(comparison))]
    parts += [f"{name}\n{aligned(rows)}" for name, rows in short_tables(comparison).items()]
    if comparison.problems:
        parts.append("Problems\n" + "\n".join(comparison.problems))
    return "\n\n".join(parts)
