"""Figures of findings, as SVG text for an HTML page."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

from training.evaluation.findings import Findings
from training.evaluation.grid import Grid
from training.evaluation.run import Results
from training.evaluation.statistics import Interval

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lathe",
    "text.parse_math": False,  # names may hold dollars
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Matplotlib settings of all figures."""
Drawing = Callable[[Results, Findings], Any]
"""Function that plots results and findings as a Matplotlib figure, or returns None if there is nothing to plot."""


def drawn(figure: Any) -> str:
    """Return a Matplotlib figure as SVG text, without XML headers, and close the figure."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def svg_pictures(drawings: Mapping[str, Callable[..., Any]], *of: Any) -> dict[str, str]:
    """Call each plot function with the arguments `of`; return SVG text by title, without those that return None."""
    with plt.rc_context(STYLE):
        return {name: drawn(figure) for name, draw in drawings.items() if (figure := draw(*of)) is not None}


def pictures(results: Results, findings: Findings) -> dict[str, str]:
    """Draw every figure for which the findings have data; return SVG text by title."""
    return svg_pictures(DRAWINGS, results, findings)


def difference_map(results: Results, findings: Findings) -> Any:
    """Plot a heat map of mean differences to raw vectors, encoders by methods; return None without cells."""
    encoders = list(dict.fromkeys(cell.encoder for cell in findings.cells))
    if not encoders:
        return None
    values = np.full((len(encoders), len(findings.labels)), np.nan)
    for cell in findings.cells:
        values[encoders.index(cell.encoder), findings.labels.index(cell.label)] = cell.difference.value
    figure, axis = plt.subplots(
        figsize=(2.5 + 0.85 * len(findings.labels), 1 + 0.32 * len(encoders)), layout="constrained"
    )
    most = max(1.0, float(np.nanquantile(np.abs(values), 0.9)))
    axis.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    axis.set_xticks(range(len(findings.labels)), findings.labels, rotation=25, ha="right")
    axis.set_yticks(range(len(encoders)), encoders)
    for row, column in np.argwhere(np.isfinite(values)):
        strong = abs(values[row, column]) > 0.7 * most
        axis.text(
            column, row, f"{values[row, column]:+.2f}", ha="center", va="center", color="white" if strong else "black"
        )
    axis.spines[:].set_visible(False)
    return figure


def gain_by_norm(results: Results, findings: Findings) -> Any:
    """Plot R2's mean difference against ‖μ‖, a point for each encoder; return None with fewer than three."""
    grid = Grid(results)
    cells = [c for c in findings.cells if c.label == "R2" and grid.encoders[c.encoder].mean_norm is not None]
    if len(cells) < 3:
        return None
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for family in dict.fromkeys(grid.encoders[cell.encoder].member.family for cell in cells):
        some = [cell for cell in cells if grid.encoders[cell.encoder].member.family == family]
        x = [grid.encoders[cell.encoder].mean_norm for cell in some]
        bars(axis, x, [cell.difference for cell in some], label=family, fmt="o")
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_xlabel("‖μ‖")
    axis.set_ylabel("R2 less raw, points")
    axis.legend(fontsize=8)
    return figure


def retention_curves(results: Results, findings: Findings) -> Any:
    """Plot the retained share of the score against the share of dimensions, over all tasks and by type, if measured."""
    if not findings.retentions:
        return None
    kinds = list(dict.fromkeys(kind for one in findings.retentions for kind in one.types))
    columns = min(3, len(kinds) + 1)
    lines = -(-(len(kinds) + 1) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4 * columns, 3 * lines), layout="constrained", squeeze=False)
    for axis, kind in zip(axes.flat, ["all tasks", *kinds], strict=False):
        for label in dict.fromkeys(one.label for one in findings.retentions):
            some = [
                one for one in findings.retentions if one.label == label and (kind in one.types or kind == "all tasks")
            ]
            kept = [one.types.get(kind, one.mean) for one in some]
            bars(axis, [one.share for one in some], kept, label=label, fmt="o-")
        axis.set_xscale("log", base=2)
        plain_ticks(axis.xaxis)
        axis.set_title(kind, fontsize=10)
        axis.set_xlabel("share of the dimensions")
    for axis in axes.flat[len(kinds) + 1 :]:
        axis.set_visible(False)
    axes[0, 0].set_ylabel("share of the score kept")
    axes[0, 0].legend(fontsize=7)
    return figure


def geometry_and_scores(results: Results, findings: Findings) -> Any:
    """Plot the mean score of each reduction against its local Spearman; return None if not measured."""
    grid = Grid(results)
    if not findings.intrinsic:
        return None
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for encoder, result in grid.encoders.items():
        names = list(result.intrinsic)
        tasks = grid.complete(encoder, [result.methods[name] for name in names])
        if names and tasks:
            x = [result.intrinsic[name]["local_spearman"] for name in names]
            axis.scatter(x, [100 * grid.scores(encoder, name, tasks).mean() for name in names], s=14, label=encoder)
    axis.set_xlabel("local Spearman on sentences kept aside")
    axis.set_ylabel("mean score × 100")
    axis.legend(fontsize=8)
    return figure


def estimation_curves(results: Results, findings: Findings) -> Any:
    """Plot the error of R1's and R2's scores against the number of sentences of the mean; None if not measured."""
    if not findings.estimation:
        return None
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    counts = [row.sentences for row in findings.estimation]
    bars(axis, counts, [row.r1_error for row in findings.estimation], label="R1", fmt="o-")
    bars(axis, counts, [row.r2_error for row in findings.estimation], label="R2", fmt="o-")
    axis.set_xscale("log")
    plain_ticks(axis.xaxis)
    axis.set_xlabel("sentences the mean is estimated from")
    axis.set_ylabel("points from the score with all")
    axis.legend(fontsize=8)
    return figure


def plain_ticks(side: Any) -> None:
    """Label the major ticks of a logarithmic Matplotlib axis with plain numbers instead of powers, in place."""
    side.set_major_formatter(lambda value, _place: f"{value:,g}")
    side.set_minor_formatter(NullFormatter())


def bars(axis: Any, x: Any, intervals: list[Interval], label: str, fmt: str) -> None:
    """Plot values with error bars on a Matplotlib axis, in place; an interval without bounds gets a bar of length 0."""
    values = np.array([one.value for one in intervals])
    low = np.array([one.value if one.low is None else one.low for one in intervals])
    high = np.array([one.value if one.high is None else one.high for one in intervals])
    reach = [np.maximum(values - low, 0), np.maximum(high - values, 0)]
    axis.errorbar(x, values, reach, label=label, fmt=fmt, markersize=4, linewidth=1, elinewidth=0.8, capsize=2)


DRAWINGS: dict[str, Drawing] = {
    "Differences to raw vectors, in points": difference_map,
    "R2's gain and the norm of the mean": gain_by_norm,
    "Means estimated from few sentences": estimation_curves,
    "What reducers keep": retention_curves,
    "What is kept of the geometry, and scores": geometry_and_scores,
}
"""Plot functions by title of the figure."""
