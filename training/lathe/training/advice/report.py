"""Advice as an HTML page, as JSON, and as plain text for the terminal."""

from dataclasses import asdict, replace
from typing import Any

from lathe.training.advice.advise import Advice
from lathe.training.advice.plots import draw_all
from lathe.training.advice.summary import summarize_advice
from lathe.training.advice.tables import build_tables
from lathe.training.reporting.page import Section, format_text, render_page


def build_section(advice: Advice) -> Section:
    """Build the section with the sentences and tables of the advice."""
    return Section(f"Advice: {advice.source}", summarize_advice(advice), tables=build_tables(advice))


def render_html(advice: Advice) -> str:
    """Render the advice as one self-contained HTML page: sentences, figures, tables."""
    encoder = advice.encoder["name"] if advice.encoder else "vectors of no named encoder"
    about = f"{advice.distinct:,} distinct of {advice.rows:,} rows, {encoder}; {advice.heldout:,} rows held out"
    return render_page([replace(build_section(advice), figures=draw_all(advice))], about)


def to_json(advice: Advice) -> dict[str, Any]:
    """Convert the advice to a JSON-serializable dict: all fields of `Advice`, and `sentences`."""
    return {"sentences": summarize_advice(advice)} | asdict(advice)


def format_terminal(advice: Advice) -> str:
    """Format the tables and sentences of the advice as plain text."""
    return format_text(build_section(advice))
