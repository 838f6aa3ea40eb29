"""Figures of an advice."""

from typing import Any

from lathe.training.advice.advise import Advice
from lathe.training.evaluation.statistics import Interval
from lathe.training.reporting.figures import draw_figures, label_plainly, new_panels, plot_curves

MEASURES = {
    "local_spearman": "local Spearman",
    "recall_at_10": "recall@10",
    "rescored_4x": "recall@10, rescored 4×",
    "retrieval": "split-half retrieval, MRR",
}
"""Title of the panel of each measure, by field name of `SizeTrial`."""


def draw_all(advice: Advice) -> dict[str, str]:
    """Draw every figure for which the advice has data, and return them as SVG text by title."""
    plots = {
        "Debiasing: points gained in split-half retrieval": plot_gains,
        "Fewer dimensions: what is kept": plot_sizes,
        "Bytes a vector: what is kept": plot_budgets,
        "Where the variance lies": plot_spectrum,
    }
    return draw_figures(plots, advice)


def plot_gains(advice: Advice) -> Any:
    """Plot each debiasing method's gain in split-half MRR with its interval.
    Return the matplotlib figure, or None if no gain was measured.
    """
    gains = {trial.method: trial.gain for trial in (advice.debiasing.trials if advice.debiasing else ()) if trial.gain}
    if not gains:
        return None

    figure, (axis,) = new_panels(1, size=(6, 0.6 + 0.35 * len(gains)))
    for row, gain in enumerate(gains.values()):
        (low, high), color = gain.bounds, {1: "tab:green", 0: "grey", -1: "tab:red"}[gain.sign]
        axis.errorbar(gain.value, row, xerr=[[gain.value - low], [high - gain.value]], fmt="o", color=color, capsize=3)

    axis.set_yticks(range(len(gains)), list(gains))
    axis.invert_yaxis()
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.set_xlabel("points of mean reciprocal rank × 100, to doing nothing")

    return figure


def plot_sizes(advice: Advice) -> Any:
    """Plot what each reducer preserves against its dimensions, one panel per measure.
    Return the matplotlib figure, or None if no reducer was measured.
    """
    if advice.sizes is None or not advice.sizes.trials:
        return None

    measures = [name for name in MEASURES if getattr(advice.sizes.full, name) is not None]
    figure, axes = new_panels(len(measures), len(measures), (3.4, 3))
    for axis, measure in zip(axes, measures, strict=True):
        values = ((trial, getattr(trial, measure)) for trial in advice.sizes.trials)
        plot_curves(
            axis,
            (
                (
                    trial.reducer,
                    trial.dimensions,
                    measured if isinstance(measured, Interval) else Interval(measured, None, None),
                )
                for trial, measured in values
            ),
        )
        if advice.best is not None and advice.best.reducer:
            axis.axvline(advice.best.dimensions, color="grey", linewidth=0.8, linestyle=":")

        axis.set_title(MEASURES[measure], fontsize=10)
        axis.set_xlabel("dimensions")

    axes[0].legend(fontsize=7)
    return figure


def plot_budgets(advice: Advice) -> Any:
    """Plot recall@10 of each method against its bytes, alone and rescored.
    Return the matplotlib figure, or None with fewer than two budgets.
    """
    budgets = advice.budgets
    if budgets is None or len(budgets.best_chains()) < 2:
        return None

    trials = list(budgets.chains)
    for budget in dict.fromkeys(trial.budget for trial in budgets.databases):
        trials += budgets.best_settings(budget).values()

    figure, axes = new_panels(2, 2, (4.2, 3.4))
    for axis, title, measure in zip(
        axes, ("recall@10", "recall@10, rescored 4×"), ("recall_at_10", "rescored_4x"), strict=True
    ):
        plot_curves(axis, ((trial.method, trial.bytes, getattr(trial, measure)) for trial in trials))
        if advice.fewest_bytes is not None:
            axis.axvline(advice.fewest_bytes.bytes, color="grey", linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("bytes a vector")

    axes[0].legend(fontsize=7)
    return figure


def plot_spectrum(advice: Advice) -> Any:
    """Plot the share of the variance in each principal direction.
    Return the matplotlib figure, or None with fewer than two points.
    """
    ranks = advice.diagnosis["spectrum"]
    if len(ranks) < 2:
        return None

    figure, (axis,) = new_panels(1, size=(5, 3))
    axis.plot([rank for rank, _ in ranks], [100 * share for _, share in ranks], "o-", markersize=3)
    axis.set_xscale("log", base=2)
    label_plainly(axis.xaxis)
    axis.set_xlabel("direction")
    axis.set_ylabel("% of the variance")

    return figure
