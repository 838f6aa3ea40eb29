"""A benchmark written down: raw JSON, CSV, pictures, a page to read, tables for the terminal."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.ann.data import Data
from benchmarks.ann.figure import KS
from benchmarks.ann.findings import Cost, Findings, find
from benchmarks.ann.frontier import Mean, flat
from benchmarks.ann.grid import EXACT, Grid, failed
from benchmarks.ann.plots import TITLES, budget_of, pictures
from benchmarks.ann.words import counted, ratio, sentences
from benchmarks.report import markdown_table, write_report
from lathe.training.reporting.page import Section, render_page
from lathe.training.reporting.tables import Table as ReportTable
from lathe.transforms.files import replace_synced

LIBRARIES = ("hnswlib", "faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "faiss-gpu-cuvs", "numpy", "torch")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_int8", "asimd", "sve")
"""Instructions that engines are quicker with."""
FIELDS = (
    "seed,rows,method,dimensions,engine,m,effort,oversampling,recall,recall_p5,index_recall,microseconds,p50,p95,p99,"
    "p99_9,transform_microseconds,rescoring_microseconds,batch_queries_per_second,graph_bytes,resident_bytes,"
    "build_seconds,runs"
).split(",")

Table = list[list[str]]


def write(
    out: Path,
    data: Data,
    grid: Grid,
    results: Sequence[dict[str, Any]],
    sizes: Sequence[dict[str, Any]],
    figure: Sequence[dict[str, Any]],
    chains: dict[str, str],
) -> str:
    """Write every file; give what the terminal shows.

    Args:
        out: folder.
        data: that was searched.
        grid: that was asked for.
        results: of its points.
        sizes: of `at_equal_bytes`.
        figure: of `recall_by_dimension`.
        chains: digests of the chains, by method.
    """
    width = int(data.vectors.shape[1])
    findings = find(results, width, grid.targets, EXACT)
    said = [*data.notes_as_sentences, *sentences(findings, grid, width)]
    shown = tables(findings, results, sizes, figure, grid)
    drawn = pictures(results, findings, sizes, figure)
    figures = {
        "data": {"name": data.name, "vectors": len(data.vectors), "width": width, "digest": data.digest},
        "grid": asdict(grid),
        "chains": chains,
        "cpu_flags": cpu_flags(),
        "engines": {name: found for name in LIBRARIES if (found := installed(name))},
        "sentences": said,
        "findings": asdict(findings),
        "equal_bytes": list(sizes),
        "figure_1": list(figure),
        "points": list(results),
    }
    raw = write_report(out, "ann", rounded(figures))
    replace_synced(out / "ann.csv", as_csv(results).encode())
    for name, picture in drawn.items():
        replace_synced(out / f"ann-{name}.svg", picture.encode())
    about = f"{counted(results)}: {len(data.vectors):,} distinct vectors of {data.name}, {width} floats each."
    section = Section(
        title="Which vectors to search, and in what",
        sentences=said,
        figures={TITLES[name]: picture for name, picture in drawn.items()},
        tables={title: ReportTable.from_rows(rows) for title, rows in shown.items()},
        problems=failed(results),
    )
    page = render_page([section], about, files="ann.json and ann.csv")
    replace_synced(out / "ann.html", page.encode())
    parts = [f"{name}\n\n{markdown_table(rows[0], rows[1:])}" for name, rows in shown.items()]
    problems = ["Failed:\n" + "\n".join(failed(results))] if failed(results) else []
    return "\n\n".join([*parts, "\n".join(said), *problems, f"{raw.parent}: ann.html, ann.json, ann.csv, pictures"])


def tables(
    findings: Findings,
    results: Sequence[dict[str, Any]],
    sizes: Sequence[dict[str, Any]],
    figure: Sequence[dict[str, Any]],
    grid: Grid,
) -> dict[str, Table]:
    """Every table, its header first."""
    rows = max((cost.rows for cost in findings.costs), default=0)
    found = {
        f"Recall@{grid.k} of {target}, {rows:,} vectors": cost_table(
            [c for c in findings.costs if (c.rows, c.target) == (rows, target)]
        )
        for target in grid.targets
    }
    found["Callers at once, at the quickest setting with the lower recall"] = caller_table(results, rows)
    if sizes:
        found["Recall at equal bytes a vector, by exact search: alone, rescored 4×, 8×"] = size_table(sizes)
    if findings.growth:
        found["Growth, and ten million computed"] = growth_table(findings)
    if figure:
        found["Dimensions (the GeoPres paper's Figure 1), one graph at fixed parameters"] = figure_table(figure)
    return found


def cost_table(costs: Sequence[Cost]) -> Table:
    """What each series costs at a recall, the quickest first."""
    table = [
        [
            "",
            "setting",
            "queries a second",
            "× full width",
            "p99 ms",
            "MB searched",
            "bytes a vector",
            "beside",
            "build s",
        ]
    ]
    for cost in sorted(costs, key=lambda c: c.microseconds.value):
        table.append(
            [
                cost.series,
                cost.setting,
                f"{1e6 / cost.microseconds.value:,.0f}",
                ratio(cost.speed) if cost.speed else "–",
                f"{cost.p99.value / 1000:.2f}{plus_minus(cost.p99)}",
                f"{cost.graph_bytes / 1e6:,.1f}",
                f"{cost.graph_bytes / cost.rows:,.0f}",
                str(cost.beside_bytes or "–"),
                f"{cost.build_seconds:,.1f}",
            ]
        )
    return table


def plus_minus(mean: Mean) -> str:
    """Half the interval of milliseconds."""
    return "" if mean.half is None else f" ± {mean.half / 1000:.2f}"


def caller_table(results: Sequence[dict[str, Any]], rows: int) -> Table:
    """Queries a second and p99 with several callers at once."""
    there = [r for r in results if "error" not in r and r["rows"] == rows and r["seed"] == 0]
    counts = [caller["callers"] for caller in there[0]["concurrency"]["callers"]] if there else []
    table = [["", "recall", *(f"{count} at once: queries a second, p99 ms" for count in counts)]]
    for result in there:
        at = result["concurrency"]
        name = f"{result['method']} · {result['engine']}" + (f" M {result['m']}" if result["m"] else "")
        cells = [f"{c['queries_per_second']:,.0f}, {c['p99'] / 1000:.2f}" for c in at["callers"]]
        table.append([name, f"{at['recall']:.3f}", *cells])
    return table


def size_table(sizes: Sequence[dict[str, Any]]) -> Table:
    """Recall of every method at every size, means over seeds."""
    table = [["bytes", "method", "alone", "rescored 4×", "rescored 8×"]]
    for budget, method in dict.fromkeys((budget_of(row), row["method"]) for row in sizes):
        ours = [row for row in sizes if (budget_of(row), row["method"]) == (budget, method)]
        cells = [f"{fmean(row['recall'][times] for row in ours):.3f}" for times in ours[0]["recall"]]
        table.append([str(ours[0]["bytes"]), method, *cells])
    return table


def growth_table(findings: Findings) -> Table:
    """Microseconds by corpus, and computed for ten million."""
    sizes = sorted({rows for found in findings.growth for rows in found.measured})
    table = [["", "recall", *(f"µs at {rows:,}" for rows in sizes), "time ∝", "ms at 10 M (computed)", "GB"]]
    for found in findings.growth:
        cells = [f"{found.measured[rows]:,.0f}" if rows in found.measured else "–" for rows in sizes]
        far = dict.fromkeys(f"{value / 1000:,.1f}" for value in found.far_microseconds)
        computed = [f"rows^{found.exponent:.2f}", " to ".join(far), f"{found.far_bytes / 1e9:,.1f}"]
        table.append([found.series, str(found.target), *cells, *computed])
    return table


def figure_table(figure: Sequence[dict[str, Any]]) -> Table:
    """Means over runs."""
    ks = [str(k) for k in KS]
    table = [
        [
            "",
            "dimensions",
            *(f"index recall@{k}" for k in ks),
            *(f"end to end @{k}" for k in ks),
            "µs a query",
            "build s",
        ]
    ]
    for kind, size in dict.fromkeys((row["kind"], row["dimensions"]) for row in figure):
        ours = [row for row in figure if (row["kind"], row["dimensions"]) == (kind, size)]

        def mean(values: list[float]) -> float:
            return sum(values) / len(values)

        recalls = [f"{mean([row[side][k] for row in ours]):.3f}" for side in ("index_recall", "recall") for k in ks]
        times = [
            f"{mean([row['microseconds'] for row in ours]):,.0f}",
            f"{mean([r['build_seconds'] for r in ours]):.1f}",
        ]
        table.append([kind, str(size), *recalls, *times])
    return table


def as_csv(results: Sequence[dict[str, Any]]) -> str:
    """A line for every setting of every point."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat(results))
    return text.getvalue()


def rounded(value: Any) -> Any:
    """Figures with six digits: times have no more, and a file of them is half as long."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {str(key): rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def cpu_flags() -> list[str]:
    """Instructions of this machine that engines are quicker with."""
    path = Path("/proc/cpuinfo")
    lines = (
        [line for line in path.read_text().splitlines() if line.startswith(("flags", "Features"))]
        if path.exists()
        else []
    )
    there = set(lines[0].partition(":")[2].split()) if lines else set()
    return [flag for flag in FLAGS if flag in there]


def installed(package: str) -> str | None:
    """A library's version; None without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
