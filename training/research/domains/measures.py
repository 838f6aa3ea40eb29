"""How well a few examples are solved, many drawings of them at once.

Drawings are places `(b, n)` of examples, or rows `(b, n)` taken at such places. What cannot be measured, because
labels or similarities are all alike, is NaN.
"""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import v_measure_score

from training.evaluation.statistics import Array

Vectors = NDArray[np.float32]
Places = NDArray[np.int64]
RANKS = 10
"""Of nDCG."""
CLUSTERING_BATCH = 512
"""mteb's, of its k-means."""


def best_places(similarities: NDArray[np.floating], most: int) -> Places:
    """Places of the `most` largest of `(c,)`, the first of them first; what is equal keeps its order."""
    most = min(most, len(similarities))
    least = np.partition(similarities, -most)[-most]
    candidates = np.flatnonzero(similarities >= least)
    order = np.argsort(-similarities[candidates], kind="stable")
    return np.asarray(candidates[order[:most]], dtype=np.int64)


def ndcg(ranked: Array, judged: Array) -> float:
    """nDCG@10 of one query; grades are gains, as trec_eval takes them.

    Args:
        ranked: grades `(r,)` of the documents that were found, the first first.
        judged: grades of all documents that were judged, at least one of them above 0.
    """
    ideal = np.sort(np.clip(judged, 0, None))[::-1][:RANKS]
    return discounted(np.clip(ranked[:RANKS], 0, None)) / discounted(ideal)


def discounted(grades: Array) -> float:
    """The cumulative gain of grades `(r,)`, the first first."""
    return float((grades / np.log2(np.arange(len(grades)) + 2)).sum())


def average_precision(ranked: NDArray[np.bool_], relevant: int) -> float:
    """Average precision of one query: ranked `(r,)` says which of the documents found are relevant."""
    hits = np.flatnonzero(ranked) + 1
    return float((np.arange(1, len(hits) + 1) / hits).sum() / relevant)


def average_precisions(similarities: Array, labels: Array) -> Array:
    """Average precision `(b,)` of drawings of pairs with labels 0 and 1; pairs of one similarity rank alike.

    Equal to scikit-learn's, row by row.
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
    """V-measure `(b,)` of k-means on drawings `(b, n)` of vectors `(m, d)`, one cluster a label of the drawing."""
    return np.array([v_measure(vectors[places], labels[places]) for places in drawn])


def v_measure(vectors: Vectors, labels: NDArray[np.int64]) -> float:
    """V-measure of one seeded k-means on vectors `(n, d)`; NaN for one label or fewer vectors than labels."""
    clusters = len(np.unique(labels))
    if clusters < 2:
        return float("nan")
    means = MiniBatchKMeans(clusters, batch_size=CLUSTERING_BATCH, n_init=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal texts with several labels
        found = means.fit_predict(own_coordinates(vectors))
    return float(v_measure_score(labels, found))


def own_coordinates(vectors: Vectors) -> Array:
    """Vectors `(n, d)` turned into the at most n axes they span: all distances stay, and k-means costs less."""
    precise = vectors.astype(np.float64)
    if vectors.shape[1] <= len(vectors):
        return precise
    values, axes = np.linalg.eigh(precise @ precise.T)
    return np.asarray(axes * np.sqrt(np.clip(values, 0, None)))
