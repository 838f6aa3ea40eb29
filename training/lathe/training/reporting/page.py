"""Sections of a report, rendered as a self-contained HTML page or as text for the terminal, and the files of a report.

Reports also describe the libraries and the machine. Sentences about findings are Jinja templates in the package that
measures.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lathe.training.reporting import text
from lathe.training.reporting.tables import Table
from lathe.transforms.files import replace_synced

TEMPLATE = "page.html.j2"
"""File name of the page's Jinja template, in the folder of this module."""


@dataclass(frozen=True)
class Section:
    """Part of a report: heading, sentences, figures, tables and problems.

    Attributes:
        title: heading.
        sentences: findings.
        figures: SVG text by title.
        tables: tables by title.
        problems: messages about what went wrong.
        code: lines for a reader to copy; empty without code.
    """

    title: str
    sentences: Sequence[str] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    problems: Sequence[str] = ()
    code: str = ""


def render_page(sections: Sequence[Section], about: str, files: str = "", reference: str | None = None) -> str:
    """Render sections as one self-contained HTML page.

    Args:
        sections: the sections. The title of the first section is the title of the page.
        about: sentence about what was measured.
        files: names of the files next to the page that hold all numbers; empty without files.
        reference: URL for further reading, or None.
    """
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    return environment.get_template(TEMPLATE).render(
        sections=sections, about=about, files=files, reference=reference, version=version("lathe-training")
    )


def format_text(section: Section) -> str:
    """Format the tables, sentences and problems of a section as plain text, without title, figures and code."""
    parts = [f"{title}\n{table.to_text()}" for title, table in section.tables.items()]
    if section.sentences:
        parts.append("\n".join(section.sentences))
    if section.problems:
        parts.append("Problems\n" + "\n".join(section.problems))
    return "\n\n".join(parts)


def write_files(folder: Path, contents: Mapping[str, str | bytes | Mapping[str, Any]]) -> list[Path]:
    """Write files into an existing folder, and return their paths. Existing files are replaced atomically.

    Args:
        folder: the folder.
        contents: content by file name. Strings are encoded as UTF-8, and mappings are written as JSON.
    """
    for name, content in contents.items():
        if isinstance(content, Mapping):
            content = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        replace_synced(folder / name, content.encode() if isinstance(content, str) else content)
    return [folder / name for name in contents]


def describe_environment(*libraries: str) -> dict[str, Any]:
    """Return the versions of the given libraries, the number of CPU cores and today's UTC date, as a dict for JSON.

    Raises:
        importlib.metadata.PackageNotFoundError: if a library is not installed.
    """
    return {
        "libraries": {name: version(name) for name in libraries},
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
    }


FILTERS = {
    "by_sign": text.format_by_sign,
    "byte_size": text.format_bytes,
    "cosine": text.format_cosine,
    "count_of": text.format_count,
    "fraction": text.format_fraction,
    "half_width": text.format_half_width,
    "interval": text.format_interval,
    "number": text.format_number,
    "p_value": text.format_p_value,
    "percent": text.format_percent,
    "points": text.format_points,
}
"""Jinja filters of the templates, by name."""


def render_sentences(template: Path, data: Mapping[str, Any]) -> list[str]:
    """Render a Jinja template that has one sentence per line, and return the lines that are not blank.

    Line breaks within a value, as in messages of exceptions, become spaces.

    Raises:
        jinja2.UndefinedError: if the template uses a name that `data` lacks, such as a misspelt name.
    """
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        finalize=lambda value: value.replace("\n", " ") if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    lines = environment.get_template(template.name).render(data).split("\n")

    return [line for line in lines if line.strip()]
