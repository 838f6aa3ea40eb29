"""Self-contained HTML page of a report, and its text for the terminal, made of sections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from lathe.training.reporting.tables import Table

TEMPLATE = "page.html.j2"
"""File name of the Jinja template beside this module."""


@dataclass(frozen=True)
class Section:
    """Part of a report.

    Attributes:
        title: heading.
        sentences: findings.
        figures: SVG text by title.
        tables: tables by title.
        problems: messages on what went wrong.
        code: lines that a reader copies; empty for none.
    """

    title: str
    sentences: Sequence[str] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    problems: Sequence[str] = ()
    code: str = ""


def render_page(sections: Sequence[Section], about: str, files: str = "", reference: str | None = None) -> str:
    """Render sections as the text of one self-contained HTML page. Each section shows its sentences, figures, tables
    and problems.

    Args:
        sections: sections; the title of the first is the title of the page.
        about: sentence on what was measured.
        files: names of the files beside the page that hold all numbers; empty for none.
        reference: URL for further reading, or None.
    """
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    return environment.get_template(TEMPLATE).render(
        sections=sections, about=about, files=files, reference=reference, version=version("lathe-training")
    )


def format_text(section: Section) -> str:
    """Format a section as plain text for a terminal: its tables, sentences and problems, without its title."""
    parts = [f"{title}\n{table.to_text()}" for title, table in section.tables.items()]
    if section.sentences:
        parts.append("\n".join(section.sentences))
    if section.problems:
        parts.append("Problems\n" + "\n".join(section.problems))
    return "\n\n".join(parts)
