"""Figures of findings, as SVG text for an HTML page."""

from collections.abc import Callable
from typing import Any

from lathe.training.evaluation.findings import Findings
from lathe.training.reporting.figures import draw_figures, new_panels, plot_intervals

MAX_COMPARISONS = 40
"""Maximum number of comparisons in the figure. All are in the table."""

Plot = Callable[[Findings], Any]
"""Function that plots findings as a Matplotlib figure, or returns None if there is nothing to plot."""


def draw_all(findings: Findings) -> dict[str, str]:
    """Draw every figure for which the findings have data, and return them as SVG text by title."""
    return draw_figures(PLOTS, findings)


def plot_differences(findings: Findings) -> Any:
    """Plot the score difference of each comparison with its interval.
    Return the matplotlib figure, or None without comparisons.
    """
    comparisons = findings.comparisons[:MAX_COMPARISONS]
    if not comparisons:
        return None

    figure, (axis,) = new_panels(1, size=(2.5 + 0.6 * len(comparisons), 4))
    plot_intervals(
        axis, range(len(comparisons)), [comparison.verdict.difference for comparison in comparisons], "", "o"
    )
    axis.axhline(0, color="grey", linewidth=0.8)
    names = [f"{comparison.name} –\n{comparison.baseline_name}" for comparison in comparisons]
    axis.set_xticks(range(len(comparisons)), names, rotation=60, ha="right", fontsize=8)
    axis.set_xlim(-0.7, len(comparisons) - 0.3)
    axis.set_ylabel("difference, points")

    return figure


PLOTS: dict[str, Plot] = {
    "Differences in points, with 95 % intervals": plot_differences,
}
"""Plot functions by title of the figure."""
