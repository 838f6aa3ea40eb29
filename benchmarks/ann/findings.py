"""What the points come to: cost at equal recall, growth with the corpus, and ten million vectors, computed."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.ann.frontier import AtRecall, Mean, Setting, at_recall, flat, grouped, logit, mean_of, ratio_of
from benchmarks.ann.spaces import FULL

FAR = 10_000_000
"""The corpus that is computed, not measured."""
HALF_BYTES = 2
"""Of an original's number, kept beside for rescoring."""


@dataclass(frozen=True)
class Cost:
    """What a series costs at a recall, over the seeds that reach it.

    Attributes:
        series: as `series_of` names it.
        rows: of the corpus.
        target: recall.
        microseconds: a query.
        p99: the same.
        speed: queries a second relative to full width in the same engine, paired by seed; None for that itself.
        graph_bytes: of what is searched.
        beside_bytes: a vector's original, for rescoring; 0 without.
        build_seconds: on one thread.
        settings: the quickest measured ones with that recall, one for each seed.
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
        """The parameters, in words."""
        return "; ".join(dict.fromkeys(words_of(setting) for setting in self.settings))


@dataclass(frozen=True)
class Growth:
    """How a series grows, and what that would be for `FAR` vectors: computed, never measured.

    Attributes:
        measured: rows to microseconds.
        exponent: of time = a · rows^b through them.
        far_microseconds: the least and the most. A graph's time grows with the logarithm of the rows, and more where
            a larger one leaves the caches: the least is by time = a + b · log(rows), the most by the power. Exact
            search is linear from the largest corpus on.
        far_bytes: of what is searched, by the bytes a vector takes.
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
        far_recall: the same for `FAR` rows: logits run straight along log(rows).
    """

    method: str
    recall: dict[int, dict[int, float]]
    far_recall: dict[int, float]


@dataclass(frozen=True)
class Findings:
    """Everything a report says."""

    costs: tuple[Cost, ...]
    growth: tuple[Growth, ...]
    depths: tuple[Depth, ...]


def find(results: Sequence[dict[str, Any]], width: int, targets: Sequence[float], exact: str) -> Findings:
    """What all points come to.

    Args:
        results: of the grid.
        width: of the originals.
        targets: recalls.
        exact: the engine that searches exactly.
    """
    settings = flat(results)
    groups = grouped(settings)
    reached: dict[tuple[str, int, float], dict[int, AtRecall]] = {}
    for (series, rows), by_seed in groups.items():
        for target in targets:
            there = {seed: cost for seed, ours in by_seed.items() if (cost := at_recall(ours, target))}
            if len(there) == len(by_seed):  # a mean over the seeds that happen to reach it would flatter
                reached[series, rows, target] = there
    costs = tuple(cost_of(key, there, reached, width) for key, there in reached.items())
    return Findings(costs, tuple(growths(costs, exact)), tuple(depths(settings, exact)))


def cost_of(
    key: tuple[str, int, float],
    there: dict[int, AtRecall],
    reached: dict[tuple[str, int, float], dict[int, AtRecall]],
    width: int,
) -> Cost:
    """One series at one recall."""
    series, rows, target = key
    chosen = tuple(cost.setting for cost in there.values())
    base = reached.get((f"{FULL} · {chosen[0]['engine']}", rows, target))
    speed = None
    if base is not None and not series.startswith(f"{FULL} ·") and base.keys() == there.keys():
        speed = ratio_of([base[s].microseconds for s in there], [cost.microseconds for cost in there.values()])
    return Cost(
        series=series,
        rows=rows,
        target=target,
        microseconds=mean_of([cost.microseconds for cost in there.values()]),
        p99=mean_of([cost.p99 for cost in there.values()]),
        speed=speed,
        graph_bytes=float(np.mean([s["graph_bytes"] for s in chosen])),
        beside_bytes=HALF_BYTES * width if any(s["oversampling"] > 1 for s in chosen) else 0,
        build_seconds=float(np.mean([s["build_seconds"] for s in chosen])),
        settings=chosen,
    )


def words_of(setting: Setting) -> str:
    """The parameters of a setting."""
    words = [f"M {setting['m']}"] if setting["m"] else []
    if setting["engine"].startswith(("opq", "rabitq")):
        words.append(f"nprobe {setting['effort']}")
    elif setting["m"]:
        words.append(f"ef {setting['effort']}")
    if setting["oversampling"] > 1:
        words.append(f"rescored {setting['oversampling']}×")
    return ", ".join(words) or "exact"


def growths(costs: Sequence[Cost], exact: str) -> list[Growth]:
    """Every series that was measured at three sizes or more."""
    found = []
    for series, target in dict.fromkeys((cost.series, cost.target) for cost in costs):
        ours = sorted((c for c in costs if (c.series, c.target) == (series, target)), key=lambda c: c.rows)
        if len(ours) < 3:
            continue
        measured = {cost.rows: cost.microseconds.value for cost in ours}
        rows, times = np.array(list(measured)), np.array(list(measured.values()))
        slope, start = np.polyfit(np.log(rows), np.log(times), 1)
        power = math.exp(start + slope * math.log(FAR))
        logarithm = float(np.polyval(np.polyfit(np.log(rows), times, 1), math.log(FAR)))
        if ours[0].settings[0]["engine"] == exact:
            power = logarithm = float(times[-1]) * FAR / float(rows[-1])
        found.append(
            Growth(
                series=series,
                target=target,
                measured=measured,
                exponent=float(slope),
                far_microseconds=(min(logarithm, power), max(logarithm, power)),
                far_bytes=ours[-1].graph_bytes / ours[-1].rows * FAR,
            )
        )
    return found


def depths(settings: Sequence[Setting], exact: str) -> list[Depth]:
    """How deep a reduced space must be searched as the corpus grows."""
    found = []
    for method in dict.fromkeys(s["method"] for s in settings if s["method"] != FULL):
        ours = [s for s in settings if s["method"] == method and s["engine"] == exact]
        sizes = sorted({s["rows"] for s in ours})
        there: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        for setting in ours:
            there[setting["oversampling"], setting["rows"]].append(setting["recall"])
        recall = {
            times: {rows: float(np.mean(there[times, rows])) for rows in sizes}
            for times in sorted({s["oversampling"] for s in ours})
            if all((times, rows) in there for rows in sizes)  # few rows cannot be searched deep
        }
        far = {}
        if len(sizes) >= 3:
            for times, by_rows in recall.items():
                line = np.polyfit(np.log(sizes), [logit(by_rows[rows]) for rows in sizes], 1)
                far[times] = float(1 / (1 + math.exp(-np.polyval(line, math.log(FAR)))))
        found.append(Depth(method, recall, far))
    return found
