"""Speed at equal recall: the Pareto frontier of settings, and interpolation between two of them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

Setting = dict[str, Any]
"""Figures of a point at a setting, with the fields that describe the point."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with half of its 95 % interval by Student's t.

    `half` is None for one seed.
    """

    value: float
    half: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class AtRecall:
    """Cost of a series at a recall, in one seed.

    Attributes:
        microseconds: time of a query, interpolated between the two settings of the frontier around that recall.
        p99: 99th percentile, interpolated in the same way.
        setting: the fastest measured setting with at least that recall; sizes and build time are its own.
    """

    microseconds: float
    p99: float
    setting: Setting


def flatten_settings(results: Iterable[dict[str, Any]]) -> list[Setting]:
    """List every setting of every point that did not fail, with the fields that describe the point."""
    return [
        {key: value for key, value in result.items() if key not in ("settings", "concurrency")} | setting
        for result in results
        if "error" not in result
        for setting in result["settings"]
    ]


def name_series(setting: Setting) -> str:
    """Name the series of a setting: a method in an engine, rescored or not."""
    rescored = ", rescored" if setting["oversampling"] > 1 else ""
    return f"{setting['method']}{rescored} · {setting['engine']}"


def group_settings(settings: Iterable[Setting]) -> dict[tuple[str, int], dict[int, list[Setting]]]:
    """Group settings by series and rows, then by seed."""
    groups: defaultdict[tuple[str, int], defaultdict[int, list[Setting]]] = defaultdict(lambda: defaultdict(list))
    for setting in settings:
        groups[name_series(setting), setting["rows"]][setting["seed"]].append(setting)
    return {key: dict(by_seed) for key, by_seed in groups.items()}


def find_frontier(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings that no other beats in both recall and time, by recall."""
    best: list[Setting] = []
    for setting in sorted(settings, key=lambda s: (-s["recall"], s["microseconds"])):
        if not best or setting["microseconds"] < best[-1]["microseconds"]:
            best.append(setting)
    return best[::-1]


def interpolate_at_recall(settings: Sequence[Setting], target: float) -> AtRecall | None:
    """Interpolate the cost of a recall, or return None if no setting reaches it.

    Between two settings the logarithm of the time is linear in the recall's logit, in which frontiers are nearly
    straight. Nothing is extrapolated: if all settings are above the target, it is the fastest of them.
    """
    best = find_frontier(settings)
    position = next((i for i, setting in enumerate(best) if setting["recall"] >= target), None)
    if position is None:
        return None
    above = best[position]
    if position == 0 or above["recall"] == target:
        return AtRecall(above["microseconds"], above["p99"], above)

    below = best[position - 1]
    span = logit(above["recall"]) - logit(below["recall"])
    share = (logit(target) - logit(below["recall"])) / span if span else 1.0
    between = [math.exp((1 - share) * math.log(below[key]) + share * math.log(above[key])) for key in TIMES]
    return AtRecall(between[0], between[1], above)


TIMES = ("microseconds", "p99")


def logit(recall: float) -> float:
    """Return log(r / (1 − r)), clipped so that it is finite at 0 and 1."""
    clipped = min(max(recall, 1e-5), 1 - 1e-5)
    return math.log(clipped / (1 - clipped))


def average_seeds(values: Sequence[float]) -> Mean:
    """Return the mean over seeds with its interval."""
    array = np.asarray(values, np.float64)
    half = None
    if len(array) > 1:
        half = float(stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Mean(float(array.mean()), half, tuple(array.tolist()))


def average_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Mean:
    """Return the geometric mean of the ratios, paired by seed.

    In logarithms a half and a double cancel out. `half` of the mean is in the logarithm.
    """
    logs = average_seeds([math.log(a / b) for a, b in zip(numerators, denominators, strict=True)])
    return Mean(math.exp(logs.value), logs.half, tuple(math.exp(v) for v in logs.values))
