"""Exact comparison of queries with rows: search of all rows in blocks, and rescoring of candidates.

Exact search is used while there is no graph, for rows that the graph lacks, and for filters that few rows satisfy.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.training.settings import Metric

BLOCK_ENTRIES = 2**23
"""Default number of scores held in memory at once: 32 MB."""

SearchResult = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Row numbers `(q, k)` and their scores, best first; padded with row −1 and score −inf."""


class _OriginalVectors(Protocol):
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
    """Return the numbers and scores, each `(q, k)`, of the k best rows for each query, after comparing all given rows.

    Args:
        queries: reduced queries `(q, d)`.
        vectors: all rows `(n, width)`, floats or codes.
        rows: rows to compare with, as ascending numbers or a slice.
        allowed: mask `(n,)` of the rows that may be returned; None for all.
        k: number of rows per query.
        score: function that compares queries with rows.
        block_entries: maximum number of scores held in memory at once.
    """
    compared = np.arange(len(vectors))[rows] if isinstance(rows, slice) else rows
    query_tensor = torch.from_numpy(np.require(queries, requirements=["C", "W"]))
    best = empty_results(len(queries), k)
    # Bounds the scores in memory. A block has at least k rows, because k results of each block are merged.
    step = max(k, block_entries // max(len(queries), 1), 1)

    for start in range(0, len(compared), step):
        numbers = compared[start : start + step]
        # Basic slicing does not copy the block, indexing by an array does.
        block = vectors[numbers[0] : numbers[-1] + 1] if isinstance(rows, slice) else vectors[numbers]
        scores = score(query_tensor, block)
        if allowed is not None:
            scores.masked_fill_(torch.from_numpy(~allowed[numbers]), -torch.inf)

        positions = _find_best(scores, min(k, len(numbers)))
        values = scores.gather(1, positions).numpy()
        block_rows = numbers[positions.numpy()]
        block_rows[np.isneginf(values)] = -1
        best = merge_results(best, (block_rows, values), k)
    return best


def _find_best(scores: Tensor, k: int) -> Tensor:
    """Return the positions `(q, k)` of the k highest of each query's scores `(q, n)`, in no order.

    Of equal scores the first are taken, so that more results continue fewer ones.
    """
    values, positions = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    if not k or values.shape[1] == k:
        return positions[:, :k]
    # topk takes any of the rows that share the last score.
    tied = (values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)
    for query in tied.nonzero()[:, 0].tolist():
        last = values[query, k - 1]
        above = (scores[query] > last).nonzero()[:, 0]
        equal = (scores[query] == last).nonzero()[:, 0]
        positions[query, :k] = torch.cat([above, equal[: k - len(above)]])
    return positions[:, :k]


def merge_results(first: SearchResult, second: SearchResult, k: int) -> SearchResult:
    """Merge two search results of the same queries into the k best, row numbers and scores `(q, k)`."""
    rows = np.concatenate([first[0], second[0]], axis=1)
    scores = np.concatenate([first[1], second[1]], axis=1)
    return rank_rows(rows, scores, k)


def rank_rows(rows: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> SearchResult:
    """Sort each query's rows `(q, c)` by score, and return the numbers and scores, each `(q, k)`, of the k best.

    Rows with equal scores are sorted by their numbers.
    """
    # `lexsort` takes the last key first: the score, then the row number among equal scores.
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    if len(rows) == 1:  # the usual case of one query needs no array of query numbers
        return rows[:, order[0]], scores[:, order[0]]
    queries = np.arange(len(rows))[:, None]
    return rows[queries, order], scores[queries, order]


def empty_results(queries: int, k: int) -> SearchResult:
    """Return an empty search result `(queries, k)`, filled with row −1 and score −inf."""
    return np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32)


def rescore(
    queries: NDArray[np.float32], originals: _OriginalVectors, candidates: NDArray[np.int64], k: int, metric: Metric
) -> SearchResult:
    """Rank each query's candidate rows by their original vectors, and return the k best, numbers and scores `(q, k)`.

    Args:
        queries: original query vectors `(q, d)`, normalized for cosine.
        originals: original vectors of all rows, `(n, d)` float16, in memory or in a file.
        candidates: row numbers `(q, c)`; −1 for none.
        k: number of rows to keep.
        metric: scores are inner products, or negated Euclidean distances for l2.
    """
    # One pass in the order of the file: a page is read once, whichever queries share it.
    candidates = np.sort(candidates, axis=1)
    rows, positions = np.maximum(candidates[:1], 0)[0], [slice(None)]
    if len(candidates) > 1:
        rows, inverse = np.unique(np.maximum(candidates, 0), return_inverse=True)
        positions = list(inverse.reshape(candidates.shape))  # of each query's candidates in `rows`
    vectors = torch.from_numpy(originals[rows]).float().numpy()  # several times as fast as NumPy's conversion

    scores = np.empty(candidates.shape, np.float32)
    if metric == "cosine":  # in float16 their lengths are not quite 1
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    for query, position, query_scores in zip(queries, positions, scores, strict=True):
        compared = vectors[position]
        query_scores[:] = -np.linalg.norm(compared - query, axis=1) if metric == "l2" else compared @ query
    scores[candidates < 0] = -np.inf
    return rank_rows(candidates, scores, k)
