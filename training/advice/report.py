"""Advice as an HTML page, as JSON, and as plain text for the terminal."""

from dataclasses import asdict
from typing import Any

from training.advice.advise import Advice
from training.advice.plots import pictures
from training.advice.summary import summarize_advice
from training.advice.tables import tables
from training.reporting.page import Section, render_page
from training.reporting.tables import Table


def as_page(advice: Advice) -> str:
    """Render the advice as one self-contained HTML page: sentences, figures, tables."""
    encoder = advice.encoder["name"] if advice.encoder else "vectors of no named encoder"
    section = Section(
        title=f"Advice: {advice.source}",
        sentences=summarize_advice(advice),
        figures=pictures(advice),
        tables={title: Table.from_rows(rows) for title, rows in tables(advice).items()},
    )
    about = f"{advice.distinct:,} distinct of {advice.rows:,} rows, {encoder}; {advice.heldout:,} rows held out"
    return render_page([section], about)


def as_json(advice: Advice) -> dict[str, Any]:
    """Convert the advice to a JSON-serializable dict: all fields of `Advice`, and `sentences`."""
    return {"sentences": summarize_advice(advice)} | asdict(advice)


def in_terminal(advice: Advice) -> str:
    """Format the tables and sentences of the advice as plain text."""
    shown = "\n\n".join(f"{name}\n{Table.from_rows(rows).to_text()}" for name, rows in tables(advice).items())
    return shown + "\n\n" + "\n".join(summarize_advice(advice))
