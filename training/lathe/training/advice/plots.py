"""Figures of an evidence."""

from typing import Any

from lathe.training.advice.evidence import Evidence
from lathe.training.comparison import Interval
from lathe.training.reporting.figures import draw_figures, label_plainly, new_panels, plot_curves

MEASURES = {
    "local_spearman": "local Spearman",
    "recall_at_10": "recall@10",
    "rescored_4x": "recall@10, rescored 4×",
    "retrieval": "split-half retrieval, MRR",
}
"""Title of the panel of each measure, by field name of `SizeTrial`."""


def draw_all(evidence: Evidence) -> dict[str, str]:
    """Draw every figure for which there is data, and return them as SVG text by title."""
    plots = {
        "Debiasing: points gained in split-half retrieval": plot_gains,
        "Fewer dimensions: what is kept": plot_sizes,
        "Where the variance lies": plot_spectrum,
    }
    return draw_figures(plots, evidence)


def plot_gains(evidence: Evidence) -> Any:
    """Plot each debiasing method's gain in split-half MRR with its interval.
    Return the matplotlib figure, or None if no gain was measured.
    """
    gains = {
        trial.method: trial.gain for trial in (evidence.debiasing.trials if evidence.debiasing else ()) if trial.gain
    }
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


def plot_sizes(evidence: Evidence) -> Any:
    """Plot what each reducer preserves against its dimensions, one panel per measure.
    Return the matplotlib figure, or None if no reducer was measured.
    """
    if evidence.sizes is None or not evidence.sizes.trials:
        return None

    measures = [name for name in MEASURES if getattr(evidence.sizes.full, name) is not None]
    figure, axes = new_panels(len(measures), len(measures), (3.4, 3))
    for axis, measure in zip(axes, measures, strict=True):
        values = ((trial, getattr(trial, measure)) for trial in evidence.sizes.trials)
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
        axis.set_title(MEASURES[measure], fontsize=10)
        axis.set_xlabel("dimensions")

    axes[0].legend(fontsize=7)
    return figure


def plot_spectrum(evidence: Evidence) -> Any:
    """Plot the share of the variance in each principal direction.
    Return the matplotlib figure, or None with fewer than two points.
    """
    ranks = evidence.diagnosis["spectrum"]
    if len(ranks) < 2:
        return None

    figure, (axis,) = new_panels(1, size=(5, 3))
    axis.plot([rank for rank, _ in ranks], [100 * share for _, share in ranks], "o-", markersize=3)
    axis.set_xscale("log", base=2)
    label_plainly(axis.xaxis)
    axis.set_xlabel("direction")
    axis.set_ylabel("% of the variance")

    return figure
