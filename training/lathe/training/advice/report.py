"""Advice as an HTML page, as JSON, and as plain text for the terminal."""

from dataclasses import asdict, replace
from typing import Any

from lathe.training.advice.advise import Advice
from lathe.training.advice.places.decision import PlaceDecision
from lathe.training.advice.plots import draw_all
from lathe.training.advice.summary import summarize_advice
from lathe.training.advice.tables import build_option_table, build_tables
from lathe.training.reporting.page import Section, format_text, render_page


def build_section(advice: Advice) -> Section:
    """Build the section with the sentences and tables of the advice."""
    return Section(f"Advice: {advice.source}", summarize_advice(advice), tables=build_tables(advice))


def build_decision_section(decision: PlaceDecision) -> Section:
    """Build the report section of the storage decision.
    Its title is the decision's sentence, followed by its commands, notes and a table of all options.
    """
    notes = [*decision.commands, *decision.notes]
    if decision.options:
        notes.append(
            f"Measured with {decision.queries:,} queries among {decision.sampled_rows:,} rows, by exact searches: a "
            "graph loses a little more. The last column has the recall among these rows that a quarter of them "
            "predicts, and the recall that was found."
        )

    tables = {"What it can hold": build_option_table(decision)} if decision.options else {}
    return Section(decision.sentence, notes, tables=tables)


def render_html(advice: Advice) -> str:
    """Render the advice as one self-contained HTML page of sentences, figures and tables."""
    encoder = advice.encoder["name"] if advice.encoder else "vectors of no named encoder"
    about = f"{advice.distinct:,} distinct of {advice.rows:,} rows, {encoder}; {advice.heldout:,} rows held out"
    decision = [build_decision_section(advice.decision)] if advice.decision else []
    return render_page([*decision, replace(build_section(advice), figures=draw_all(advice))], about)


def to_json(advice: Advice) -> dict[str, Any]:
    """Convert the advice to a JSON-serializable dict.
    It has all fields of `Advice`, `sentence` (the storage decision) and `sentences` (the summary).
    """
    decision = advice.decision.sentence if advice.decision else None
    return {"sentence": decision, "sentences": summarize_advice(advice)} | asdict(advice)


def format_decision(decision: PlaceDecision) -> str:
    """Format a storage decision as plain text: its sentence, then its commands, one on each line."""
    return "\n".join([decision.sentence, *(f"  {command}" for command in decision.commands)])


def format_evidence(advice: Advice) -> str:
    """Format as plain text what supports the storage decision.
    The table of options comes first, then the sentences and tables of the advice.
    """
    sections = [build_section(advice)]
    if advice.decision is not None:
        decided = build_decision_section(advice.decision)
        sections.insert(0, replace(decided, sentences=decided.sentences[len(advice.decision.commands) :]))
    return "\n\n".join(filter(None, map(format_text, sections)))
