"""Pictures of the evidence, after the mean-bias paper's Figures 1, 3, 4 and 5."""

from collections.abc import Mapping
from typing import Any

from lathe.training.comparison import Interval
from lathe.training.evaluation.methods import CONTROL
from lathe.training.reporting.figures import create_panels, draw_figures, plot_intervals
from research.paper_findings.statistics import DECISIVE_T

Figures = Mapping[str, Any]
"""Part of the raw figures: findings, and scores by encoder, method and task."""

MARKERS = "o^sv"
"""Marker of each run, in their order."""
COLORS = {"R1": "tab:orange", "R2": "tab:blue"}


def draw_norms(runs: Mapping[str, Figures]) -> str:
    """Draw gains against ‖μ‖, a point for each encoder of each run: t, σ_cell and points.

    Returns:
        SVG text.
    """
    return draw_figures({"norms": plot_norms}, runs)["norms"]


def plot_norms(runs: Mapping[str, Figures]) -> Any:
    """Plot R2's t and σ_cell in classification (Figures 1 and 5), and points of R1 and R2 (Figure 4), against ‖μ‖."""
    figure, axes = create_panels(4, 2, (5, 3.5))
    for run, marker in zip(runs, MARKERS, strict=False):
        cells = {(cell["encoder"], cell["label"]): cell for cell in runs[run]["findings"]["cells"]}
        norms = runs[run]["mean_norms"]
        for axis, measure in zip(axes[:2], ("t", "sigma_cell"), strict=True):
            gains = [cells[encoder, "R2"]["families"]["Classification"][measure] or 0.0 for encoder in norms]
            axis.plot(list(norms.values()), gains, marker, label=run, markersize=5)
        for axis, method in zip(axes[2:], COLORS, strict=True):
            differences = [Interval(**cells[encoder, method]["difference"]) for encoder in norms]
            plot_intervals(axis, list(norms.values()), differences, run, marker)
    axes[0].axhline(DECISIVE_T, color="grey", linewidth=0.8, linestyle="--")
    labels = ("R2, classification: t", "R2, classification: σ", "R1, all tasks: points", "R2, all tasks: points")
    for axis, label in zip(axes, labels, strict=True):
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_xlabel("‖μ‖")
        axis.set_ylabel(label)
    axes[0].legend(fontsize=8)
    return figure


def draw_differences(figures: Figures) -> str:
    """Draw the distribution of R1's and R2's differences over tasks, encoder by encoder (Figure 3).

    Returns:
        SVG text.
    """
    return draw_figures({"differences": plot_differences}, figures)["differences"]


def plot_differences(figures: Figures) -> Any:
    """Plot half violins of differences to raw vectors in points, R1 to the left, R2 to the right, by falling ‖μ‖."""
    encoders = sorted(figures["mean_norms"], key=lambda encoder: -figures["mean_norms"][encoder])
    figure, (axis,) = create_panels(1, size=(1.5 + 1.4 * len(encoders), 4))
    for side, (method, color) in zip(("low", "high"), COLORS.items(), strict=True):
        rows = [_list_differences(figures["scores"][encoder], method) for encoder in encoders]
        drawn = axis.violinplot(rows, range(len(rows)), widths=0.8, showextrema=False, showmedians=True, side=side)
        for body in drawn["bodies"]:
            body.set_color(color)
        drawn["cmedians"].set_color(color)
        axis.plot([], [], color=color, linewidth=6, alpha=0.3, label=method)
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_yscale("symlog", linthresh=1)
    axis.set_xticks(range(len(encoders)), [f"{name}\n‖μ‖ {figures['mean_norms'][name]:.2f}" for name in encoders])
    axis.set_ylabel("difference to raw vectors, points")
    axis.legend(fontsize=8)
    return figure


def _list_differences(scores: Mapping[str, Mapping[str, float | None]], method: str) -> list[float]:
    """List a method's differences to the raw vectors in points, of the tasks that both completed."""
    pairs = ((scores[CONTROL][task], score) for task, score in scores[method].items())
    return [100 * (score - raw) for raw, score in pairs if raw is not None and score is not None]
