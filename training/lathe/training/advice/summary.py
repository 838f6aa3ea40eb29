"""Advice as plain sentences."""

from pathlib import Path

from lathe.training.advice.advise import Advice
from lathe.training.advice.debiasing import LARGE_MEAN, NOTHING
from lathe.training.advice.matryoshka import MIN_LEAD, find_failing_cuts
from lathe.training.advice.recommendation import MIN_HELDOUT
from lathe.training.evaluation.statistics import Interval
from lathe.training.reporting.sentences import render_sentences
from lathe.transforms.linear import MIN_MEAN_NORM

TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences."""
SMALL_MEAN = 0.2
"""‖μ‖ of unit vectors up to which it is called small."""
MIN_TRANSFER_DROP = 0.05
"""Drop in the preserved share, from held-out rows to out-of-domain text, from which on the chain is called specific to
the source."""


def summarize_advice(advice: Advice) -> list[str]:
    """Summarize the advice as sentences, its notes last.

    In order, they are on the recommended chain, the fewest bytes, the mean direction, the first coordinates, transfer
    to out-of-domain text, sample size, and a query adapter.
    """
    failing = find_failing_cuts(advice.matryoshka.cuts) if advice.matryoshka else []
    codes = advice.budgets.codes if advice.budgets else []
    data = vars(advice) | {
        "ahead": advice.budgets.list_databases_ahead() if advice.budgets else {},
        "largest": codes[-1] if codes else None,
        "min_heldout": MIN_HELDOUT,
        "failing_cuts": sorted(failing, key=lambda cut: cut.first - cut.random),
        "judge_transfer": judge_transfer,
        "large_mean": LARGE_MEAN,
        "min_lead": MIN_LEAD,
        "min_mean_norm": MIN_MEAN_NORM,
        "nothing": NOTHING,
        "small_mean": SMALL_MEAN,
    }
    adapter = advice.adapter.reasons if advice.adapter else []

    return [*render_sentences(TEMPLATE, data), *adapter, *advice.notes]


def judge_transfer(here: Interval, there: Interval, keep: float) -> str:
    """Return a clause on whether a chain preserves the share `keep` on held-out rows and on out-of-domain text.

    One of four: both preserve it, neither does, the chain is specific to the source, or undecided. It is specific if
    out-of-domain text certainly does not reach `keep`, or is below held-out rows by over `MIN_TRANSFER_DROP`, intervals
    apart.

    Args:
        here: share on held-out rows.
        there: share on out-of-domain text.
        keep: share that must be preserved.
    """
    lowest, highest = zip(here.bounds, there.bounds, strict=True)
    if min(lowest) >= keep:
        return "it serves both"
    if max(highest) < keep:
        return "it loses on both"
    if highest[1] < keep or (here.value - there.value > MIN_TRANSFER_DROP and highest[1] < lowest[0]):
        return "it is made for text like this source"

    return f"it is not sure to keep {100 * keep:g} % on both"
