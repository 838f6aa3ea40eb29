"""Figures: Matplotlib in one style, as SVG text for an HTML page."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Interval

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lathe",
    "text.parse_math": False,  # names may hold dollars
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Matplotlib settings of all figures."""


def to_svg(figure: Any) -> str:
    """Convert a Matplotlib figure to SVG text without XML headers, and close the figure."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def draw_figures(plots: Mapping[str, Callable[..., Any]], *data: Any) -> dict[str, str]:
    """Draw figures in `STYLE`, and return SVG texts by title.

    Args:
        plots: function by title that draws a figure from `data`, or returns None to draw no figure.
        data: arguments of all functions.
    """
    with plt.rc_context(STYLE):
        return {title: to_svg(figure) for title, plot in plots.items() if (figure := plot(*data)) is not None}


def create_panels(
    count: int, columns: int = 1, size: tuple[float, float] = (6, 4), **options: Any
) -> tuple[Any, NDArray[Any]]:
    """Create a Matplotlib figure with `count` panels in a grid, and return the figure and the panels' axes `(count,)`.

    Args:
        count: number of panels.
        columns: maximum number of panels in a row.
        size: width and height of one panel in inches.
        options: arguments of `matplotlib.pyplot.subplots`, such as `sharey`.
    """
    columns = min(columns, count)
    lines = -(-count // columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(size[0] * columns, size[1] * lines),
        layout="constrained",
        squeeze=False,
        **options,
    )

    for axis in axes.flat[count:]:
        axis.set_visible(False)

    return figure, axes.flat[:count]


def plot_intervals(axis: Any, x: Any, estimates: Sequence[Interval], label: str, fmt: str) -> None:
    """Plot estimates against `x` with error bars on a Matplotlib axis.

    An estimate without bounds gets an error bar of length 0.
    """
    values = np.array([estimate.value for estimate in estimates])
    low, high = np.array([estimate.bounds for estimate in estimates]).T
    reach = [np.maximum(values - low, 0), np.maximum(high - values, 0)]
    axis.errorbar(x, values, reach, label=label, fmt=fmt, markersize=4, linewidth=1, elinewidth=0.8, capsize=2)


def plot_curves(axis: Any, points: Iterable[tuple[str, float, Interval]]) -> None:
    """Plot a curve with error bars for each label, from `(label, x, estimate)`, and make the x axis logarithmic."""
    curves: dict[str, list[tuple[float, Interval]]] = {}
    for label, x, estimate in points:
        curves.setdefault(label, []).append((x, estimate))
    for label, curve in curves.items():
        plot_intervals(axis, [x for x, _ in curve], [estimate for _, estimate in curve], label, "o-")
    axis.set_xscale("log", base=2)
    use_plain_tick_labels(axis.xaxis)


def use_plain_tick_labels(axis: Any) -> None:
    """Label the major ticks of a logarithmic Matplotlib axis (`axis.xaxis`) with plain numbers instead of powers."""
    axis.set_major_formatter(lambda value, _place: f"{value:,g}")
    axis.set_minor_formatter(NullFormatter())
