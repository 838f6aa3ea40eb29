"""Methods at equal bytes a vector, by exact search.

This measures what the representation itself retains, whatever engine searches it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ann.data import Numbers, Split, Vectors, find_nearest
from benchmarks.ann.engines import Faiss
from benchmarks.ann.point import compute_overlap
from benchmarks.ann.searches import Rescorer
from benchmarks.ann.spaces import find_space
from lathe.transforms import TransformError
from lathe.transforms.progress import Progress

OVERSAMPLING = (1, 4, 8)
FLOAT_BYTES = 4
BITS = 8
RABITQ_EXTRA = 8
"""Bytes that RaBitQ stores besides the bits: a norm and a factor."""


def list_methods(size: int, width: int, codes: bool) -> list[str]:
    """List the methods that make vectors of a size.

    Args:
        size: bytes of a vector.
        width: dimensions of the originals.
        codes: whether to list FAISS's codes too; OPQ takes minutes to train.
    """
    reducers = ("geopres", "pca", "truncation")
    methods = []
    if size % FLOAT_BYTES == 0 and size // FLOAT_BYTES < width:
        methods += [f"{kind}:{size // FLOAT_BYTES}" for kind in reducers]
    if size < width:
        methods += [f"{kind}:{size},int8" for kind in reducers]
    if size == width:
        methods.append("int8")
    if size * BITS == width:
        methods += ["binary", *(["RaBitQ"] if codes else [])]
    if codes and width % size == 0 and size * BITS <= width:
        methods.append(f"OPQ{size},PQ{size}")
    return methods


def measure_at_equal_bytes(
    splits: Sequence[Split], sizes: Sequence[int], k: int, codes: bool, on_progress: Progress
) -> list[dict[str, Any]]:
    """Measure end-to-end recall of every method at every size, for every split.

    Args:
        splits: a split for each seed.
        sizes: bytes of a vector.
        k: number of neighbours.
        codes: whether to measure OPQ with PQ, and RaBitQ, too.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        Rows with the keys `seed`, `bytes` and `method`, and `recall` by oversampling or `error`.
    """
    width = splits[0].corpus.shape[1]
    conditions = [(size, method) for size in sizes for method in list_methods(size, width, codes)]
    measurements: list[dict[str, Any]] = []
    for seed, seed_split in enumerate(splits):
        truth, originals = find_nearest(seed_split.queries, seed_split.corpus, k), seed_split.corpus.astype(np.float16)
        for number, (size, method) in enumerate(conditions):
            on_progress((seed + number / len(conditions)) / len(splits), f"{method} in {size} bytes, seed {seed}")
            try:
                candidates = find_candidates(method, seed_split, seed, k * max(OVERSAMPLING))
            except (TransformError, RuntimeError) as error:  # too few rows to fit or train on: the others go on
                measurements.append({"seed": seed, "bytes": size, "method": method, "error": str(error)})
                continue
            recalls = {
                str(times): float(
                    compute_overlap(
                        rescore_candidates(candidates[:, : k * times], seed_split.queries, originals, k), truth
                    ).mean()
                )
                for times in OVERSAMPLING
            }
            extra = RABITQ_EXTRA if method == "RaBitQ" else 0
            measurements.append({"seed": seed, "bytes": size + extra, "method": method, "recall": recalls})
    return measurements


def find_candidates(method: str, cut: Split, seed: int, count: int) -> Numbers:
    """Search exactly for the nearest rows `(q, count)` in a method's own space."""
    if method.startswith(("OPQ", "RaBitQ")):
        engine = Faiss(method, 0, seed)
        engine.build(cut.corpus)
        return engine.search(cut.queries, count)
    space = find_space(method, cut.fit, seed)
    return find_nearest(space.reduce_queries(cut.queries), space.reduce(cut.corpus), count)


def rescore_candidates(candidates: Numbers, queries: Vectors, originals: NDArray[np.float16], k: int) -> Numbers:
    """Return the k best `(q, k)` of candidates `(q, c)` by their originals, in no order."""
    rescore = Rescorer(originals, k)
    return np.stack([rescore(query, rows[rows >= 0]) for query, rows in zip(queries, candidates, strict=True)])
