"""Benchmark of the linear algebra: moments against scikit-learn and NumPy, folding against one product, metrics."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.sources.source import open_source
from lathe.transforms import R2, Chain, GeoPres, Moments, Normalize

METRICS = """
import json, sys, time
import numpy as np, torch
torch.set_num_threads(int(sys.argv[3]))
from lathe import transforms
def peak_kb():  # not ru_maxrss, which a process inherits from the one that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

rng = np.random.default_rng(0)
before = rng.standard_normal((int(sys.argv[2]), 384), dtype=np.float32)
after = before[:, :128].copy()
held = peak_kb()
begun = time.monotonic()
getattr(transforms, sys.argv[1])(before, after)
seconds = time.monotonic() - begun
print(json.dumps({"seconds": seconds, "mb": (peak_kb() - held) / 1024}))
"""


def main() -> None:
    """Measure, print the tables, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of every side")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    vectors = load_vectors(1000 if arguments.quick else 8000)
    figures = {
        "threads": arguments.threads,
        "moments": measure_moments(8192 if arguments.quick else 40_960, repeats=2 if arguments.quick else 7),
        "float32_error": measure_float32_error(vectors),
        "folding": measure_folding(repeats=20 if arguments.quick else 200),
        "metrics": measure_metrics(2000 if arguments.quick else 20_000, arguments.threads),
    }
    print_figures(figures)
    print("raw figures:", write_report(arguments.out, "transforms", figures), file=sys.stderr)


