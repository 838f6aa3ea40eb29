"""Rates on one thread beside FAISS: vectors encoded and decoded in a second, and codes scored in a second."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.codes.data import HalvedSearch
from benchmarks.codes.measure import CANDIDATES, K
from benchmarks.codes.methods import Ids, Vectors, rank_best
from lathe.transforms import ProductCoding, TransformCoding

CODES, QUERIES = 100_000, 100
"""Number of codes that are scored, and of queries at a time."""
ENCODED = 2048
"""Number of vectors that are encoded."""
TIMES = 5
"""Repetitions, alternating with what is compared, of which the fastest counts, because others use the machine too."""


def measure_rates(data: HalvedSearch, budgets: Sequence[int]) -> list[dict[str, Any]]:
    """Time encoding with and without the adjustment of levels, decoding, and scoring, at each budget.

    Returns:
        For each budget the vectors or codes a second, and recall@10 of the scans that FAISS has in registers.
    """
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rows, queries = data.searched, data.queries
    nearest = rank_best(queries @ rows.T, K)
    corpus, asked = np.resize(rows, (CODES, rows.shape[1])), np.resize(queries, (QUERIES, rows.shape[1]))
    found = []
    for budget in budgets:
        rates = measure_encoding(data, budget)
        step = TransformCoding(budget).fit(data.fitted)
        codes = step.transform(corpus)
        scans: dict[str, Callable[[], Any]] = {
            "codes, in Lathe": partial(step.score, asked, codes, step.norm_factors(codes))
        }
        if not bool((step.layout[0] + step.layout[2] > 8).any()):
            scans["codes, FAISS IndexPQ"] = partial(_as_faiss(step, codes, 8).search, _pad_queries(step, asked, 1), K)
        recalls = {}
        for bits in (1, 2):
            equal = TransformCoding(min(budget, rows.shape[1] * bits // 8), bits=bits, rotation="random")
            equal.fit(data.fitted)
            name = f"codes of {bits} bits for each rotated axis, {equal.bytes} bytes"
            fast = _as_fast_scan(equal, equal.transform(corpus))
            scans[f"{name}, FastScan"] = partial(fast.search, _pad_queries(equal, asked, 2), K)

            small = equal.transform(rows)
            fast = _as_fast_scan(equal, small)
            ids = fast.search(_pad_queries(equal, queries, 2), CANDIDATES)[1]
            scores = equal.score(queries, small)
            again = np.take_along_axis(ids, rank_best(np.take_along_axis(scores, ids, 1), K), 1)
            recalls[name] = _recall(rank_best(scores, K), nearest)
            recalls[f"{name}, FastScan"] = _recall(ids[:, :K], nearest)
            recalls[f"{name}, FastScan, {CANDIDATES} ranked again by the codes"] = _recall(again, nearest)
        for name, index in _list_rivals(rows.shape[1], budget).items():
            index.train(data.fitted)
            index.add(rows)
            recalls[name] = _recall(index.search(queries, K)[1], nearest)
            index.reset()
            index.add(corpus)
            scans[name] = partial(index.search, asked, K)
        rates |= {name: QUERIES * CODES / seconds for name, seconds in _seconds(scans).items()}
        found.append({"budget": budget, "per_second": rates, "recall_at_10": recalls})
        print(budget, {name: f"{rate:,.0f}" for name, rate in rates.items()}, recalls, flush=True)
    return found


def measure_encoding(data: HalvedSearch, budget: int) -> dict[str, float]:
    """Return the vectors a second that both kinds of codes encode, with and without adjustment, and decode."""
    rows = np.resize(data.searched, (ENCODED, data.searched.shape[1]))
    work: dict[str, Callable[[], Any]] = {}
    for kind in (TransformCoding, ProductCoding):
        for name, adjust in (("not adjusted", False), ("adjusted", True)):
            step = kind(budget, adjust_levels=adjust).fit(data.fitted)
            work[f"{kind.kind}, encode, {name}"] = partial(step.transform, rows)
        codes = step.transform(rows)
        work[f"{kind.kind}, decode"] = partial(step.inverse_transform, codes)
    return {name: ENCODED / seconds for name, seconds in _seconds(work).items()}


def _list_rivals(dimensions: int, budget: int) -> dict[str, Any]:
    """Return FAISS's indexes of 1-bit RaBitQ, and of OPQ with 16 centroids, whose tables fit registers."""
    kept = min(8 * (budget - 8), dimensions)
    width = -(-dimensions // (2 * budget)) * 2 * budget
    rotation = faiss.OPQMatrix(dimensions, 2 * budget, width)
    rotation.niter = 4
    fast = faiss.IndexPQFastScan(width, 2 * budget, 4, faiss.METRIC_INNER_PRODUCT)
    scans = {"FAISS OPQ of 4 bits, FastScan": faiss.IndexPreTransform(rotation, fast)}
    for name, index in {
        "FAISS RaBitQ of 1 bit": faiss.IndexRaBitQ(kept, faiss.METRIC_L2, 1),
        "FAISS RaBitQ of 1 bit, FastScan": faiss.IndexRaBitQFastScan(kept, faiss.METRIC_L2),
    }.items():
        scans[name] = faiss.IndexPreTransform(faiss.PCAMatrix(dimensions, kept, 0, True), index)
    return scans


def _as_faiss(step: TransformCoding, codes: Any, bits: int) -> "faiss.IndexPQ":
    """Return FAISS's index of product-quantizer codes with our tables and codes.

    With 4 bits, each half of a byte is a code of its own, for which the bits of the other half are zero: that changes
    all scores of a query by the same amount. It needs coordinates that lie within a half.
    """
    centroids = step.product_centroids()[0].numpy()
    if bits == 4:
        centroids = np.stack([centroids[:, :16], centroids[:, ::16]], axis=1)
    parts = step.bytes * 8 // bits
    index = faiss.IndexPQ(8 * parts, parts, bits, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.ascontiguousarray(centroids).ravel(), index.pq.centroids)
    index.is_trained = True
    index.add_sa_codes(codes)
    return index


def _as_fast_scan(step: TransformCoding, codes: Any) -> "faiss.IndexPQFastScan":
    """Return FAISS's index that scans tables of 16 entries in registers, with our tables and codes."""
    return faiss.IndexPQFastScan(_as_faiss(step, codes, 4))  # type: ignore[arg-type]  # faiss's types know one of two


def _pad_queries(step: TransformCoding, queries: Vectors, copies: int) -> Vectors:
    """Return encoded queries with every coordinate at its places in FAISS's vectors, `(a, 8 · bytes · copies)`."""
    place = step.product_centroids()[1].numpy()
    padded = np.zeros((len(queries), step.bytes, copies, 8), np.float32)
    padded[:, place // 8, :, place % 8] = step.encode_queries(queries)[:, :-1].T[:, :, None]
    return padded.reshape(len(queries), -1)


def _recall(ids: Ids, nearest: Ids) -> float:
    """Return the share of the nearest that was found."""
    return float((ids[:, :, None] == nearest[:, None]).any(axis=1).mean())


def _seconds(work: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the processor's seconds of the fastest of some alternating calls of each. The first does not count."""
    durations: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(TIMES + 1):
        for name, call in work.items():
            begun = time.thread_time()
            call()
            durations[name].append(time.thread_time() - begun)
    return {name: min(seconds[1:]) for name, seconds in durations.items()}
