"""Rates on one thread beside FAISS: vectors encoded in a second, and codes scored in a second."""

import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.codes.methods import Vectors
from lathe.transforms import TransformCoding

CODES = 100_000
"""Number of codes that are scored."""
TIMES = 3
"""Repetitions, of which the fastest counts, because others use the machine too."""


def measure_rates(vectors: Vectors, budgets: list[int]) -> list[dict[str, Any]]:
    """Time encoding and scoring at each budget, for one query and for 100 at a time.

    Rates are per second.
    """
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    corpus = np.resize(vectors, (CODES, vectors.shape[1]))
    single, many = corpus[:1], corpus[:100]
    rows = []
    for budget in budgets:
        step = TransformCoding(budget).fit(vectors)
        codes = step.transform(corpus)
        factors = step.norm_factors(codes)
        rates = {
            "encode": CODES / _seconds(step.transform, corpus),
            "decode": CODES / _seconds(step.inverse_transform, codes),
            "score, 1 query, tables": CODES / _seconds(step.score, single, codes, factors),
            "score, 100 queries": 100 * CODES / _seconds(step.score, many, codes, factors),
        }
        if _holds_whole_coordinates(step):
            product, encoded = _as_faiss(step, codes), _padded_queries(step, many)
            rates["FAISS scans our codes, 1 query"] = CODES / _seconds(product.search, encoded[:1], 10)
            rates["FAISS scans our codes, 100 queries"] = 100 * CODES / _seconds(product.search, encoded, 10)
        dimensions = min(8 * (budget - 8), vectors.shape[1])
        part = np.ascontiguousarray(corpus[:, :dimensions])
        for name, index in {
            "RaBitQ": faiss.IndexRaBitQ(dimensions, faiss.METRIC_L2, 1),
            "RaBitQFastScan": faiss.IndexRaBitQFastScan(dimensions, faiss.METRIC_L2),
        }.items():
            index.train(part)
            index.add(part)
            size = index.sa_code_size()
            rates[f"{name} of {size} bytes, 1 query"] = CODES / _seconds(index.search, part[:1], 10)
            rates[f"{name} of {size} bytes, 100 queries"] = 100 * CODES / _seconds(index.search, part[:100], 10)
        rows.append({"budget": budget, "coordinates": step.learned_directions, "per_second": rates})
    return rows


def _holds_whole_coordinates(step: TransformCoding) -> bool:
    """Return whether no coordinate crosses a byte, so that FAISS can scan the codes."""
    return not bool((step.layout[0] + step.layout[2] > 8).any())


def _as_faiss(step: TransformCoding, codes: Any) -> "faiss.IndexPQ":
    """Return FAISS's index of product-quantizer codes with our tables and codes."""
    centroids, _ = step.product_centroids()
    index = faiss.IndexPQ(8 * step.bytes, step.bytes, 8, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(centroids.numpy().ravel(), index.pq.centroids)
    index.is_trained = True
    index.add_sa_codes(codes)
    return index


def _padded_queries(step: TransformCoding, queries: Vectors) -> Vectors:
    """Return encoded queries with every coordinate at its place in FAISS's vectors, `(a, 8·bytes)`."""
    _, place = step.product_centroids()
    padded = np.zeros((len(queries), 8 * step.bytes), np.float32)
    padded[:, place.numpy()] = step.encode_queries(queries)[:, :-1]
    return padded


def _seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of the fastest of some calls, after one that does not count."""
    work(*arguments)
    durations = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        work(*arguments)
        durations.append(time.perf_counter() - begun)
    return min(durations)