def load_vectors(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Encode the built-in texts `(n, 384)`."""
    texts = [t for batch in open_source("pydoc:").batches() for t in batch.values if isinstance(t, str)]
    return Encoder(DEFAULT_ENCODER).encode(texts[:count]).vectors


def measure_moments(n: int, repeats: int, d: int = 768, batch: int = 4096) -> list[dict[str, Any]]:
    """Measure the microseconds of a row on every side, alternating, as medians over the repeats.

    The rows are float32 in memory and in a file; `np.cov` gets them as float64, without the cost of making that copy.
    """
    from sklearn.decomposition import IncrementalPCA

    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((n, d)) + 0.3).astype(np.float32)
    exact = rows.astype(np.float64)
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for dtype in (np.float32, np.float16):
            path = Path(folder) / f"{np.dtype(dtype).name}.npy"
            np.save(path, rows.astype(dtype))
            files[np.dtype(dtype).name] = np.load(path, mmap_mode="r")
        sides: dict[str, Callable[[], Any]] = {
            "scikit-learn IncrementalPCA, batch 4096": lambda: IncrementalPCA(batch_size=batch).fit(rows),
            "NumPy cov of a float64 array": lambda: np.cov(exact.T),
            "NumPy centred product of a float64 array": lambda: compute_centred_product(exact),
            "Moments float64": lambda: Moments.from_vectors(rows),
            "Moments float64, float32 file": lambda: Moments.from_vectors(files["float32"]),
            "Moments float64, float16 file": lambda: Moments.from_vectors(files["float16"]),
            "Moments float32": lambda: Moments.from_vectors(rows, precision="float32"),
        }
        return time_alternating(sides, repeats, per=n)


def compute_centred_product(rows: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Compute the covariance as a NumPy user writes it, for which BLAS computes one triangle only."""
    centred = rows - rows.mean(0)
    return np.asarray(centred.T @ centred / (len(rows) - 1))


def measure_float32_error(vectors: np.ndarray[Any, np.dtype[np.float32]]) -> dict[str, float]:
    """Measure the largest error of a covariance in the fast mode, relative to √(C_ii C_jj), near and far from zero."""
    errors = {}
    for name, rows in (("embeddings", vectors), ("mean 1e4 × the spread", vectors * 1.0 + 1e4 * vectors.std())):
        exact = Moments.from_vectors(rows).covariance()
        scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
        scale[scale < 1e-12 * scale.max()] = np.inf  # directions without variance have nothing to be relative to
        fast = Moments.from_vectors(rows, precision="float32").covariance()
        errors[name] = float((np.abs(fast - exact) / scale).max())
    return errors


def measure_folding(repeats: int) -> list[dict[str, Any]]:
    """Time r2 → normalize → geopres → normalize, folded, against one product and one normalisation."""
    figures = []
    for d, k in ((384, 128), (768, 256), (1024, 256), (4096, 512)):
        generator = torch.Generator().manual_seed(0)
        rows = functional.normalize(torch.randn(4096, d, generator=generator) + 0.3)
        chain = Chain([R2(), Normalize(), GeoPres(k, steps=0)]).fit(rows)
        folded = chain.fold()
        weight = next(iter(folded.buffers()))
        for n in (32, 256, 4096):
            batch = rows[:n].clone()
            with torch.inference_mode():
                sides = time_alternating(
                    {
                        "product": lambda batch=batch, weight=weight: functional.normalize(  # type: ignore[misc]
                            functional.linear(batch, weight), dim=-1
                        ),
                        "folded": lambda batch=batch, folded=folded: folded(batch),  # type: ignore[misc]
                        "unfolded": lambda batch=batch, chain=chain: chain(batch),  # type: ignore[misc]
                    },
                    max(10, repeats * 256 // max(n, 256)),
                    per=1,
                )
                difference = float((folded(batch) - chain(batch)).abs().max())
            product, folded_us, unfolded = (side["microseconds"] for side in sides)
            figures.append(
                {"from": d, "to": k, "rows": n, "product_us": product, "folded_us": folded_us, "unfolded_us": unfolded}
                | {"ratio": folded_us / product, "difference": difference}
            )
    return figures


def measure_metrics(n: int, threads: int) -> list[dict[str, Any]]:
    """Measure seconds, and megabytes above the vectors themselves, of each metric in a process of its own."""
    figures = []
    for name in ("local_spearman", "pearson_compat", "recall_at_k", "positional_stress", "angular_stress"):
        command = [sys.executable, "-c", METRICS, name, str(n), str(threads)]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        figures.append({"metric": name, "rows": n} | json.loads(ended.stdout))
    return figures


def time_alternating(sides: dict[str, Callable[[], Any]], repeats: int, per: int) -> list[dict[str, Any]]:
    """Return the median times of the sides, which alternate so that disturbances of the machine affect all alike.

    The first round warms up.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, run in sides.items():
            begun = time.perf_counter()
            run()
            if turn:
                times[name].append((time.perf_counter() - begun) * 1e6 / per)
    return [
        {"side": name, "microseconds": statistics.median(values), "low": min(values), "high": max(values)}
        for name, values in times.items()
    ]


def print_figures(figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    sides = figures["moments"]
    slowest = sides[0]["microseconds"]
    rows = [[s["side"], f"{s['microseconds']:.2f}", f"{slowest / s['microseconds']:.1f} ×"] for s in sides]
    print(markdown_table(["768 dimensions", "µs a row", "faster than the first"], rows), "\n")
    print("error of float32 moments:", figures["float32_error"], "\n")
    header = ["from", "to", "rows", "product + normalise µs", "folded µs", "ratio", "unfolded µs"]
    rows = [
        [str(f["from"]), str(f["to"]), str(f["rows"]), f"{f['product_us']:.0f}", f"{f['folded_us']:.0f}"]
        + [f"{f['ratio']:.2f}", f"{f['unfolded_us']:.0f}"]
        for f in figures["folding"]
    ]
    print(markdown_table(header, rows), "\n")
    rows = [[m["metric"], f"{m['rows']:,}", f"{m['seconds']:.1f}", f"{m['mb']:.0f}"] for m in figures["metrics"]]
    print(markdown_table(["metric", "rows", "seconds", "MB above the vectors"], rows))


if __name__ == "__main__":
    main()
