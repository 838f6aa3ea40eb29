"""Metrics of how well a few examples are solved, computed for many bootstrap samples at once.

The samples are given as row indices `(b, n)` of examples, or as values `(b, n)` taken at such indices. A metric that is
undefined, because all labels or all similarities of a sample are equal, is NaN.
"""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import v_measure_score

from lathe.training.comparison import Array

Vectors = NDArray[np.float32]
"""Float32 vectors, one per row."""
Places = NDArray[np.int64]
"""Integer row indices."""
RANKS = 10
"""Cutoff k of nDCG@k."""
CLUSTERING_BATCH = 512
"""Batch size of mini-batch k-means: the one that mteb uses."""


def rank_best(similarities: NDArray[np.floating], most: int) -> Places:
    """Return the indices of the `most` largest similarities `(c,)`, sorted in descending order.

    Ties keep their order. All c indices are returned if there are fewer than `most`.
    """
    most = min(most, len(similarities))
    least = np.partition(similarities, -most)[-most]
    candidates = np.flatnonzero(similarities >= least)
    order = np.argsort(-similarities[candidates], kind="stable")
    return np.asarray(candidates[order[:most]], dtype=np.int64)


def ndcg(ranked: Array, judged: Array) -> float:
    """Return the nDCG@10 of one query, with linear gains as in trec_eval.

    Negative grades count as 0.

    Args:
        ranked: grades `(r,)` of the retrieved documents, in rank order.
        judged: grades of all judged documents, in any order; at least one must be above 0.
    """
    ideal = np.sort(np.clip(judged, 0, None))[::-1][:RANKS]
    return _dcg(np.clip(ranked[:RANKS], 0, None)) / _dcg(ideal)


def _dcg(grades: Array) -> float:
    """Return the discounted cumulative gain Σ gradeᵢ / log₂(i + 1) of grades `(r,)` in rank order, i from 1."""
    return float((grades / np.log2(np.arange(len(grades)) + 2)).sum())


def average_precision(ranked: NDArray[np.bool_], relevant: int) -> float:
    """Return the average precision of one query, in [0, 1].

    Args:
        ranked: whether each retrieved document is relevant `(r,)`, in rank order.
        relevant: number of relevant documents, retrieved or not.
    """
    hits = np.flatnonzero(ranked) + 1
    return float((np.arange(1, len(hits) + 1) / hits).sum() / relevant)


def average_precisions(similarities: Array, labels: Array) -> Array:
    """Return the average precision `(b,)` of each sample, pairs ranked by similarity.

    The result is NaN for one without positives. Tied pairs share the precision at the end of their tie, so that the
    result equals scikit-learn's `average_precision_score` row by row.

    Args:
        similarities: similarity of each pair `(b, n)`.
        labels: 1 for positive pairs, 0 for negative ones, `(b, n)`.
    """
    order = np.argsort(-similarities, axis=1, kind="stable")
    ranked = np.take_along_axis(similarities, order, axis=1)
    hits = np.take_along_axis(labels, order, axis=1)
    width = ranked.shape[1]
    last = np.hstack([ranked[:, :-1] != ranked[:, 1:], np.ones((len(ranked), 1), bool)])
    ends = np.where(last, np.arange(width), width)
    ends = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]  # where the pairs of one similarity end
    precision = np.take_along_axis(hits.cumsum(axis=1), ends, axis=1) / (ends + 1)
    positives = hits.sum(axis=1)
    return np.where(positives > 0, (precision * hits).sum(axis=1) / np.maximum(positives, 1), np.nan)


def v_measures(vectors: Vectors, labels: NDArray[np.int64], drawn: Places) -> Array:
    """Return the V-measure `(b,)` of a k-means clustering of each sample, with one cluster per label in the sample.

    Args:
        vectors: vectors of all texts `(m, d)`.
        labels: label of each text `(m,)`.
        drawn: row indices of the samples `(b, n)`.
    """
    return np.array([v_measure(vectors[places], labels[places]) for places in drawn])


def v_measure(vectors: Vectors, labels: NDArray[np.int64]) -> float:
    """Return the V-measure of a seeded mini-batch k-means with one cluster per label.

    The result is NaN if there is only one label.

    Args:
        vectors: vectors to cluster `(n, d)`.
        labels: their labels `(n,)`.
    """
    clusters = len(np.unique(labels))
    if clusters < 2:
        return float("nan")
    means = MiniBatchKMeans(clusters, batch_size=CLUSTERING_BATCH, n_init=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal texts with several labels
        found = means.fit_predict(reduce_to_span(vectors))
    return float(v_measure_score(labels, found))


def reduce_to_span(vectors: Vectors) -> Array:
    """Return n coordinates of each of n vectors `(n, d)`, with the same pairwise distances, so that k-means costs less.

    The coordinates come from the eigendecomposition of the Gram matrix, `(n, n)` float64. If d ≤ n, the vectors
    themselves are returned as float64.
    """
    precise = vectors.astype(np.float64)
    if vectors.shape[1] <= len(vectors):
        return precise
    values, axes = np.linalg.eigh(precise @ precise.T)
    return np.asarray(axes * np.sqrt(np.clip(values, 0, None)))
