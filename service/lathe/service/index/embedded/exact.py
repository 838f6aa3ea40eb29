"""Exact search in blocks of rows, used while there is no graph and for selective filters; and rescoring."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.service.index.spec import Metric

BLOCK_ENTRIES = 2**23
"""Default number of scores held in memory at once: 32 MB."""

SearchResult = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Row numbers `(q, k)` and their scores, best first; padded with row −1 and score −inf."""


class OriginalVectors(Protocol):
    """Original vectors of all rows: an array, or a file of rows."""

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the vectors of rows, `(n, d)`."""


Scorer = Callable[[Tensor, NDArray[Any]], Tensor]
"""Function that returns the scores `(q, n)`, higher is nearer, of queries `(q, d)` with rows `(n, width)`."""


def search_exactly(
    queries: NDArray[np.float32],
    vectors: NDArray[Any],
    rows: NDArray[np.int64] | slice,
    allowed: NDArray[np.bool_] | None,
    k: int,
    score: Scorer,
    block_entries: int = BLOCK_ENTRIES,
) -> SearchResult:
    """Return the k best of the given rows for each query, with scores, by comparing the queries with every row.

    Args:
        queries: `(q, d)`.
        vectors: all rows `(n, width)`, floats or codes.
        rows: rows to compare with, as ascending numbers or a slice.
        allowed: mask `(n,)` of the rows that may be returned; None for all.
        k: number of rows per query.
        score: compares queries with rows.
        block_entries: maximum number of scores held in memory at once.
    """
    compared = np.arange(len(vectors))[rows] if isinstance(rows, slice) else rows
    q = torch.from_numpy(np.require(queries, requirements=["C", "W"]))
    best = empty_results(len(queries), k)
    step = max(k, block_entries // max(len(queries), 1), 1)
    for start in range(0, len(compared), step):
        part = compared[start : start + step]
        block = vectors[part[0] : part[-1] + 1] if isinstance(rows, slice) else vectors[part]
        scores = score(q, block)
        if allowed is not None:
            scores.masked_fill_(torch.from_numpy(~allowed[part]), -torch.inf)
        values, positions = scores.topk(min(k, len(part)), dim=1)
        numbers = part[positions.numpy()]
        numbers[np.isneginf(values.numpy())] = -1
        best = merge_results(best, (numbers, values.numpy()), k)
    return best


def merge_results(one: SearchResult, other: SearchResult, k: int) -> SearchResult:
    """Return the k best rows of two search results, query by query."""
    rows = np.concatenate([one[0], other[0]], axis=1)
    scores = np.concatenate([one[1], other[1]], axis=1)
    return rank_rows(rows, scores, k)


def rank_rows(rows: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> SearchResult:
    """Return the k best of each query's rows `(q, c)` by their scores, best first; the earlier of equal ones."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    if len(rows) == 1:
        return rows[:, order[0]], scores[:, order[0]]
    queries = np.arange(len(rows))[:, None]
    return rows[queries, order], scores[queries, order]


def empty_results(queries: int, k: int) -> SearchResult:
    """Return an empty search result `(queries, k)`, filled with row −1 and score −inf."""
    return np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32)


def rescore(
    queries: NDArray[np.float32], originals: OriginalVectors, candidates: NDArray[np.int64], k: int, metric: Metric
) -> SearchResult:
    """Rank the candidates of each query by the original vectors, and return the k best with their scores.

    Args:
        queries: original query vectors `(q, d)`, normalized for cosine.
        originals: original vectors of all rows, `(n, d)` float16, in memory or in a file.
        candidates: row numbers `(q, c)`; −1 for none.
        k: number of rows to keep.
        metric: scores are inner products, or negated Euclidean distances for l2.
    """
    # One pass in the order of the file: a page is read once, whichever queries share it.
    candidates = np.sort(candidates, axis=1)
    wanted, places = np.maximum(candidates[:1], 0)[0], [slice(None)]
    if len(candidates) > 1:
        wanted, inverse = np.unique(np.maximum(candidates, 0), return_inverse=True)
        places = list(inverse.reshape(candidates.shape))
    vectors = torch.from_numpy(originals[wanted]).float().numpy()  # several times as fast as NumPy's conversion
    scores = np.empty(candidates.shape, np.float32)
    for query, place, row in zip(queries, places, scores, strict=True):
        found = vectors[place]
        row[:] = -np.linalg.norm(found - query, axis=1) if metric == "l2" else found @ query
    scores[candidates < 0] = -np.inf
    return rank_rows(candidates, scores, k)
