"""Sentences about findings, written as a Jinja template beside the package that owns them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lathe.training.reporting.text import (
    format_by_sign,
    format_bytes,
    format_cosine,
    format_count,
    format_fraction,
    format_half_width,
    format_interval,
    format_number,
    format_p_value,
    format_percent,
    format_points,
)

FILTERS = {
    "by_sign": format_by_sign,
    "byte_size": format_bytes,
    "cosine": format_cosine,
    "count_of": format_count,
    "fraction": format_fraction,
    "half_width": format_half_width,
    "interval": format_interval,
    "number": format_number,
    "p_value": format_p_value,
    "percent": format_percent,
    "points": format_points,
}
"""Filters of the templates, by name."""


def render_sentences(template: Path, data: Mapping[str, Any]) -> list[str]:
    """Fill in a Jinja template that has one sentence per line, and return the sentences as a list, without blank lines.

    A name that `data` lacks is an error (`jinja2.UndefinedError`), so that a misspelt one does not vanish. Line breaks
    within a value, as in the messages of exceptions, become spaces.
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
