"""What a benchmark says, in sentences."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.ann.findings import FAR, HALF_BYTES, Cost, Findings, Growth
from benchmarks.ann.frontier import Mean
from benchmarks.ann.grid import EXACT, Grid
from benchmarks.ann.spaces import FULL

MUCH = 1.05
"""A ratio of speeds within which two are called equal."""


def sentences(findings: Findings, grid: Grid, width: int) -> list[str]:
    """The verdict first, then what it rests on."""
    return [*verdicts(findings, grid), *growing(findings, grid, width), *deepening(findings, grid)]


def verdicts(findings: Findings, grid: Grid) -> Iterator[str]:
    """For every target: what to use, and why, at the largest corpus that was measured."""
    rows = max((cost.rows for cost in findings.costs), default=0)
    for target in grid.targets:
        there = [c for c in findings.costs if (c.rows, c.target) == (rows, target)]
        local = [c for c in there if c.settings[0]["engine"] != "lathe"]
        if not local:
            yield f"No setting reaches a recall@{grid.k} of {target} in every seed."
            continue
        as_quick = [c for c in local if slowness(c) < MUCH * min(map(slowness, local))]
        quickest, smallest = (min(among, key=lambda c: c.graph_bytes) for among in (as_quick, local))
        yield (
            f"At recall@{grid.k} {target} of {rows:,} vectors, use {name(quickest)} for speed: {rate(quickest)} on one "
            f"thread, {megabytes(quickest.graph_bytes)} to search in."
        )
        if smallest is not quickest:
            yield (
                f"For memory, use {name(smallest)}: {megabytes(smallest.graph_bytes)} to search in, "
                f"{rate(smallest)}{beside(smallest)}."
            )
        yield from against_full_width(there, target, grid)


def against_full_width(there: Sequence[Cost], target: float, grid: Grid) -> Iterator[str]:
    """The chain that is judged against full width, engine by engine; and another method where that is quicker."""
    for engine in grid.engines:
        full = next((c for c in there if c.series == f"{FULL} · {engine}"), None)
        ours = [c for c in there if c.settings[0]["engine"] == engine and c.speed and c.settings[0]["method"] != FULL]
        if full is None or not ours:
            continue
        judged = [c for c in ours if c.settings[0]["method"] in grid.methods[1:2]]
        quickest = min(ours, key=slowness)
        shown = [min(judged, key=slowness)] if judged else []
        for cost in [*shown, *([] if quickest in shown else [quickest])]:
            yield compared(cost, full, target)


def compared(cost: Cost, full: Cost, target: float) -> str:
    """One series against full width in the same engine."""
    setting, speed = cost.settings[0], cost.speed
    faster = speed.value if speed else 1.0
    said = f"{ratio(speed)} the queries a second of full width" if speed else ""
    if 1 / MUCH < faster < MUCH and speed:
        said = f"as many queries a second as full width ({ratio(speed)})"
    memory, built = cost.graph_bytes / full.graph_bytes, cost.build_seconds / full.build_seconds
    slower = speed is not None and speed.half is not None and math.log(speed.value) + speed.half < 0
    why = " There, comparing fewer floats saves less than looking at more candidates costs." if slower else ""
    return (
        f"In {setting['engine']} at {target}, {setting['method']} ({cost.setting}) answers {said}, with "
        f"{100 * memory:.0f} % of the memory to search in and {100 * built:.0f} % of the build time.{why}"
    )


def growing(findings: Findings, grid: Grid, width: int) -> Iterator[str]:
    """How the answer moves with the corpus."""
    for target in grid.targets:
        for engine in dict.fromkeys((grid.engines[0], EXACT)):
            full = growth(findings, f"{FULL} · {engine}", target)
            for method in grid.methods[1:2]:
                ours = growth(findings, f"{method}, rescored · {engine}", target)
                if full is None or ours is None:
                    continue
                both = [rows for rows in ours.measured if rows in full.measured]
                ratios = [f"{full.measured[rows] / ours.measured[rows]:.2f} × at {rows:,}" for rows in both]
                yield (
                    f"Growing, in {engine} at {target}: {method} rescored answers {', '.join(ratios)} the queries a "
                    f"second of full width. Computed for {FAR:,}, if the same oversampling were enough: "
                    f"{far_ratio(full, ours)}, {gigabytes(ours.far_bytes)} to search in instead of "
                    f"{gigabytes(full.far_bytes)}, and {gigabytes(HALF_BYTES * width * FAR)} of originals beside."
                )


def deepening(findings: Findings, grid: Grid) -> Iterator[str]:
    """How many candidates a larger corpus wants."""
    for depth in (depth for depth in findings.depths if depth.recall):
        for target in grid.targets:
            enough = {
                rows: min((t for t, by_rows in depth.recall.items() if by_rows[rows] >= target), default=None)
                for rows in next(iter(depth.recall.values()))
            }
            far = min((times for times, recall in depth.far_recall.items() if recall >= target), default=None)
            told = ", ".join(f"{times_of(times)} at {rows:,}" for rows, times in enough.items())
            more = f"; computed for {FAR:,}: {times_of(far)}" if depth.far_recall else ""
            yield f"{depth.method} must be rescored {told} to reach {target} by exact search{more}."


def far_ratio(full: Growth, ours: Growth) -> str:
    """The computed ratio, both by logarithms and both by powers."""
    ratios = sorted(f / o for f, o in zip(full.far_microseconds, ours.far_microseconds, strict=True))
    least, most = (f"{value:.2f}" for value in ratios)
    return f"{least} ×" if least == most else f"{least} to {most} ×"


def growth(findings: Findings, series: str, target: float) -> Growth | None:
    """A series' growth; None if it was not measured at enough sizes."""
    return next((g for g in findings.growth if (g.series, g.target) == (series, target)), None)


def name(cost: Cost) -> str:
    """A cost's method, engine and parameters."""
    setting = cost.settings[0]
    method = "full width" if setting["method"] == FULL else setting["method"]
    return f"{method} in {setting['engine']} ({cost.setting})"


def slowness(cost: Cost) -> float:
    """To sort by."""
    return cost.microseconds.value


def rate(cost: Cost) -> str:
    """Queries a second."""
    return f"{1e6 / cost.microseconds.value:,.0f} queries a second"


def beside(cost: Cost) -> str:
    """What is kept beside for rescoring."""
    return f", with {cost.beside_bytes:,} bytes a vector beside for rescoring" if cost.beside_bytes else ""


def ratio(mean: Mean) -> str:
    """A ratio with its interval."""
    if mean.half is None:
        return f"{mean.value:.2f} ×"
    factor = math.exp(mean.half)
    return f"{mean.value:.2f} × [{mean.value / factor:.2f}, {mean.value * factor:.2f}]"


def times_of(times: int | None) -> str:
    """An oversampling."""
    return "deeper than was measured" if times is None else "not at all" if times == 1 else f"{times} ×"


def megabytes(size: float) -> str:
    """Bytes."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


def gigabytes(size: float) -> str:
    """The same, for more of them."""
    return f"{size / 1e9:,.1f} GB"


def counted(results: Sequence[dict[str, Any]]) -> str:
    """How many points there are, and how many failed."""
    failures = sum("error" in result for result in results)
    return f"{len(results)} points, {failures} failed" if failures else f"{len(results)} points"
