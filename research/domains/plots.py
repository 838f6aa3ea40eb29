"""Plots of a comparison, as inline SVG for an HTML page."""

from typing import Any

import numpy as np

from lathe.training.reporting.figures import create_panels, draw_figures
from research.domains.comparison import Comparison
from research.domains.similarity import Cosines
from research.domains.variance import RESIDUAL

COLUMNS = 3
"""Number of panels, and of legend entries, in a row."""
MARKERS = "os^Dv"
"""Marker of each group of ten encoders, because there are only ten colours."""
COLOURS = {"encoder": "tab:blue", "domain": "tab:orange", "encoder × domain": "tab:green", RESIDUAL: "lightgrey"}
"""Colour of each row of the analysis of variance."""
MAX_NAMED = 60
"""Maximum number of data sets whose names are written at a heat map; more would be unreadable."""


def draw_all(comparison: Comparison) -> dict[str, str]:
    """Draw every figure for which the comparison has data, and return SVG text by title."""
    plots = {
        "Mean scores of the encoders in both suites": plot_rankings,
        "What the variance of samples' scores goes with": plot_shares,
        "Cosines of data sets' mean embeddings": plot_similarity,
    }
    return draw_figures(plots, comparison)


def plot_rankings(comparison: Comparison) -> Any:
    """Draw mean scores in one suite against the other, a panel per task type, a point per encoder.

    The result is None without any.
    """
    some = [one for one in comparison.rankings if one.encoders]
    if not some:
        return None
    figure, axes = create_panels(len(some), COLUMNS, (3.6, 3.2))
    looks = {
        encoder: {"color": f"C{place % 10}", "marker": MARKERS[place // 10 % len(MARKERS)]}
        for place, encoder in enumerate(comparison.encoders)
    }
    for axis, one in zip(axes, some, strict=True):
        for encoder, x, y in zip(one.encoders, *one.means, strict=True):
            axis.scatter(100 * x, 100 * y, label=encoder, s=24, **looks[encoder])
        axis.set_title(one.type if one.rho is None else f"{one.type}: ρ = {one.rho:.2f}", fontsize=10)
        axis.set_xlabel(comparison.titles[0])
        axis.set_ylabel(comparison.titles[1])
    fullest = max(range(len(some)), key=lambda place: len(some[place].encoders))
    handles = axes[fullest].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=COLUMNS, fontsize=8)
    return figure


def plot_shares(comparison: Comparison) -> Any:
    """Draw stacked bars of the variance shares in per cent, one bar per task type.

    Returns:
        None without an analysis.
    """
    some = [one for one in comparison.two_ways if one.sources]
    if not some:
        return None
    figure, (axis,) = create_panels(1, size=(7, 1 + 0.4 * len(some)))
    left = np.zeros(len(some))
    for place, source in enumerate(some[0].sources):
        widths = np.array([100 * one.sources[place].share for one in some])
        axis.barh(range(len(some)), widths, left=left, color=COLOURS[source.name], label=source.name)
        left += widths
    axis.set_yticks(range(len(some)), [one.type for one in some])
    axis.invert_yaxis()
    axis.set_xlabel("per cent of the sum of squares")
    figure.legend(loc="outside upper center", ncols=len(COLOURS), fontsize=8)
    return figure


def plot_similarity(comparison: Comparison) -> Any:
    """Draw heat maps of the cosines between all data sets, raw and centred.

    Returns:
        None without cosines.
    """
    found = comparison.similarity
    if found is None:
        return None
    maps = {"as they are": found.raw} | ({"without the common direction": found.centred} if found.centred else {})
    size = 2.5 + 0.2 * len(found.names)
    figure, axes = create_panels(len(maps), len(maps), (size, size), sharey=True)
    for axis, (name, cosines) in zip(axes, maps.items(), strict=True):
        _plot_heat_map(figure, axis, name, cosines, found.suites.count(0))
        if len(found.names) <= MAX_NAMED:
            axis.set_xticks(range(len(found.names)), found.names, rotation=90, fontsize=7)
            axis.set_yticks(range(len(found.names)), found.names, fontsize=7)
    axes[0].set_ylabel(f"{comparison.titles[0]} above the line, {comparison.titles[1]} below")
    return figure


def _plot_heat_map(figure: Any, axis: Any, name: str, cosines: Cosines, boundary: int) -> None:
    """Draw one heat map on the axis, with lines where the first suite ends and a colour bar on the figure.

    Args:
        figure: matplotlib figure, for the colour bar.
        axis: matplotlib axis to draw on.
        name: title.
        cosines: cosines to draw.
        boundary: number of data sets of the first suite.
    """
    image = axis.imshow(cosines.matrix, cmap="RdBu_r", vmin=-1, vmax=1)
    axis.axhline(boundary - 0.5, color="black", linewidth=1.2)
    axis.axvline(boundary - 0.5, color="black", linewidth=1.2)
    axis.set_title(name, fontsize=10)
    figure.colorbar(image, ax=axis, shrink=0.7)
