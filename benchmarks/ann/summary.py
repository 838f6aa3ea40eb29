"""Summary of a benchmark's results in sentences."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.ann.findings import FAR, HALF_BYTES, Cost, Findings, Growth
from benchmarks.ann.frontier import Mean
from benchmarks.ann.grid import EXACT, Grid
from benchmarks.ann.spaces import FULL

MIN_RATIO = 1.05
"""Ratio of speeds from which one is called faster than the other."""


def summarize_findings(findings: Findings, grid: Grid, width: int) -> list[str]:
    """Return the recommendation, followed by the results that it is based on."""
    return [
        *recommend_series(findings, grid),
        *describe_growth(findings, grid, width),
        *describe_depths(findings, grid),
    ]


def recommend_series(findings: Findings, grid: Grid) -> Iterator[str]:
    """Yield for every target what to use, and why, at the largest corpus that was measured."""
    rows = max((cost.rows for cost in findings.costs), default=0)
    for target in grid.targets:
        reached = [c for c in findings.costs if (c.rows, c.target) == (rows, target)]
        local = [c for c in reached if c.settings[0]["engine"] != "lathe"]
        if not local:
            yield f"No setting reaches a recall@{grid.k} of {target} in every seed."
            continue
        fast = [c for c in local if get_microseconds(c) < MIN_RATIO * min(map(get_microseconds, local))]
        quickest, smallest = (min(costs, key=lambda c: c.graph_bytes) for costs in (fast, local))
        yield (
            f"At recall@{grid.k} {target} of {rows:,} vectors, use {format_series(quickest)} for speed: "
            f"{format_rate(quickest)} on one thread, {format_megabytes(quickest.graph_bytes)} to search in."
        )
        if smallest is not quickest:
            yield (
                f"For memory, use {format_series(smallest)}: {format_megabytes(smallest.graph_bytes)} to search in, "
                f"{format_rate(smallest)}{format_originals(smallest)}."
            )
        yield from compare_with_full_width(reached, target, grid)


def compare_with_full_width(reached: Sequence[Cost], target: float, grid: Grid) -> Iterator[str]:
    """Yield comparisons of the judged chain with full width, engine by engine.

    Where another method is faster, it is compared too.
    """
    for engine in grid.engines:
        full = next((c for c in reached if c.series == f"{FULL} · {engine}"), None)
        reduced = [
            c for c in reached if c.settings[0]["engine"] == engine and c.speed and c.settings[0]["method"] != FULL
        ]
        if full is None or not reduced:
            continue
        judged = [c for c in reduced if c.settings[0]["method"] in grid.methods[1:2]]
        quickest = min(reduced, key=get_microseconds)
        compared_costs = [min(judged, key=get_microseconds)] if judged else []
        for cost in [*compared_costs, *([] if quickest in compared_costs else [quickest])]:
            yield format_comparison(cost, full, target)


def format_comparison(cost: Cost, full: Cost, target: float) -> str:
    """Compare one series with full width in the same engine."""
    setting, speed = cost.settings[0], cost.speed
    faster = speed.value if speed else 1.0
    speed_text = f"{format_ratio(speed)} the queries a second of full width" if speed else ""
    if 1 / MIN_RATIO < faster < MIN_RATIO and speed:
        speed_text = f"as many queries a second as full width ({format_ratio(speed)})"
    memory, built = cost.graph_bytes / full.graph_bytes, cost.build_seconds / full.build_seconds
    is_slower = speed is not None and speed.half is not None and math.log(speed.value) + speed.half < 0
    reason = " There, comparing fewer floats saves less than looking at more candidates costs." if is_slower else ""
    return (
        f"In {setting['engine']} at {target}, {setting['method']} ({cost.setting}) answers {speed_text}, with "
        f"{100 * memory:.0f} % of the memory to search in and {100 * built:.0f} % of the build time.{reason}"
    )


def describe_growth(findings: Findings, grid: Grid, width: int) -> Iterator[str]:
    """Yield how the speed relative to full width changes with the corpus."""
    for target in grid.targets:
        for engine in dict.fromkeys((grid.engines[0], EXACT)):
            full = find_growth(findings, f"{FULL} · {engine}", target)
            for method in grid.methods[1:2]:
                reduced = find_growth(findings, f"{method}, rescored · {engine}", target)
                if full is None or reduced is None:
                    continue
                common_rows = [rows for rows in reduced.measured if rows in full.measured]
                ratios = [f"{full.measured[rows] / reduced.measured[rows]:.2f} × at {rows:,}" for rows in common_rows]
                full_bytes, original_bytes = format_gigabytes(full.far_bytes), HALF_BYTES * width * FAR
                yield (
                    f"Growing, in {engine} at {target}: {method} rescored answers {', '.join(ratios)} the queries a "
                    f"second of full width. Computed for {FAR:,}, if the same oversampling were enough: "
                    f"{format_far_ratio(full, reduced)}, {format_gigabytes(reduced.far_bytes)} to search in instead of "
                    f"{full_bytes}, and {format_gigabytes(original_bytes)} of originals beside."
                )


def describe_depths(findings: Findings, grid: Grid) -> Iterator[str]:
    """Yield how many candidates a reduced space needs as the corpus grows."""
    for depth in (depth for depth in findings.depths if depth.recall):
        for target in grid.targets:
            needed = {
                rows: min((t for t, by_rows in depth.recall.items() if by_rows[rows] >= target), default=None)
                for rows in next(iter(depth.recall.values()))
            }
            far = min((times for times, recall in depth.far_recall.items() if recall >= target), default=None)
            needs = ", ".join(f"{format_oversampling(times)} at {rows:,}" for rows, times in needed.items())
            extrapolation = f"; computed for {FAR:,}: {format_oversampling(far)}" if depth.far_recall else ""
            yield f"{depth.method} must be rescored {needs} to reach {target} by exact search{extrapolation}."


def format_far_ratio(full: Growth, ours: Growth) -> str:
    """Format the computed ratio of speeds for `FAR` rows: both by logarithms, and both by powers."""
    ratios = sorted(f / o for f, o in zip(full.far_microseconds, ours.far_microseconds, strict=True))
    lower, upper = (f"{value:.2f}" for value in ratios)
    return f"{lower} ×" if lower == upper else f"{lower} to {upper} ×"


def find_growth(findings: Findings, series: str, target: float) -> Growth | None:
    """Return a series' growth, or None if it was not measured at enough sizes."""
    return next((g for g in findings.growth if (g.series, g.target) == (series, target)), None)


