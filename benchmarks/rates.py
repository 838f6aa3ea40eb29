"""Rates that the benchmarks measured, each with the file of `benchmarks/results` and the key that it was read from."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FULL, M = 384, 16
"""Width of the encoder and links of the graphs that were measured."""


@dataclass(frozen=True)
class Rate:
    """A measured figure: its value, the file it was read from, and the key in it."""

    value: float
    file: str
    key: str


def read_rates(folder: Path) -> dict[str, Rate]:
    """Read the measured inputs, by their names."""
    serve, transforms, fit, index, ann = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("serve", "transforms", "fit", "index", "ann")
    )
    cores = re.match(r"(\d+) cores", serve["machine"])
    if cores is None:
        raise ValueError(f"{folder}/serve.json says of its machine {serve['machine']!r}, not how many cores it has")
    rates = {
        dtype: Rate(
            serve["figures"][dtype]["batches"]["lathe"]["median"] / int(cores[1]),
            "serve.json",
            f"{dtype}.batches.lathe.median ÷ {cores[1]} cores",
        )
        for dtype in ("bfloat16", "float32")
    }
    side, threads = "Moments float64, float32 file", transforms["figures"]["threads"]
    microseconds = next(row for row in transforms["figures"]["moments"] if row["side"] == side)["microseconds"]
    rates["moments"] = Rate(microseconds * threads, "transforms.json", f"moments[{side}] × {threads} threads")
    last = max(fit["figures"], key=lambda row: row["texts"])
    trained = last["seconds"] - last["encoding_seconds"]
    rates["trained"] = Rate(trained, "fit.json", f"[{last['texts']} texts].seconds − encoding_seconds")
    record = index["figures"]["filling"]["bytes"]["record"] / index["figures"]["rows"]
    rates["ids"] = Rate(record - 4 * FULL, "index.json", f"filling.bytes.record ÷ rows − {4 * FULL}")
    return rates | read_graph_rates(ann["figures"])


def read_graph_rates(figures: dict[str, Any]) -> dict[str, Rate]:
    """Read the rates of graphs of hnswlib with M 16, as means over the seeds."""
    rates = {}
    for width, method, series in (
        ("full", "none", "none · hnswlib"),
        ("compact", "compact", "compact, rescored · hnswlib"),
    ):
        points = [p for p in figures["points"] if (p["method"], p["engine"], p["m"]) == (method, "hnswlib", M)]
        sizes = sorted({p["rows"] for p in points})
        micros = [1e6 * np.mean([p["build_seconds"] / p["rows"] for p in points if p["rows"] == n]) for n in sizes]
        where = f"points[{method}, hnswlib, M {M}]"
        slope = np.polyfit(np.log(sizes), np.log(micros), 1)[0]
        rates[f"build_{width}"] = Rate(float(micros[-1]), "ann.json", f"{where}.build_seconds ÷ {sizes[-1]} rows")
        rates[f"build_{width}_growth"] = Rate(float(slope), "ann.json", f"{where}.build_seconds at {len(sizes)} sizes")
        if width == "full":
            beside = [(p["resident_bytes"] - p["graph_bytes"]) / p["rows"] for p in points if p["rows"] == sizes[-1]]
            key = f"{where}.(resident_bytes − graph_bytes) ÷ {sizes[-1]} rows"
            rates["beside"] = Rate(float(np.mean(beside)), "ann.json", key)
        growth = next(g for g in figures["findings"]["growth"] if (g["series"], g["target"]) == (series, 0.95))
        max_rows = max(growth["measured"], key=int)
        key = f"findings.growth[{series}, .95]"
        rates[f"search_{width}"] = Rate(growth["measured"][max_rows], "ann.json", f"{key}.measured.{max_rows}")
        rates[f"search_{width}_growth"] = Rate(growth["exponent"], "ann.json", f"{key}.exponent")
    return rates


def list_graphs(figures: dict[str, Any]) -> list[tuple[int, int, float]]:
    """List every graph that was measured at the largest size: its dimensions, M, and bytes of a row."""
    points = [p for p in figures["points"] if p["engine"] == "hnswlib"]
    largest = max(p["rows"] for p in points)
    bytes_by_graph = {(p["dimensions"], p["m"]): p["graph_bytes"] / p["rows"] for p in points if p["rows"] == largest}
    return [(*key, measured) for key, measured in sorted(bytes_by_graph.items())]


def list_recalls(figures: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the recall@10 of each representation by exact search at the largest size, alone and rescored 4 ×."""
    rows = str(max(figures["grid"]["sizes"]))
    recalls = {
        depth["method"]: (depth["recall"]["1"][rows], depth["recall"]["4"][rows])
        for depth in figures["findings"]["depths"]
    }
    for method in dict.fromkeys(row["method"] for row in figures["equal_bytes"]):
        by_seed = [row["recall"] for row in figures["equal_bytes"] if row["method"] == method]
        recalls[method] = (float(np.mean([r["1"] for r in by_seed])), float(np.mean([r["4"] for r in by_seed])))
    return recalls
