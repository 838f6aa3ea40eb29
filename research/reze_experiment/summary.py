"""Sentences about an experiment: what holds, what does not, and what cannot be told."""

from pathlib import Path

from lathe.training.finetuning.regularizers.registry import REGULARIZED
from lathe.training.reporting.page import render_sentences
from research.reze_experiment.conditions import POSTPROCESSED
from research.reze_experiment.findings import PROPOSED, Difference, Findings, Shift
from research.reze_experiment.settings import METHODS
from research.reze_experiment.tables import format_stage, name_method

TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences."""


def summarize_experiment(findings: Findings) -> list[str]:
    """Return the findings as sentences: REZE against its rivals, drift, what plain pre-finetuning changes."""
    shifts: dict[float, dict[str, Shift]] = {}
    for shift in findings.shifts:
        shifts.setdefault(shift.learning_rate, {})[shift.method] = shift
    more = {
        "METHODS": METHODS,
        "POSTPROCESSED": POSTPROCESSED,
        "PROPOSED": PROPOSED,
        "RIVALS": [method for method in ("pft", *REGULARIZED) if method != PROPOSED],
        "format_stage": format_stage,
        "judge_difference": judge_difference,
        "name_method": name_method,
        "scores": {
            (a.learning_rate, a.rows, a.method): a.score.value for a in findings.averages if a.measure == "score"
        },
        "shifts_by_rate": shifts,
    }
    return render_sentences(TEMPLATE, vars(findings) | more)


def judge_difference(one: Difference) -> str:
    """Return in words what a difference's interval says: better, worse, or that no difference can be told.

    Of one seed it says nothing; of several without bounds, the difference is the same with every seed.
    """
    if one.seeds == 1:
        return "one seed tells nothing"
    if one.points.low is None:
        return "the same with every seed"
    return {1: "better", -1: "worse", 0: "no difference can be told"}[one.points.sign]
