"""The GeoPres paper's Figure 1, on three kinds of vectors: what dimensions do to a graph's recall and latency.

The paper shows 20,000 points, 300 queries and five runs, and does not say which vectors. So: normal ones, whose
neighbours get ever harder to tell apart; real ones reduced by GeoPres fitted on others; and real ones turned into more
dimensions by a random isometry, which changes nothing but what a comparison costs.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.ann.data import Data, Vectors, nearest, split
from benchmarks.ann.engines import Hnswlib
from benchmarks.ann.point import WARMING, one_core, overlap
from benchmarks.ann.spaces import find_space
from lathe.transforms.progress import Progress

POINTS, QUERIES, RUNS = 20_000, 300, 5
DIMENSIONS = (16, 32, 64, 128, 192, 256, 384)
WIDER = (768, 1536)
M, EF_CONSTRUCTION, EF = 16, 200, 50
KS = (1, 10, 50)
NORMAL, REDUCED, TURNED = "normal vectors", "reduced by GeoPres", "turned into more dimensions"


def recall_by_dimension(data: Data, runs: int, points: int, on_progress: Progress) -> list[dict[str, Any]]:
    """Index recall, end-to-end recall and latency of every kind at every dimension, run by run."""
    width = data.vectors.shape[1]
    wider = [dimensions for dimensions in WIDER if dimensions > width]
    reduced = [dimensions for dimensions in DIMENSIONS if dimensions < width]
    wanted = [(NORMAL, d) for d in (*DIMENSIONS, *wider)] + [(REDUCED, d) for d in reduced]
    wanted += [(TURNED, d) for d in (width, *wider)]
    found = []
    for run in range(runs):
        cut = split(data, run, points, QUERIES, POINTS // 4, max(KS))
        rng = np.random.default_rng(run)
        for number, (kind, dimensions) in enumerate(wanted):
            on_progress((run + number / len(wanted)) / runs, f"Figure 1, run {run}: {kind}, {dimensions} dimensions")
            corpus, queries, originals = vectors_of(kind, dimensions, cut.corpus, cut.queries, cut.fit, rng, run)
            found.append(
                {"run": run, "kind": kind, "dimensions": dimensions} | searched(corpus, queries, originals, run)
            )
    return found


def vectors_of(
    kind: str, dimensions: int, corpus: Vectors, queries: Vectors, fit: Vectors, rng: np.random.Generator, seed: int
) -> tuple[Vectors, Vectors, tuple[Vectors, Vectors]]:
    """Vectors and queries to search, and those that say which neighbours are the true ones."""
    if kind == NORMAL:
        rows, asked = (rng.normal(size=(len(v), dimensions)).astype(np.float32) for v in (corpus, queries))
        rows, asked = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (rows, asked))
        return rows, asked, (asked, rows)
    if kind == TURNED:
        turn = np.linalg.qr(rng.normal(size=(dimensions, corpus.shape[1])))[0].T.astype(np.float32)
        return np.ascontiguousarray(corpus @ turn), np.ascontiguousarray(queries @ turn), (queries, corpus)
    space = find_space(f"geopres:{dimensions}", fit, seed)
    return space.reduce(corpus), space.ask(queries), (queries, corpus)


def searched(corpus: Vectors, queries: Vectors, originals: tuple[Vectors, Vectors], seed: int) -> dict[str, Any]:
    """What one graph gives at fixed parameters, one query at a time on one thread."""
    graph = Hnswlib(M, EF_CONSTRUCTION, seed)
    rows, times = [], []
    with one_core():
        begun = time.monotonic()
        graph.build(corpus)
        built = time.monotonic() - begun
        graph.set_effort(EF)
        for query in queries[:WARMING]:
            graph.search(query[None], max(KS))
        for query in queries:
            asked = time.perf_counter_ns()
            rows.append(graph.search(query[None], max(KS))[0])
            times.append(time.perf_counter_ns() - asked)
    nearest_here, truly = nearest(queries, corpus, max(KS)), nearest(*originals, max(KS))
    return {
        "index_recall": recalls(rows, nearest_here),
        "recall": recalls(rows, truly),
        "microseconds": float(np.mean(times) / 1000),
        "build_seconds": built,
    }


def recalls(rows: Sequence[Any], truth: Any) -> dict[str, float]:
    """recall@k of the first k, for every k."""
    return {str(k): float(overlap(np.stack(rows)[:, :k], truth[:, :k]).mean()) for k in KS}
