"""Methods at equal bytes a vector, by exact search: what the representation itself keeps, whatever searches it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ann.askers import Rescorer
from benchmarks.ann.data import Numbers, Split, Vectors, nearest
from benchmarks.ann.engines import Faiss
from benchmarks.ann.point import overlap
from benchmarks.ann.spaces import find_space
from lathe.transforms import TransformError
from lathe.transforms.progress import Progress

OVERSAMPLING = (1, 4, 8)
FLOAT_BYTES = 4
BITS = 8
RABITQ_EXTRA = 8
"""Bytes that RaBitQ keeps beside the bits: a norm and a factor."""


def methods_of(size: int, width: int, codes: bool) -> list[str]:
    """Everything that makes so many bytes of a vector of so many floats.

    Args:
        size: bytes.
        width: floats.
        codes: FAISS's own too; OPQ takes minutes to train.
    """
    reducers = ("geopres", "pca", "truncation")
    found = []
    if size % FLOAT_BYTES == 0 and size // FLOAT_BYTES < width:
        found += [f"{kind}:{size // FLOAT_BYTES}" for kind in reducers]
    if size < width:
        found += [f"{kind}:{size},int8" for kind in reducers]
    if size == width:
        found.append("int8")
    if size * BITS == width:
        found += ["binary", *(["RaBitQ"] if codes else [])]
    if codes and width % size == 0 and size * BITS <= width:
        found.append(f"OPQ{size},PQ{size}")
    return found


def at_equal_bytes(
    splits: Sequence[Split], sizes: Sequence[int], k: int, codes: bool, on_progress: Progress
) -> list[dict[str, Any]]:
    """End-to-end recall of every method at every size, for every split.

    Args:
        splits: one for each seed.
        sizes: bytes a vector.
        k: neighbours.
        codes: measure OPQ with PQ, and RaBitQ, too.
        on_progress: told a fraction and a sentence.
    """
    width = splits[0].corpus.shape[1]
    wanted = [(size, method) for size in sizes for method in methods_of(size, width, codes)]
    found: list[dict[str, Any]] = []
    for seed, cut in enumerate(splits):
        truth, originals = nearest(cut.queries, cut.corpus, k), cut.corpus.astype(np.float16)
        for number, (size, method) in enumerate(wanted):
            on_progress((seed + number / len(wanted)) / len(splits), f"{method} in {size} bytes, seed {seed}")
            try:
                candidates = candidates_of(method, cut, seed, k * max(OVERSAMPLING))
            except (TransformError, RuntimeError) as error:  # too few rows to fit or train on: the others go on
                found.append({"seed": seed, "bytes": size, "method": method, "error": str(error)})
                continue
            recalls = {
                str(times): float(
                    overlap(rescored(candidates[:, : k * times], cut.queries, originals, k), truth).mean()
                )
                for times in OVERSAMPLING
            }
            extra = RABITQ_EXTRA if method == "RaBitQ" else 0
            found.append({"seed": seed, "bytes": size + extra, "method": method, "recall": recalls})
    return found


def candidates_of(method: str, cut: Split, seed: int, count: int) -> Numbers:
    """The nearest rows `(q, count)` in a method's own space, found exactly."""
    if method.startswith(("OPQ", "RaBitQ")):
        engine = Faiss(method, 0, seed)
        engine.build(cut.corpus)
        return engine.search(cut.queries, count)
    space = find_space(method, cut.fit, seed)
    return nearest(space.ask(cut.queries), space.reduce(cut.corpus), count)


def rescored(candidates: Numbers, queries: Vectors, originals: NDArray[np.float16], k: int) -> Numbers:
    """The k best `(q, k)` of candidates `(q, c)` by their originals, in no order."""
    rescore = Rescorer(originals, k)
    return np.stack([rescore(query, rows[rows >= 0]) for query, rows in zip(queries, candidates, strict=True)])
