"""Files of a benchmark's results: raw JSON, CSV, figures, an HTML report, and tables for the terminal."""

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
from benchmarks.ann.findings import Cost, Findings, compute_findings
from benchmarks.ann.frontier import Mean, flatten_settings
from benchmarks.ann.grid import EXACT, Grid, describe_failures
from benchmarks.ann.plots import TITLES, draw_pictures, read_budget
from benchmarks.ann.summary import count_points, format_ratio, summarize_findings
from benchmarks.report import markdown_table, write_report
from lathe.training.reporting.page import Section, render_page
from lathe.training.reporting.tables import Table as ReportTable
from lathe.transforms.files import replace_synced

LIBRARIES = ("hnswlib", "faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "faiss-gpu-cuvs", "numpy", "torch")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_int8", "asimd", "sve")
"""CPU flags of instruction sets that make engines faster."""
FIELDS = (
    "seed,rows,method,dimensions,engine,m,effort,oversampling,recall,recall_p5,index_recall,microseconds,p50,p95,p99,"
    "p99_9,transform_microseconds,rescoring_microseconds,batch_queries_per_second,graph_bytes,resident_bytes,"
    "build_seconds,runs"
).split(",")

Table = list[list[str]]


def write_files(
    out: Path,
    data: Data,
    grid: Grid,
    results: Sequence[dict[str, Any]],
    sizes: Sequence[dict[str, Any]],
    figure: Sequence[dict[str, Any]],
    chains: dict[str, str],
) -> str:
    """Write all files, and return the text for the terminal.

    Args:
        out: folder for the files.
        data: data that was searched.
        grid: grid that was measured.
        results: results of its points.
        sizes: results of `measure_at_equal_bytes`.
        figure: results of `measure_recall_by_dimension`.
        chains: digests of the chains, by method.
    """
    width = int(data.vectors.shape[1])
    findings = compute_findings(results, width, grid.targets, EXACT)
    summary = [*data.notes_as_sentences, *summarize_findings(findings, grid, width)]
    result_tables = build_tables(findings, results, sizes, figure, grid)
    pictures = draw_pictures(results, findings, sizes, figure)
    figures = {
        "data": {"name": data.name, "vectors": len(data.vectors), "width": width, "digest": data.digest},
        "grid": asdict(grid),
        "chains": chains,
        "cpu_flags": list_cpu_flags(),
        "engines": {name: library_version for name in LIBRARIES if (library_version := find_version(name))},
        "sentences": summary,
        "findings": asdict(findings),
        "equal_bytes": list(sizes),
        "figure_1": list(figure),
        "points": list(results),
    }
    raw = write_report(out, "ann", round_figures(figures))
    replace_synced(out / "ann.csv", format_csv(results).encode())
    for name, picture in pictures.items():
        replace_synced(out / f"ann-{name}.svg", picture.encode())
    about = f"{count_points(results)}: {len(data.vectors):,} distinct vectors of {data.name}, {width} floats each."
    section = Section(
        title="Which vectors to search, and in what",
        sentences=summary,
        figures={TITLES[name]: picture for name, picture in pictures.items()},
        tables={title: ReportTable.from_rows(rows) for title, rows in result_tables.items()},
        problems=describe_failures(results),
    )
    page = render_page([section], about, files="ann.json and ann.csv")
    replace_synced(out / "ann.html", page.encode())
    parts = [f"{name}\n\n{markdown_table(rows[0], rows[1:])}" for name, rows in result_tables.items()]
    problems = ["Failed:\n" + "\n".join(describe_failures(results))] if describe_failures(results) else []
    return "\n\n".join([*parts, "\n".join(summary), *problems, f"{raw.parent}: ann.html, ann.json, ann.csv, pictures"])


def build_tables(
    findings: Findings,
    results: Sequence[dict[str, Any]],
    sizes: Sequence[dict[str, Any]],
    figure: Sequence[dict[str, Any]],
    grid: Grid,
) -> dict[str, Table]:
    """Build all tables by their titles, each with its header first."""
    rows = max((cost.rows for cost in findings.costs), default=0)
    result_tables = {
        f"Recall@{grid.k} of {target}, {rows:,} vectors": build_cost_table(
            [c for c in findings.costs if (c.rows, c.target) == (rows, target)]
        )
        for target in grid.targets
    }
    result_tables["Callers at once, at the quickest setting with the lower recall"] = build_caller_table(results, rows)
    if sizes:
        result_tables["Recall at equal bytes a vector, by exact search: alone, rescored 4×, 8×"] = build_size_table(
            sizes
        )
    if findings.growth:
        result_tables["Growth, and ten million computed"] = build_growth_table(findings)
    if figure:
        result_tables["Dimensions (the GeoPres paper's Figure 1), one graph at fixed parameters"] = build_figure_table(
            figure
        )
    return result_tables