def format_series(cost: Cost) -> str:
    """Format a cost's method, engine and parameters."""
    setting = cost.settings[0]
    method = "full width" if setting["method"] == FULL else setting["method"]
    return f"{method} in {setting['engine']} ({cost.setting})"


def get_microseconds(cost: Cost) -> float:
    """Return the mean microseconds of a query, for sorting."""
    return cost.microseconds.value


def format_rate(cost: Cost) -> str:
    """Format the queries a second of a cost."""
    return f"{1e6 / cost.microseconds.value:,.0f} queries a second"


def format_originals(cost: Cost) -> str:
    """Format the bytes of the originals that are stored for rescoring, or an empty text without rescoring."""
    return f", with {cost.beside_bytes:,} bytes a vector beside for rescoring" if cost.beside_bytes else ""


def format_ratio(mean: Mean) -> str:
    """Format a ratio with its interval."""
    if mean.half is None:
        return f"{mean.value:.2f} ×"
    factor = math.exp(mean.half)
    return f"{mean.value:.2f} × [{mean.value / factor:.2f}, {mean.value * factor:.2f}]"


def format_oversampling(times: int | None) -> str:
    """Format an oversampling.

    None means that none of those measured is enough.
    """
    if times is None:
        return "deeper than was measured"
    return "not at all" if times == 1 else f"{times} ×"


def format_megabytes(size: float) -> str:
    """Format a number of bytes in megabytes, or in kilobytes below one."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


def format_gigabytes(size: float) -> str:
    """Format a number of bytes in gigabytes."""
    return f"{size / 1e9:,.1f} GB"


def count_points(results: Sequence[dict[str, Any]]) -> str:
    """Describe how many points there are, and how many failed."""
    failures = sum("error" in result for result in results)
    return f"{len(results)} points, {failures} failed" if failures else f"{len(results)} points"
