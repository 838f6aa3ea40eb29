"""The GeoPres paper's Figure 1, on three kinds of vectors: recall and latency of a graph by dimensions.

The paper shows 20,000 points, 300 queries and five runs, and does not say which vectors. So three kinds are measured:
normal ones, whose neighbours get ever harder to tell apart; real ones reduced by GeoPres fitted on others; and real
ones mapped into more dimensions by a random isometry, which changes nothing but what a comparison costs.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.ann.data import Data, Vectors, find_nearest, split_rows
from benchmarks.ann.engines import Hnswlib
from benchmarks.ann.point import WARMUP_QUERIES, compute_overlap, pin_to_one_core
from benchmarks.ann.spaces import find_space
from lathe.transforms.progress import Progress

POINTS, QUERIES, RUNS = 20_000, 300, 5
DIMENSIONS = (16, 32, 64, 128, 192, 256, 384)
WIDER = (768, 1536)
M, EF_CONSTRUCTION, EF = 16, 200, 50
KS = (1, 10, 50)
NORMAL, REDUCED, EMBEDDED = "normal vectors", "reduced by GeoPres", "turned into more dimensions"


def measure_recall_by_dimension(data: Data, runs: int, points: int, on_progress: Progress) -> list[dict[str, Any]]:
    """Measure index recall, end-to-end recall and latency of every kind at every dimension, run by run."""
    width = data.vectors.shape[1]
    wider = [dimensions for dimensions in WIDER if dimensions > width]
    reduced = [dimensions for dimensions in DIMENSIONS if dimensions < width]
    conditions = [(NORMAL, d) for d in (*DIMENSIONS, *wider)] + [(REDUCED, d) for d in reduced]
    conditions += [(EMBEDDED, d) for d in (width, *wider)]
    measurements = []
    for run in range(runs):
        cut = split_rows(data, run, points, QUERIES, POINTS // 4, max(KS))
        rng = np.random.default_rng(run)
        for number, (kind, dimensions) in enumerate(conditions):
            on_progress(
                (run + number / len(conditions)) / runs, f"Figure 1, run {run}: {kind}, {dimensions} dimensions"
            )
            corpus, queries, originals = make_vectors(kind, dimensions, cut.corpus, cut.queries, cut.fit, rng, run)
            measurements.append(
                {"run": run, "kind": kind, "dimensions": dimensions} | measure_graph(corpus, queries, originals, run)
            )
    return measurements


def make_vectors(
    kind: str, dimensions: int, corpus: Vectors, queries: Vectors, fit: Vectors, rng: np.random.Generator, seed: int
) -> tuple[Vectors, Vectors, tuple[Vectors, Vectors]]:
    """Make corpus and queries of a kind.

    Returns:
        The corpus, the queries, and the original `(queries, corpus)`, whose neighbours are the true ones.
    """
    if kind == NORMAL:
        rows, query_rows = (rng.normal(size=(len(v), dimensions)).astype(np.float32) for v in (corpus, queries))
        rows, query_rows = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (rows, query_rows))
        return rows, query_rows, (query_rows, rows)
    if kind == EMBEDDED:
        isometry = np.linalg.qr(rng.normal(size=(dimensions, corpus.shape[1])))[0].T.astype(np.float32)
        return np.ascontiguousarray(corpus @ isometry), np.ascontiguousarray(queries @ isometry), (queries, corpus)
    space = find_space(f"geopres:{dimensions}", fit, seed)
    return space.reduce(corpus), space.reduce_queries(queries), (queries, corpus)


def measure_graph(corpus: Vectors, queries: Vectors, originals: tuple[Vectors, Vectors], seed: int) -> dict[str, Any]:
    """Build one graph at fixed parameters, and measure its searches, one query at a time on one thread."""
    graph = Hnswlib(M, EF_CONSTRUCTION, seed)
    rows, times = [], []
    with pin_to_one_core():
        begun = time.monotonic()
        graph.build(corpus)
        built = time.monotonic() - begun
        graph.set_effort(EF)
        for query in queries[:WARMUP_QUERIES]:
            graph.search(query[None], max(KS))
        for query in queries:
            started = time.perf_counter_ns()
            rows.append(graph.search(query[None], max(KS))[0])
            times.append(time.perf_counter_ns() - started)
    nearest_here, truly = find_nearest(queries, corpus, max(KS)), find_nearest(*originals, max(KS))
    return {
        "index_recall": compute_recalls(rows, nearest_here),
        "recall": compute_recalls(rows, truly),
        "microseconds": float(np.mean(times) / 1000),
        "build_seconds": built,
    }


def compute_recalls(rows: Sequence[Any], truth: Any) -> dict[str, float]:
    """Compute recall@k of the first k rows, for each k of `KS`."""
    return {str(k): float(compute_overlap(np.stack(rows)[:, :k], truth[:, :k]).mean()) for k in KS}
