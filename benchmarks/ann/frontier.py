"""Speed at equal recall: the settings that nothing beats, and what lies between two of them."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

Setting = dict[str, Any]
"""What a point found at a setting, with what the point says of itself."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with half of its 95 % interval by Student's t; None for one seed."""

    value: float
    half: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class AtRecall:
    """What a series costs at a recall, in one seed.

    Attributes:
        microseconds: a query, interpolated between the two settings of the frontier around that recall.
        p99: the same.
        setting: the quickest that was measured with at least that recall; sizes and build time are its own.
    """

    microseconds: float
    p99: float
    setting: Setting


def flat(results: Iterable[dict[str, Any]]) -> list[Setting]:
    """Every setting of every point that did not fail, with what the point says of itself."""
    return [
        {key: value for key, value in result.items() if key not in ("settings", "concurrency")} | setting
        for result in results
        if "error" not in result
        for setting in result["settings"]
    ]


def series_of(setting: Setting) -> str:
    """What is compared: a method in an engine, rescored or not."""
    rescored = ", rescored" if setting["oversampling"] > 1 else ""
    return f"{setting['method']}{rescored} · {setting['engine']}"


def grouped(settings: Iterable[Setting]) -> dict[tuple[str, int], dict[int, list[Setting]]]:
    """Settings by series and rows, then by seed."""
    found: defaultdict[tuple[str, int], defaultdict[int, list[Setting]]] = defaultdict(lambda: defaultdict(list))
    for setting in settings:
        found[series_of(setting), setting["rows"]][setting["seed"]].append(setting)
    return {key: dict(by_seed) for key, by_seed in found.items()}


def frontier(settings: Sequence[Setting]) -> list[Setting]:
    """The settings that no other beats in both recall and time, by recall."""
    best: list[Setting] = []
    for setting in sorted(settings, key=lambda s: (-s["recall"], s["microseconds"])):
        if not best or setting["microseconds"] < best[-1]["microseconds"]:
            best.append(setting)
    return best[::-1]


def at_recall(settings: Sequence[Setting], target: float) -> AtRecall | None:
    """What a recall costs; None if it is never reached. Nothing is extrapolated: above the target, it is the quickest.

    Between two settings the logarithm of the time runs straight along the recall's logit, in which frontiers are
    nearly straight.
    """
    best = frontier(settings)
    enough = [place for place, setting in enumerate(best) if setting["recall"] >= target]
    if not enough:
        return None
    above = best[enough[0]]
    if not enough[0] or above["recall"] == target:
        return AtRecall(above["microseconds"], above["p99"], above)
    below = best[enough[0] - 1]
    span = logit(above["recall"]) - logit(below["recall"])
    share = (logit(target) - logit(below["recall"])) / span if span else 1.0
    between = [math.exp((1 - share) * math.log(below[key]) + share * math.log(above[key])) for key in TIMES]
    return AtRecall(between[0], between[1], above)


TIMES = ("microseconds", "p99")


def logit(recall: float) -> float:
    """log(r / (1 − r)), kept finite at the ends."""
    clipped = min(max(recall, 1e-5), 1 - 1e-5)
    return math.log(clipped / (1 - clipped))


def mean_of(values: Sequence[float]) -> Mean:
    """The mean over seeds with its interval."""
    array = np.asarray(values, np.float64)
    half = None
    if len(array) > 1:
        half = float(stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Mean(float(array.mean()), half, tuple(array.tolist()))


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Mean:
    """The mean ratio, paired by seed, in logarithms: a half and a double cancel out. `half` is in the logarithm."""
    logs = mean_of([math.log(a / b) for a, b in zip(ours, theirs, strict=True)])
    return Mean(math.exp(logs.value), logs.half, tuple(math.exp(v) for v in logs.values))
