"""Results computed from the points: cost at equal recall, growth with the corpus, and ten million vectors."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.ann.frontier import (
    AtRecall,
    Mean,
    Setting,
    average_ratio,
    average_seeds,
    flatten_settings,
    group_settings,
    interpolate_at_recall,
    logit,
)
from benchmarks.ann.spaces import FULL

FAR = 10_000_000
"""Rows of the corpus for which costs are computed, not measured."""
HALF_BYTES = 2
"""Bytes of a number of an original, which is stored for rescoring."""


@dataclass(frozen=True)
class Cost:
    """Cost of a series at a recall, over the seeds that reach it.

    Attributes:
        series: name, see `name_series`.
        rows: rows of the corpus.
        target: recall.
        microseconds: time of a query.
        p99: 99th percentile of that time.
        speed: queries a second relative to full width in the same engine, paired by seed; None for full width itself.
        graph_bytes: bytes of the index that is searched.
        beside_bytes: bytes of a vector's original, for rescoring; 0 without rescoring.
        build_seconds: seconds to build the index on one thread.
        settings: the fastest measured settings with that recall, one for each seed.
    """

    series: str
    rows: int
    target: float
    microseconds: Mean
    p99: Mean
    speed: Mean | None
    graph_bytes: float
    beside_bytes: int
    build_seconds: float
    settings: tuple[Setting, ...]

    @property
    def setting(self) -> str:
        """The parameters of the settings, in words."""
        return "; ".join(dict.fromkeys(format_setting(setting) for setting in self.settings))


@dataclass(frozen=True)
class Growth:
    """Growth of a series' time with the corpus, extrapolated to `FAR` vectors.

    The extrapolation is computed, never measured.

    Attributes:
        measured: microseconds by rows.
        exponent: b of time = a · rows^b, fitted to them.
        far_microseconds: lower and upper estimate. A graph's time grows with the logarithm of the rows, and more where
            a larger one leaves the caches: the lower is by time = a + b · log(rows), the upper by the power. Exact
            search is linear from the largest corpus on.
        far_bytes: bytes of the index, by the bytes a vector takes.
    """

    series: str
    target: float
    measured: dict[int, float]
    exponent: float
    far_microseconds: tuple[float, float]
    far_bytes: float


@dataclass(frozen=True)
class Depth:
    """End-to-end recall of exact search in a reduced space, by oversampling and rows.

    Attributes:
        recall: {oversampling: {rows: recall}}.
        far_recall: recall by oversampling for `FAR` rows, as logits are linear in log(rows).
    """

    method: str
    recall: dict[int, dict[int, float]]
    far_recall: dict[int, float]


@dataclass(frozen=True)
class Findings:
    """All results of a report."""

    costs: tuple[Cost, ...]
    growth: tuple[Growth, ...]
    depths: tuple[Depth, ...]


def compute_findings(results: Sequence[dict[str, Any]], width: int, targets: Sequence[float], exact: str) -> Findings:
    """Compute costs at equal recall, growth and search depths from the points.

    Args:
        results: results of the grid.
        width: dimensions of the originals.
        targets: recalls.
        exact: name of the engine that searches exactly.
    """
    settings = flatten_settings(results)
    groups = group_settings(settings)
    reached: dict[tuple[str, int, float], dict[int, AtRecall]] = {}
    for (series, rows), by_seed in groups.items():
        for target in targets:
            costs_by_seed = {
                seed: cost
                for seed, settings_of_seed in by_seed.items()
                if (cost := interpolate_at_recall(settings_of_seed, target))
            }
            if len(costs_by_seed) == len(by_seed):  # a mean over the seeds that happen to reach it would flatter
                reached[series, rows, target] = costs_by_seed

    costs = tuple(compute_cost(key, costs_by_seed, reached, width) for key, costs_by_seed in reached.items())
    return Findings(costs, tuple(fit_growths(costs, exact)), tuple(compute_depths(settings, exact)))


def compute_cost(
    key: tuple[str, int, float],
    costs_by_seed: dict[int, AtRecall],
    reached: dict[tuple[str, int, float], dict[int, AtRecall]],
    width: int,
) -> Cost:
    """Compute the cost of one series at one recall, with its speed relative to full width."""
    series, rows, target = key
    chosen = tuple(cost.setting for cost in costs_by_seed.values())
    base = reached.get((f"{FULL} · {chosen[0]['engine']}", rows, target))
    speed = None
    # Ratios are paired: a seed's two times share its split.
    if base is not None and not series.startswith(f"{FULL} ·") and base.keys() == costs_by_seed.keys():
        speed = average_ratio(
            [base[s].microseconds for s in costs_by_seed], [cost.microseconds for cost in costs_by_seed.values()]
        )
    return Cost(
        series=series,
        rows=rows,
        target=target,
        microseconds=average_seeds([cost.microseconds for cost in costs_by_seed.values()]),
        p99=average_seeds([cost.p99 for cost in costs_by_seed.values()]),
        speed=speed,
        graph_bytes=float(np.mean([s["graph_bytes"] for s in chosen])),
        beside_bytes=HALF_BYTES * width if any(s["oversampling"] > 1 for s in chosen) else 0,
        build_seconds=float(np.mean([s["build_seconds"] for s in chosen])),
        settings=chosen,
    )


def format_setting(setting: Setting) -> str:
    """Format the parameters of a setting."""
    parts = [f"M {setting['m']}"] if setting["m"] else []
    if setting["engine"].startswith(("opq", "rabitq")):
        parts.append(f"nprobe {setting['effort']}")
    elif setting["m"]:
        parts.append(f"ef {setting['effort']}")
    if setting["oversampling"] > 1:
        parts.append(f"rescored {setting['oversampling']}×")
    return ", ".join(parts) or "exact"


def fit_growths(costs: Sequence[Cost], exact: str) -> list[Growth]:
    """Fit the growth of every series that was measured at three sizes or more."""
    growths = []
    for series, target in dict.fromkeys((cost.series, cost.target) for cost in costs):
        costs_by_size = sorted((c for c in costs if (c.series, c.target) == (series, target)), key=lambda c: c.rows)
        if len(costs_by_size) < 3:
            continue
        measured = {cost.rows: cost.microseconds.value for cost in costs_by_size}
        rows, times = np.array(list(measured)), np.array(list(measured.values()))
        slope, start = np.polyfit(np.log(rows), np.log(times), 1)
        power = math.exp(start + slope * math.log(FAR))
        logarithm = float(np.polyval(np.polyfit(np.log(rows), times, 1), math.log(FAR)))
        if costs_by_size[0].settings[0]["engine"] == exact:
            # Exact search reads every row, so its time is linear in their number.
            power = logarithm = float(times[-1]) * FAR / float(rows[-1])
        growths.append(
            Growth(
                series=series,
                target=target,
                measured=measured,
                exponent=float(slope),
                far_microseconds=(min(logarithm, power), max(logarithm, power)),
                far_bytes=costs_by_size[-1].graph_bytes / costs_by_size[-1].rows * FAR,
            )
        )
    return growths


def compute_depths(settings: Sequence[Setting], exact: str) -> list[Depth]:
    """Compute the recall of exact search in each reduced space, by oversampling and rows.

    With three sizes or more, the recall is extrapolated to `FAR` rows.
    """
    depths = []
    for method in dict.fromkeys(s["method"] for s in settings if s["method"] != FULL):
        method_settings = [s for s in settings if s["method"] == method and s["engine"] == exact]
        sizes = sorted({s["rows"] for s in method_settings})
        recalls: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        for setting in method_settings:
            recalls[setting["oversampling"], setting["rows"]].append(setting["recall"])
        recall = {
            times: {rows: float(np.mean(recalls[times, rows])) for rows in sizes}
            for times in sorted({s["oversampling"] for s in method_settings})
            if all((times, rows) in recalls for rows in sizes)  # few rows cannot be searched deep
        }
        far = {}
        if len(sizes) >= 3:
            for times, by_rows in recall.items():
                line = np.polyfit(np.log(sizes), [logit(by_rows[rows]) for rows in sizes], 1)
                far[times] = float(1 / (1 + math.exp(-np.polyval(line, math.log(FAR)))))
        depths.append(Depth(method, recall, far))
    return depths
