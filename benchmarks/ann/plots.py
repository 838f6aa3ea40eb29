"""Figures of the benchmark's results as SVG."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.ann.figure import KS
from benchmarks.ann.findings import Findings
from benchmarks.ann.frontier import Setting, find_frontier, flatten_settings, group_settings, logit
from benchmarks.ann.spaces import FULL
from lathe.training.reporting.figures import STYLE, to_svg

Rows = Sequence[dict[str, Any]]

TICKS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
TITLES = {
    "frontiers": "Recall against queries a second, one thread, transform and rescoring included",
    "growth": "Time of a query at equal recall, as the corpus grows",
    "equal-bytes": "Recall at equal bytes a vector, by exact search",
    "dimensions": "Dimensions, recall and latency (the GeoPres paper's Figure 1)",
}
MAX_RECALL = 0.9995
MIN_RECALL = 0.5
"""Recall below which a frontier is of no use and is not drawn."""


def draw_pictures(
    results: Sequence[dict[str, Any]],
    findings: Findings,
    sizes: Sequence[dict[str, Any]],
    figure: Sequence[dict[str, Any]],
) -> dict[str, str]:
    """Draw every figure that there is data for, as SVG by its name in `TITLES`."""
    with plt.rc_context(STYLE):
        made = {
            "frontiers": draw_frontiers(results),
            "growth": draw_growth(findings),
            "equal-bytes": draw_equal_bytes(sizes),
            "dimensions": draw_dimensions(figure),
        }
        return {name: to_svg(picture) for name, picture in made.items() if picture is not None}


def draw_frontiers(results: Sequence[dict[str, Any]]) -> Any:
    """Draw a panel for each engine at the largest corpus, with a line for each series of means over the seeds.

    Returns:
        The figure; None if there are no results.
    """
    groups = group_settings(flatten_settings(results))
    rows = max((rows for _, rows in groups), default=0)
    at_largest = {series: by_seed for (series, size), by_seed in groups.items() if size == rows}
    engines = list(dict.fromkeys(series.rpartition(" · ")[2] for series in at_largest))
    if not engines:
        return None
    methods = dict.fromkeys(settings["method"] for settings in flatten_settings(results))
    colours = {method: "black" if method == FULL else f"C{number}" for number, method in enumerate(methods)}
    columns = min(3, len(engines))
    lines = -(-len(engines) // columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(4.2 * columns, 3.4 * lines),
        layout="constrained",
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for axis, engine in zip(axes.flat, engines, strict=False):
        for series, by_seed in at_largest.items():
            label, _, series_engine = series.rpartition(" · ")
            settings = average_over_seeds(by_seed.values())
            if series_engine == engine:
                draw_frontier(axis, label, colours[settings[0]["method"]], settings)
        axis.set_title(f"{engine}, {rows:,} vectors")
        axis.set_yscale("log")
        format_log_axis(axis.yaxis)
        axis.set_xticks([logit(tick) for tick in TICKS], [str(tick) for tick in TICKS], rotation=60)
        axis.set_xlim(locate_recall(MIN_RECALL), locate_recall(1) + 0.2)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    for axis in axes.flat[len(engines) :]:
        axis.remove()
    axes[0, 0].set_ylabel("queries a second")
    axes[-1, 0].set_xlabel("end-to-end recall")
    return figure


def draw_frontier(axis: Any, label: str, colour: str, settings: Sequence[Setting]) -> None:
    """Draw the points of a series and the line of its frontier.

    The line is dashed for compressed vectors that are not rescored.
    """
    shown = [s for s in settings if s["recall"] >= MIN_RECALL]
    best = find_frontier(shown)
    if not best:
        return
    first = settings[0]
    is_compressed = first["method"] != FULL or first["engine"].startswith(("rabitq", "opq", "faiss-hnsw-sq8"))
    recalls, rates = [locate_recall(s["recall"]) for s in best], [1e6 / s["microseconds"] for s in best]
    axis.plot(
        recalls,
        rates,
        "--" if is_compressed and first["oversampling"] == 1 else "-",
        color=colour,
        label=label.replace(FULL, "full width"),
    )
    axis.plot(
        [locate_recall(s["recall"]) for s in shown],
        [1e6 / s["microseconds"] for s in shown],
        ".",
        color=colour,
        alpha=0.35,
        markersize=4,
    )


def average_over_seeds(by_seed: Iterable[Sequence[Setting]]) -> list[Setting]:
    """Return each setting once, with its mean recall and time."""
    groups: defaultdict[tuple[int, int, int], list[Setting]] = defaultdict(list)
    for settings in by_seed:
        for setting in settings:
            groups[setting["m"], setting["effort"], setting["oversampling"]].append(setting)
    return [
        group[0] | {column: fmean(setting[column] for setting in group) for column in ("recall", "microseconds")}
        for group in groups.values()
    ]


def locate_recall(recall: float) -> float:
    """Return the position of a recall on the axis.

    Recalls above `MAX_RECALL` are placed at its end.
    """
    return logit(min(recall, MAX_RECALL))


def format_log_axis(axis: Any) -> None:
    """Format the ticks of a logarithmic axis as plain numbers, as the style reads no powers."""
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_minor_formatter(lambda value, _: f"{value:,.0f}" if str(value)[0] in "25" else "")


def draw_growth(findings: Findings) -> Any:
    """Draw time against rows for every series that was measured at several sizes, with a panel for each recall."""
    targets = sorted({growth.target for growth in findings.growth})
    if not targets:
        return None
    figure, axes = plt.subplots(1, len(targets), figsize=(4.6 * len(targets), 3.6), layout="constrained", squeeze=False)
    for axis, target in zip(axes[0], targets, strict=True):
        for growth in findings.growth:
            if growth.target == target:
                axis.plot(
                    list(growth.measured), list(growth.measured.values()), "o-", markersize=4, label=growth.series
                )
        axis.set_xscale("log")
        axis.set_yscale("log")
        format_log_axis(axis.xaxis)
        format_log_axis(axis.yaxis)
        axis.set_title(f"recall {target}")
        axis.set_xlabel("vectors")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    axes[0, 0].set_ylabel("microseconds a query")
    return figure


def draw_equal_bytes(sizes: Sequence[dict[str, Any]]) -> Any:
    """Draw bars of recall with a panel for each size.

    The lighter parts of a bar are what rescoring adds.
    """
    if not sizes:
        return None
    panels = sorted({read_budget(row) for row in sizes}, reverse=True)
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.4), layout="constrained", squeeze=False)
    for axis, budget in zip(axes[0], panels, strict=True):
        methods = list(dict.fromkeys(row["method"] for row in sizes if read_budget(row) == budget))
        for position, method in enumerate(methods):
            recalls = [row["recall"] for row in sizes if (row["method"], read_budget(row)) == (method, budget)]
            means = {times: float(np.mean([recall[times] for recall in recalls])) for times in recalls[0]}
            for times, shade in zip(reversed(list(means)), (0.25, 0.5, 1.0), strict=True):
                axis.barh(position, means[times], color="tab:blue", alpha=shade)
        axis.set_yticks(range(len(methods)), methods)
        axis.invert_yaxis()
        axis.set_xlim(0, 1)
        axis.set_title(f"{budget} bytes a vector")
        axis.set_xlabel("recall@10: alone, rescored 4×, 8×")
    return figure


def read_budget(row: dict[str, Any]) -> int:
    """Return the bytes of a vector that a method was measured at.

    RaBitQ stores eight bytes more, which are not counted.
    """
    return int(row["bytes"]) - 8 if row["method"] == "RaBitQ" else int(row["bytes"])


def draw_dimensions(figure: Sequence[dict[str, Any]]) -> Any:
    """Draw recall of the graph, end-to-end recall, and latency, against dimensions."""
    if not figure:
        return None
    drawing, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    k = str(KS[1])
    for kind in dict.fromkeys(row["kind"] for row in figure):
        kind_rows = [row for row in figure if row["kind"] == kind]
        sizes = sorted({row["dimensions"] for row in kind_rows})
        for axis, column in zip(axes, ("index_recall", "recall", "microseconds"), strict=True):
            runs = [[row[column] for row in kind_rows if row["dimensions"] == size] for size in sizes]
            values = runs if column == "microseconds" else [[recalls[k] for recalls in run] for run in runs]
            means, spreads = [np.mean(v) for v in values], [np.std(v) for v in values]
            axis.errorbar(sizes, means, yerr=spreads, marker="o", markersize=4, label=kind)
    for axis, title in zip(
        axes, (f"recall@{k} in its own space", f"recall@{k} end to end", "microseconds a query"), strict=True
    ):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_title(title)
        axis.set_xlabel("dimensions")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    return drawing