def build_cost_table(costs: Sequence[Cost]) -> Table:
    """Build the table of what each series costs at a recall, the fastest first."""
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
                format_ratio(cost.speed) if cost.speed else "–",
                f"{cost.p99.value / 1000:.2f}{format_half_interval(cost.p99)}",
                f"{cost.graph_bytes / 1e6:,.1f}",
                f"{cost.graph_bytes / cost.rows:,.0f}",
                str(cost.beside_bytes or "–"),
                f"{cost.build_seconds:,.1f}",
            ]
        )
    return table


def format_half_interval(mean: Mean) -> str:
    """Format half the interval of a mean in milliseconds, or an empty text for one seed."""
    return "" if mean.half is None else f" ± {mean.half / 1000:.2f}"


def build_caller_table(results: Sequence[dict[str, Any]], rows: int) -> Table:
    """Build the table of queries a second and p99 with several callers at once."""
    measured = [r for r in results if "error" not in r and r["rows"] == rows and r["seed"] == 0]
    counts = [caller["callers"] for caller in measured[0]["concurrency"]["callers"]] if measured else []
    table = [["", "recall", *(f"{count} at once: queries a second, p99 ms" for count in counts)]]
    for result in measured:
        concurrency = result["concurrency"]
        name = f"{result['method']} · {result['engine']}" + (f" M {result['m']}" if result["m"] else "")
        cells = [f"{c['queries_per_second']:,.0f}, {c['p99'] / 1000:.2f}" for c in concurrency["callers"]]
        table.append([name, f"{concurrency['recall']:.3f}", *cells])
    return table


def build_size_table(sizes: Sequence[dict[str, Any]]) -> Table:
    """Build the table of recall of every method at every size, as means over seeds."""
    table = [["bytes", "method", "alone", "rescored 4×", "rescored 8×"]]
    for budget, method in dict.fromkeys((read_budget(row), row["method"]) for row in sizes):
        method_rows = [row for row in sizes if (read_budget(row), row["method"]) == (budget, method)]
        cells = [f"{fmean(row['recall'][times] for row in method_rows):.3f}" for times in method_rows[0]["recall"]]
        table.append([str(method_rows[0]["bytes"]), method, *cells])
    return table


def build_growth_table(findings: Findings) -> Table:
    """Build the table of microseconds by corpus, with the computed values for ten million."""
    sizes = sorted({rows for growth in findings.growth for rows in growth.measured})
    table = [["", "recall", *(f"µs at {rows:,}" for rows in sizes), "time ∝", "ms at 10 M (computed)", "GB"]]
    for growth in findings.growth:
        cells = [f"{growth.measured[rows]:,.0f}" if rows in growth.measured else "–" for rows in sizes]
        far = dict.fromkeys(f"{value / 1000:,.1f}" for value in growth.far_microseconds)
        computed = [f"rows^{growth.exponent:.2f}", " to ".join(far), f"{growth.far_bytes / 1e9:,.1f}"]
        table.append([growth.series, str(growth.target), *cells, *computed])
    return table


def build_figure_table(figure: Sequence[dict[str, Any]]) -> Table:
    """Build the table of recall and latency by dimension, as means over runs."""
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
        group = [row for row in figure if (row["kind"], row["dimensions"]) == (kind, size)]

        def mean(values: list[float]) -> float:
            return sum(values) / len(values)

        recalls = [f"{mean([row[side][k] for row in group]):.3f}" for side in ("index_recall", "recall") for k in ks]
        times = [
            f"{mean([row['microseconds'] for row in group]):,.0f}",
            f"{mean([r['build_seconds'] for r in group]):.1f}",
        ]
        table.append([kind, str(size), *recalls, *times])
    return table


def format_csv(results: Sequence[dict[str, Any]]) -> str:
    """Format every setting of every point as a line of CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flatten_settings(results))
    return text.getvalue()


def round_figures(value: Any) -> Any:
    """Round all floats in a JSON value to six digits.

    Times have no more, and a file of them is half as long.
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {str(key): round_figures(inner) for key, inner in value.items()}
    return [round_figures(inner) for inner in value] if isinstance(value, list | tuple) else value


def list_cpu_flags() -> list[str]:
    """List the flags of this machine's CPU that are in `FLAGS`."""
    path = Path("/proc/cpuinfo")
    lines = (
        [line for line in path.read_text().splitlines() if line.startswith(("flags", "Features"))]
        if path.exists()
        else []
    )
    present = set(lines[0].partition(":")[2].split()) if lines else set()
    return [flag for flag in FLAGS if flag in present]


def find_version(package: str) -> str | None:
    """Return a package's version, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
