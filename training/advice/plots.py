"""Figures of an advice, as SVG text for an HTML page."""

from typing import Any

import matplotlib.pyplot as plt

from training.advice.advise import Advice
from training.advice.sizes import SizeTrial
from training.evaluation.statistics import Interval
from training.reporting.figures import draw_figures, label_plainly, plot_intervals


def pictures(advice: Advice) -> dict[str, str]:
    """Draw every figure for which the advice has data; return SVG text by title."""
    drawings = {
        "Debiasing: points gained in halves finding each other": gains,
        "Fewer dimensions: what is kept": curves,
        "Where the variance lies": spectrum,
    }
    return draw_figures(drawings, advice)


def gains(advice: Advice) -> Any:
    """Plot each debiasing method's gain in split-half MRR with its interval; return None if no gain was measured."""
    trials = [one for one in advice.debiasing.trials if one.gain is not None] if advice.debiasing else []
    if not trials:
        return None
    figure, axis = plt.subplots(figsize=(6, 0.6 + 0.35 * len(trials)), layout="constrained")
    for row, one in enumerate(trials):
        gain = one.gain
        assert gain is not None
        low, high = gain.bounds
        color = {1: "tab:green", 0: "grey", -1: "tab:red"}[gain.sign]
        axis.errorbar(gain.value, row, xerr=[[gain.value - low], [high - gain.value]], fmt="o", color=color, capsize=3)
    axis.set_yticks(range(len(trials)), [one.method for one in trials])
    axis.invert_yaxis()
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.set_xlabel("points of mean reciprocal rank × 100, to doing nothing")
    return figure


def curves(advice: Advice) -> Any:
    """Plot what each reducer preserves against its dimensions, one panel per measure; return None without trials."""
    if advice.sizes is None or not advice.sizes.trials:
        return None
    measures = ["local_spearman", "recall_at_10", "rescored_4x", "retrieval"]
    names = ["local Spearman", "recall@10", "recall@10, rescored 4×", "MRR of halves"]
    shown = measures if advice.sizes.full.retrieval is not None else measures[:3]
    figure, axes = plt.subplots(1, len(shown), figsize=(3.4 * len(shown), 3), layout="constrained", squeeze=False)
    for axis, measure, name in zip(axes[0], shown, names, strict=False):
        for reducer in dict.fromkeys(one.reducer for one in advice.sizes.trials):
            some = [one for one in advice.sizes.trials if one.reducer == reducer]
            plot_intervals(
                axis, [one.dimensions for one in some], [interval(one, measure) for one in some], reducer, "o-"
            )
        if advice.best is not None and advice.best.reducer:
            axis.axvline(advice.best.dimensions, color="grey", linewidth=0.8, linestyle=":")
        axis.set_xscale("log", base=2)
        label_plainly(axis.xaxis)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("dimensions")
    axes[0, 0].legend(fontsize=7)
    return figure


def interval(trial: SizeTrial, measure: str) -> Interval:
    """Return a measure of a trial by attribute name, as an interval without bounds if it is a plain number."""
    found = getattr(trial, measure)
    return found if isinstance(found, Interval) else Interval(float(found), None, None)


def spectrum(advice: Advice) -> Any:
    """Plot each principal direction's share of the variance; return None with fewer than two points."""
    ranks = advice.diagnosis["spectrum"]
    if len(ranks) < 2:
        return None
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    axis.plot([rank for rank, _ in ranks], [100 * share for _, share in ranks], "o-", markersize=3)
    axis.set_xscale("log", base=2)
    label_plainly(axis.xaxis)
    axis.set_xlabel("direction")
    axis.set_ylabel("% of the variance")
    return figure
