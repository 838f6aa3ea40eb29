"""Exact search, in blocks: what serves while there is no graph, and behind selective filters."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from service.index.spec import Metric

BLOCK_ENTRIES = 2**23
"""Scores held at once, by default: 32 MB."""

Found = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows `(q, k)` and their scores, best first; row −1 with score −inf where there are fewer than k."""


def exact_search(
    queries: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64] | slice,
    allowed: NDArray[np.bool_] | None,
    k: int,
    metric: Metric,
    block_entries: int = BLOCK_ENTRIES,
) -> Found:
    """Return the k best of some rows.

    Args:
        queries: `(q, d)`.
        vectors: `(n, d)`, all rows.
        rows: which to look at: numbers, or a slice.
        allowed: `(n,)` marks of rows that may be found; None for all.
        k: how many.
        metric: scores are inner products, or Euclidean distances negated.
        block_entries: scores that are held at once.
    """
    among = np.arange(len(vectors))[rows] if isinstance(rows, slice) else rows
    q = torch.from_numpy(np.require(queries, requirements=["C", "W"]))
    best = nothing(len(queries), k)
    step = max(k, block_entries // max(len(queries), 1), 1)
    for start in range(0, len(among), step):
        part = among[start : start + step]
        block = vectors[part[0] : part[-1] + 1] if isinstance(rows, slice) else vectors[part]
        scores = score(q, torch.from_numpy(block), metric)
        if allowed is not None:
            scores.masked_fill_(torch.from_numpy(~allowed[part]), -torch.inf)
        values, places = scores.topk(min(k, len(part)), dim=1)
        numbers = part[places.numpy()]
        numbers[np.isneginf(values.numpy())] = -1
        best = merge(best, (numbers, values.numpy()), k)
    return best


def score(queries: Tensor, vectors: Tensor, metric: Metric) -> Tensor:
    """Scores `(q, n)`, the higher the nearer."""
    if metric == "l2":  # the quicker formula, by products, loses every digit far from the origin
        return -torch.cdist(queries, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return queries @ vectors.T


def merge(one: Found, other: Found, k: int) -> Found:
    """The k best of two findings."""
    rows = np.concatenate([one[0], other[0]], axis=1)
    scores = np.concatenate([one[1], other[1]], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)


def nothing(queries: int, k: int) -> Found:
    """No rows."""
    return np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32)


def rescore(
    queries: NDArray[np.float32], originals: NDArray[np.float16], candidates: NDArray[np.int64], k: int, metric: Metric
) -> Found:
    """The k best of each query's candidates by the original vectors.

    Args:
        queries: `(q, d)` originals; of length 1 where the metric is cosine.
        originals: `(n, d)`.
        candidates: `(q, c)` rows; −1 where there is none.
        k: how many to keep.
        metric: as in `exact_search`.
    """
    gathered = torch.from_numpy(originals[np.maximum(candidates, 0)])
    vectors = gathered.float().numpy()  # torch widens float16 several times quicker than NumPy
    if metric == "l2":
        scores = -np.linalg.norm(vectors - queries[:, None, :], axis=2)
    else:
        scores = np.matmul(vectors, queries[:, :, None])[:, :, 0]
    scores[candidates < 0] = -np.inf
    return merge((candidates, scores), nothing(len(queries), 0), k)
