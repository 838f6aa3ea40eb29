"""Advice as an HTML page, as JSON, and as plain text for the terminal."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lathe.training.advice.advise import Advice
from lathe.training.advice.debiasing import LARGE_MEAN, NOTHING
from lathe.training.advice.evidence import Evidence
from lathe.training.advice.matryoshka import MIN_LEAD, find_failing_cuts
from lathe.training.advice.places.decision import PlaceDecision
from lathe.training.advice.plots import draw_all
from lathe.training.advice.tables import build_option_table, build_tables
from lathe.training.reporting.page import Section, format_text, render_page
from lathe.training.reporting.sentences import render_sentences
from lathe.transforms.linear import MIN_MEAN_NORM

TEMPLATE = Path(__file__).with_name("evidence.txt.j2")
"""Template of the sentences about the evidence."""
SMALL_MEAN = 0.2
"""‖μ‖ of unit vectors up to which it is called small."""


def summarize_evidence(advice: Advice, evidence: Evidence) -> list[str]:
    """Summarize the evidence as sentences: mean direction, debiasing, first coordinates, sample size, failed fits."""
    failing = find_failing_cuts(evidence.matryoshka.cuts) if evidence.matryoshka else []
    data = vars(advice) | vars(evidence)
    data |= {
        "failing_cuts": sorted(failing, key=lambda cut: cut.first - cut.random),
        "large_mean": LARGE_MEAN,
        "min_lead": MIN_LEAD,
        "min_mean_norm": MIN_MEAN_NORM,
        "nothing": NOTHING,
        "small_mean": SMALL_MEAN,
    }
    return [*render_sentences(TEMPLATE, data), *evidence.problems]


def build_sections(advice: Advice) -> Iterator[Section]:
    """Build the sections of a report: the decision with all forms that were tried, then the evidence if there is any.
    The title of the first one is the decision's sentence.
    """
    decision = advice.decision
    tables = {"What it can hold": build_option_table(decision)} if decision.options else {}
    yield Section(decision.sentence, list_notes(advice), tables=tables)
    if advice.evidence is not None:
        yield Section(
            f"Evidence: {advice.source}", summarize_evidence(advice, advice.evidence), tables=build_tables(advice)
        )


def list_notes(advice: Advice) -> list[str]:
    """List the remarks on the decision and on the sample, as sentences."""
    decision = advice.decision
    notes = [*decision.notes, *advice.notes]
    if decision.options:
        notes.append(
            f"Measured with {decision.queries:,} queries among {decision.sampled_rows:,} rows, by exact searches: a "
            "graph loses a little more."
        )
    return notes


def render_html(advice: Advice) -> str:
    """Render the advice as one self-contained HTML page of sentences, commands, figures and tables."""
    encoder = advice.encoder["name"] if advice.encoder else "vectors of no named encoder"
    about = f"{advice.distinct:,} distinct of {advice.rows:,} rows, {encoder}; {advice.heldout:,} rows held out"
    first, *others = build_sections(advice)
    # Commands keep their lines and their indentation.
    first = replace(first, code="\n".join(advice.decision.commands))
    figures = draw_all(advice.evidence) if advice.evidence else {}
    return render_page([first, *(replace(section, figures=figures) for section in others)], about)


def to_json(advice: Advice) -> dict[str, Any]:
    """Convert the advice to a JSON-serializable dict.
    It has all fields of `Advice`, `sentence` (the decision) and `sentences` (what the evidence says).
    """
    said = summarize_evidence(advice, advice.evidence) if advice.evidence else []
    return {"sentence": advice.decision.sentence, "sentences": said} | asdict(advice)


def format_decision(decision: PlaceDecision) -> str:
    """Format a decision as plain text: its sentence, then its commands, one on each line."""
    return "\n".join([decision.sentence, "", *decision.commands] if decision.commands else [decision.sentence])


def format_evidence(advice: Advice) -> str:
    """Format as plain text what follows the decision: remarks, and with evidence, all tables."""
    if advice.evidence is None:
        return "\n".join(list_notes(advice))
    return "\n\n".join(filter(None, map(format_text, build_sections(advice))))
