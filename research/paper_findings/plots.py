"""Figures of the papers' statistics, as SVG text for an HTML page."""

from collections.abc import Callable, Sequence
from typing import Any

from lathe.training.reporting.figures import create_panels, draw_figures, plot_curves, plot_intervals
from research.fitted_methods.evaluation import FittedResults
from research.paper_findings.findings import Findings
from research.paper_findings.grid import Grid
from research.paper_findings.retention import Retention

Plot = Callable[[FittedResults, Findings], Any]
"""Function that plots results and findings as a Matplotlib figure, or returns None if there is nothing to plot."""


def draw_all(results: FittedResults, findings: Findings) -> dict[str, str]:
    """Draw every figure for which the findings have data, as SVG text by title."""
    return draw_figures(PLOTS, results, findings)


def plot_gain_by_norm(results: FittedResults, findings: Findings) -> Any:
    """Plot R2's mean difference against ‖μ‖, a point for each encoder.

    Returns None with fewer than three.
    """
    grid = Grid(results)
    cells = [c for c in findings.cells if c.label == "R2" and grid.encoders[c.encoder].mean_norm is not None]
    if len(cells) < 3:
        return None
    figure, (axis,) = create_panels(1)
    for family in dict.fromkeys(grid.encoders[cell.encoder].member.family for cell in cells):
        some = [cell for cell in cells if grid.encoders[cell.encoder].member.family == family]
        x = [grid.encoders[cell.encoder].mean_norm for cell in some]
        plot_intervals(axis, x, [cell.difference for cell in some], label=family, fmt="o")
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_xlabel("‖μ‖")
    axis.set_ylabel("R2 less raw, points")
    axis.legend(fontsize=8)
    return figure


def plot_geometry_and_scores(results: FittedResults, findings: Findings) -> Any:
    """Plot the mean score of each reduction against its local Spearman.

    Returns None if that was not measured.
    """
    grid = Grid(results)
    if not findings.intrinsic:
        return None
    figure, (axis,) = create_panels(1)
    for encoder, result in grid.encoders.items():
        names = list(result.intrinsic)
        tasks = grid.complete_tasks(encoder, [result.methods[name] for name in names])
        if names and tasks:
            x = [result.intrinsic[name]["local_spearman"] for name in names]
            axis.scatter(x, [100 * grid.scores(encoder, name, tasks).mean() for name in names], s=14, label=encoder)
    axis.set_xlabel("local Spearman on sentences kept aside")
    axis.set_ylabel("mean score × 100")
    axis.legend(fontsize=8)
    return figure


def plot_retention(retentions: Sequence[Retention]) -> Any:
    """Plot the share of the score that reductions retain against their share of the dimensions.

    The matplotlib figure has a panel for all tasks and one for each type. It is None if no reduction was measured.
    """
    if not retentions:
        return None

    kinds = ["all tasks", *dict.fromkeys(kind for retention in retentions for kind in retention.types)]
    figure, axes = create_panels(len(kinds), 3, (4, 3))
    for axis, kind in zip(axes, kinds, strict=True):
        by_kind = ({"all tasks": retention.mean, **retention.types} for retention in retentions)
        pairs = zip(retentions, by_kind, strict=True)
        plot_curves(
            axis, ((retention.label, retention.share, means[kind]) for retention, means in pairs if kind in means)
        )
        axis.set_title(kind, fontsize=10)
        axis.set_xlabel("share of the dimensions")

    axes[0].set_ylabel("share of the score kept")
    axes[0].legend(fontsize=7)
    return figure


PLOTS: dict[str, Plot] = {
    "R2's gain and the norm of the mean": plot_gain_by_norm,
    "What reducers keep": lambda results, findings: plot_retention(findings.retentions),
    "What is kept of the geometry, and scores": plot_geometry_and_scores,
}
"""Plot functions by title of the figure."""
