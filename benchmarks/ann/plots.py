"""A benchmark's findings as SVG."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.ann.figure import KS
from benchmarks.ann.findings import Findings
from benchmarks.ann.frontier import Setting, flat, frontier, grouped, logit
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
HIGHEST = 0.9995
LEAST = 0.5
"""Recall below which a frontier is of no use, and not drawn."""


def pictures(
    results: Sequence[dict[str, Any]],
    findings: Findings,
    sizes: Sequence[dict[str, Any]],
    figure: Sequence[dict[str, Any]],
) -> dict[str, str]:
    """Every picture there is something for, by its name in `TITLES`."""
    with plt.rc_context(STYLE):
        made = {
            "frontiers": frontiers(results),
            "growth": growth(findings),
            "equal-bytes": equal_bytes(sizes),
            "dimensions": dimensions(figure),
        }
        return {name: to_svg(picture) for name, picture in made.items() if picture is not None}


def frontiers(results: Sequence[dict[str, Any]]) -> Any:
    """One panel for each engine at the largest corpus; a line for each series, of means over the seeds."""
    groups = grouped(flat(results))
    rows = max((rows for _, rows in groups), default=0)
    here = {series: by_seed for (series, of), by_seed in groups.items() if of == rows}
    engines = list(dict.fromkeys(series.rpartition(" · ")[2] for series in here))
    if not engines:
        return None
    methods = dict.fromkeys(settings["method"] for settings in flat(results))
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
        for series, by_seed in here.items():
            label, _, of = series.rpartition(" · ")
            settings = means_over_seeds(by_seed.values())
            if of == engine:
                draw_frontier(axis, label, colours[settings[0]["method"]], settings)
        axis.set_title(f"{engine}, {rows:,} vectors")
        axis.set_yscale("log")
        in_logarithms(axis.yaxis)
        axis.set_xticks([logit(tick) for tick in TICKS], [str(tick) for tick in TICKS], rotation=60)
        axis.set_xlim(place_of(LEAST), place_of(1) + 0.2)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    for axis in axes.flat[len(engines) :]:
        axis.remove()
    axes[0, 0].set_ylabel("queries a second")
    axes[-1, 0].set_xlabel("end-to-end recall")
    return figure


def draw_frontier(axis: Any, label: str, colour: str, settings: Sequence[Setting]) -> None:
    """The points of a series and the line that nothing of it beats; dashed where it is not rescored."""
    shown = [s for s in settings if s["recall"] >= LEAST]
    best = frontier(shown)
    if not best:
        return
    first = settings[0]
    coded = first["method"] != FULL or first["engine"].startswith(("rabitq", "opq", "faiss-hnsw-sq8"))
    recalls, rates = [place_of(s["recall"]) for s in best], [1e6 / s["microseconds"] for s in best]
    axis.plot(
        recalls,
        rates,
        "--" if coded and first["oversampling"] == 1 else "-",
        color=colour,
        label=label.replace(FULL, "full width"),
    )
    axis.plot(
        [place_of(s["recall"]) for s in shown],
        [1e6 / s["microseconds"] for s in shown],
        ".",
        color=colour,
        alpha=0.35,
        markersize=4,
    )


def means_over_seeds(by_seed: Iterable[Sequence[Setting]]) -> list[Setting]:
    """Every setting once, with its mean recall and time."""
    alike: defaultdict[tuple[int, int, int], list[Setting]] = defaultdict(list)
    for settings in by_seed:
        for setting in settings:
            alike[setting["m"], setting["effort"], setting["oversampling"]].append(setting)
    return [
        same[0] | {column: fmean(setting[column] for setting in same) for column in ("recall", "microseconds")}
        for same in alike.values()
    ]


def place_of(recall: float) -> float:
    """Where a recall stands on the axis; what is nearly all stands at its end."""
    return logit(min(recall, HIGHEST))


def in_logarithms(axis: Any) -> None:
    """Plain numbers on a logarithmic axis; the style reads no powers."""
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_minor_formatter(lambda value, _: f"{value:,.0f}" if str(value)[0] in "25" else "")


def growth(findings: Findings) -> Any:
    """Time against rows for every series that was measured at several sizes; a panel for each recall."""
    targets = sorted({found.target for found in findings.growth})
    if not targets:
        return None
    figure, axes = plt.subplots(1, len(targets), figsize=(4.6 * len(targets), 3.6), layout="constrained", squeeze=False)
    for axis, target in zip(axes[0], targets, strict=True):
        for found in findings.growth:
            if found.target == target:
                axis.plot(list(found.measured), list(found.measured.values()), "o-", markersize=4, label=found.series)
        axis.set_xscale("log")
        axis.set_yscale("log")
        in_logarithms(axis.xaxis)
        in_logarithms(axis.yaxis)
        axis.set_title(f"recall {target}")
        axis.set_xlabel("vectors")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    axes[0, 0].set_ylabel("microseconds a query")
    return figure


def equal_bytes(sizes: Sequence[dict[str, Any]]) -> Any:
    """Bars of recall, a panel for each size; the lighter part is what rescoring gives back."""
    if not sizes:
        return None
    panels = sorted({budget_of(row) for row in sizes}, reverse=True)
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.4), layout="constrained", squeeze=False)
    for axis, budget in zip(axes[0], panels, strict=True):
        methods = list(dict.fromkeys(row["method"] for row in sizes if budget_of(row) == budget))
        for place, method in enumerate(methods):
            ours = [row["recall"] for row in sizes if (row["method"], budget_of(row)) == (method, budget)]
            means = {times: float(np.mean([recall[times] for recall in ours])) for times in ours[0]}
            for times, shade in zip(reversed(list(means)), (0.25, 0.5, 1.0), strict=True):
                axis.barh(place, means[times], color="tab:blue", alpha=shade)
        axis.set_yticks(range(len(methods)), methods)
        axis.invert_yaxis()
        axis.set_xlim(0, 1)
        axis.set_title(f"{budget} bytes a vector")
        axis.set_xlabel("recall@10: alone, rescored 4×, 8×")
    return figure


def budget_of(row: dict[str, Any]) -> int:
    """The size a method was asked for; RaBitQ keeps some bytes more."""
    return int(row["bytes"]) - 8 if row["method"] == "RaBitQ" else int(row["bytes"])


def dimensions(figure: Sequence[dict[str, Any]]) -> Any:
    """Recall of the graph, end-to-end recall, and latency, against dimensions."""
    if not figure:
        return None
    drawing, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    k = str(KS[1])
    for kind in dict.fromkeys(row["kind"] for row in figure):
        ours = [row for row in figure if row["kind"] == kind]
        sizes = sorted({row["dimensions"] for row in ours})
        for axis, column in zip(axes, ("index_recall", "recall", "microseconds"), strict=True):
            runs = [[row[column] for row in ours if row["dimensions"] == size] for size in sizes]
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
