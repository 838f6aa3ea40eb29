"""Hits of judged searches in which half of the queries have lost their answers, and measures of probabilities."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from benchmarks.codes.data import Vectors
from lathe.transforms.relevance import RelevanceModel, Searches, measure_auroc
from lathe.transforms.relevance.model import (
    MIN_HITS,
    NEAREST,
    PRIOR_STRENGTH,
    apply_weights,
    fit_logistic,
    normalize,
    sigmoid,
)
from lathe.transforms.relevance.report import fill_bins, measure_ece
from research.scores.data import FAMILIES, JudgedSearch

Array = NDArray[np.float64]

HALVINGS = 10
"""Number of random choices of the queries that lose their answers."""

ROW_SEARCHES = 500
"""Maximum number of rows that search for other rows where there is no log."""

STRENGTH = 1.0
"""Precision of the prior at zero of the weights that are learnt from many collections."""

KINDS = ("queries", "rows", "row hubs")
"""What is known of a collection: a log of unjudged queries, only rows, or rows for hubs and queries for the rest."""

LEARNT_HALVINGS, LEARNT_QUERIES = 2, 150
"""Numbers of halvings and of queries of each collection that weights are learnt from."""

JUDGED, MIN_TESTED, MAX_TESTED = 200, 80, 500
"""Number of judged queries of a collection, and numbers of its queries to test on."""

PRECISION, CONFIDENCE = 0.8, 0.9
"""Precision of a safe threshold, and confidence in it."""

EM_STEPS = 100
"""Steps of expectation maximization."""


@dataclass(frozen=True)
class Halving:
    """Hits of all queries of a search, some of which have no answer.

    Attributes:
        searches: the hits, by kind of references.
        relevant: whether each hit is relevant, `(q, k)`.
        rows: rows that were hit, `(q, k)`.
    """

    searches: dict[str, Searches]
    relevant: NDArray[np.bool_]
    rows: NDArray[np.int64]

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the first hit of each query is right, `(q,)`."""
        return self.relevant[:, 0]


class Collection:
    """A judged search with what a model needs to know of its rows.

    Args:
        search: the search.
        queries, documents: vectors in place of those of the search, such as decoded codes.
        missed: share of the rows that the search does not find, at random.
    """

    def __init__(
        self,
        search: JudgedSearch,
        queries: Vectors | None = None,
        documents: Vectors | None = None,
        missed: float = 0.0,
    ) -> None:
        self.search = search
        self.queries = normalize(search.queries if queries is None else queries)
        self.documents = normalize(search.documents if documents is None else documents)
        self.cosines = np.asarray(self.queries @ self.documents.T)
        self.model = RelevanceModel.from_rows(self.documents)
        self.row_hubs = self.model.measure_hubs(self.documents)
        # However many relevant documents a query loses, ten of these are left.
        most = min(MIN_HITS + int(search.relevant.sum(1).max()), len(self.documents))
        lost = np.random.default_rng(0).random(self.cosines.shape) < missed
        self.candidates = np.argpartition(-np.where(lost, -1, self.cosines), most - 1, axis=1)[:, :most]

    @cached_property
    def nearest_queries(self) -> Array:
        """Cosines of each document with the eleven nearest queries to which it is not relevant, `(n, 11)`.

        Queries to which a document is relevant are left out. Each document here has about one such query, which a
        search never finds in the log because it is the query itself: a hub that counted it for wrong hits only would
        give the answers away.
        """
        cosines = np.where(self.search.relevant, -1, self.cosines).T
        return np.sort(cosines, axis=1)[:, : -NEAREST - 2 : -1]

    def halve(self, seed: int, answered: float = 0.5) -> Halving:
        """Take all relevant documents from a random share of the queries, and search with each query."""
        count = len(self.cosines)
        lost = np.random.default_rng(seed).permutation(count)[: round(count * (1 - answered))]
        relevant = np.take_along_axis(self.search.relevant, self.candidates, 1)
        hidden = np.zeros_like(relevant)
        hidden[lost] = relevant[lost]
        cosines = np.where(hidden, -1, np.take_along_axis(self.cosines, self.candidates, 1))
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :MIN_HITS]
        rows, scores = (np.take_along_axis(array, order, 1) for array in (self.candidates, cosines))
        hubs = {"queries": self._measure_query_hubs(rows, scores), "rows": self.row_hubs[rows]}
        return Halving(
            {kind: Searches(self.queries, scores, kind_hubs) for kind, kind_hubs in hubs.items()},
            np.take_along_axis(relevant & ~hidden, order, 1),
            rows,
        )

    def _measure_query_hubs(self, rows: NDArray[np.int64], scores: Array) -> Array:
        """Return the hubs of the hits `(q, k)`, measured with all queries but the one that searches."""
        nearest = self.nearest_queries[rows]
        relevant = np.take_along_axis(self.search.relevant, rows, 1)
        # A query that is among the ten nearest is replaced by the eleventh.
        own = ~relevant & (scores >= nearest[..., NEAREST - 1])
        hubs: Array = np.where(own, nearest.sum(2) - scores, nearest[..., :NEAREST].sum(2)) / NEAREST
        return hubs

    def search_rows(self) -> Searches:
        """Search with a sample of the rows for other rows."""
        count = len(self.documents)
        sample = np.linspace(0, count - 1, min(count, ROW_SEARCHES)).astype(int)
        queries = self.documents[sample]
        cosines = queries @ self.documents.T
        cosines[np.arange(len(sample)), sample] = -1
        rows = np.argsort(-cosines, axis=1)[:, :MIN_HITS]
        return Searches(queries, np.take_along_axis(cosines, rows, 1), self.row_hubs[rows])


@dataclass(frozen=True)
class Measured:
    """Features and relevance of the hits of a collection in all halvings h.

    Attributes:
        name: path of the data set below the data folder.
        encoder: name of the encoder.
        sizes: numbers of documents and queries.
        features: standardized features by kind, `(h, q, k, 3)`.
        relevant: whether each hit is relevant, `(h, q, k)`.
        scores: cosines, `(h, q, k)`.
        csls: twice the cosine of the first hit, minus the hubs of row and query, `(h, q)`.
    """

    name: str
    encoder: str
    sizes: dict[str, int]
    features: dict[str, NDArray[np.float32]]
    relevant: NDArray[np.bool_]
    scores: NDArray[np.float32]
    csls: Array

    @property
    def family(self) -> str:
        """Name of the encoder that this one is a part of, or its own."""
        return FAMILIES.get(self.encoder, self.encoder)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the first hits are right, `(h, q)`."""
        return self.relevant[..., 0]

    def auroc_of(self, scores: Array) -> float:
        """Return the mean over halvings of the AUROC of scores of first hits, `(h, q)`."""
        return float(np.mean([measure_auroc(*pair) for pair in zip(scores, self.right, strict=True)]))


def measure_collection(collection: Collection) -> Measured:
    """Search with all queries in all halvings, and standardize the features of the hits.

    The kind "rows" knows no query; "row hubs" has hubs of rows, but standardizes by unjudged queries.
    """
    halvings = [collection.halve(seed) for seed in range(HALVINGS)]
    of_rows = collection.search_rows()
    features: dict[str, list[Array]] = {kind: [] for kind in KINDS}
    csls = []
    for halving in halvings:
        for kind in KINDS:
            searches = halving.searches["queries" if kind == "queries" else "rows"]
            collection.model.kind = "queries" if kind == "queries" else "rows"
            collection.model.fit(of_rows if kind == "rows" else searches)
            features[kind].append(collection.model.standardize(searches))
        with_rows = halving.searches["rows"]
        csls.append(2 * with_rows.scores[:, 0] - with_rows.hubs[:, 0] - with_rows.scores.mean(1))
    documents, queries = len(collection.documents), len(collection.queries)
    return Measured(
        collection.search.name,
        collection.search.encoder,
        {"documents": documents, "queries": queries},
        {kind: np.stack(each).astype(np.float32) for kind, each in features.items()},
        np.stack([halving.relevant for halving in halvings]),
        np.stack([halving.searches["rows"].scores for halving in halvings]),
        np.stack(csls),
    )


def learn(collections: Iterable[Measured], kind: str) -> tuple[Array, float]:
    """Learn weights `(2, 4)` from collections, with as many hits of each, and return the share of right first hits."""
    parts = [
        (measured.features[kind][halving, :LEARNT_QUERIES], measured.relevant[halving, :LEARNT_QUERIES])
        for measured in collections
        for halving in range(LEARNT_HALVINGS)
    ]
    features, relevant = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    prior = np.zeros((2, features.shape[2] + 1))
    return fit_logistic(features.astype(np.float64), relevant, prior, STRENGTH), float(relevant[:, 0].mean())


class LeftOut:
    """Weights that are learnt from collections without a data set and without a family of encoders."""

    def __init__(self, collections: Iterable[Measured]) -> None:
        self.collections = list(collections)
        self._learnt: dict[tuple[str, str, str], tuple[Array, float]] = {}

    def learn(self, without: Measured, kind: str) -> tuple[Array, float]:
        """Learn from collections that share neither data set nor encoder with one."""
        key = without.name, without.family, kind
        if key not in self._learnt:
            others = [each for each in self.collections if each.name != key[0] and each.family != key[1]]
            self._learnt[key] = learn(others, kind)
        return self._learnt[key]


def predict(features: NDArray[np.floating[Any]], weights: Array) -> Array:
    """Return the probabilities `(h, q, k)` of hits with standardized features `(h, q, k, 3)`."""
    return np.stack([sigmoid(apply_weights(each.astype(np.float64), weights)) for each in features])


def score_probabilities(probabilities: Array, relevant: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the quality of probabilities of hits `(h, q, k)`.

    AUROC and Brier skill are means over halvings. The calibration error is of the first hits of all halvings together,
    as few queries alone would leave bins nearly empty.
    """
    first, right = probabilities[..., 0], relevant[..., 0]
    skills = [1 - np.mean((p - y) ** 2) / np.var(y) for p, y in zip(first, right, strict=True) if y.any()]
    others = [measure_auroc(p[:, 1:].ravel(), y[:, 1:].ravel()) for p, y in zip(probabilities, relevant, strict=True)]
    return {
        "auroc": float(np.nanmean([measure_auroc(p, y) for p, y in zip(first, right, strict=True)])),
        "auroc_others": float(np.nanmean(others)),
        "skill": float(np.mean(skills)),
        "ece": measure_ece(first.ravel(), right.ravel()),
        "ece_others": measure_ece(probabilities[..., 1:].ravel(), relevant[..., 1:].ravel()),
        "bins": fill_bins(first.ravel(), right.ravel()),
    }


def measure_baselines(measured: Measured) -> dict[str, Any]:
    """Return what scores say that need no model: AUROC, and calibration error where they are read as probabilities."""
    cosines = measured.scores[..., 0].astype(np.float64)
    ranks = np.argsort(np.argsort(cosines, axis=1), axis=1) / (cosines.shape[1] - 1)
    right = measured.right.ravel()
    return {
        "right": float(right.mean()),
        "cosine": measured.auroc_of(cosines),
        "gap": measured.auroc_of(cosines - measured.scores[..., 1]),
        "csls": measured.auroc_of(measured.csls),
        "ece_half_cosine": measure_ece((1 + cosines.ravel()) / 2, right),
        "ece_quantile": measure_ece(ranks.ravel(), right),
    }


def measure_judged(measured: Measured, probabilities: Array, weights: Array) -> dict[str, Any] | None:
    """Return the quality of weights that are fitted on 200 judged queries of the collection, on its other queries.

    With them, a threshold is chosen that has a precision of 80 % with confidence 90 %, by cosine and by probability, as
    conformal methods do (Angelopoulos and others, *Learn Then Test*, 2021). None if there are too few queries.
    """
    features, relevant = measured.features["queries"].astype(np.float64), measured.relevant
    if features.shape[1] < JUDGED + MIN_TESTED:
        return None
    fitted, outcomes, answered = [], [], defaultdict(list)
    for halving in range(len(features)):
        # Another seed than that of the halving, which permutes the queries too.
        order = np.random.default_rng(JUDGED + halving).permutation(features.shape[1])
        judged, tested = order[:JUDGED], order[JUDGED:][:MAX_TESTED]
        own = fit_logistic(features[halving, judged], relevant[halving, judged], weights, PRIOR_STRENGTH)
        fitted.append(sigmoid(apply_weights(features[halving, tested], own)))
        outcomes.append(relevant[halving, tested])
        right = relevant[halving, :, 0]
        for name, scores in (("cosine", measured.scores[halving, :, 0]), ("probability", probabilities[halving, :, 0])):
            threshold = find_safe_threshold(scores[judged], right[judged])
            above = scores[tested] >= threshold
            answered[name].append((above.mean(), right[tested][above].mean() if above.any() else np.nan))
    means = {name: summarize_answers(np.array(pairs)) for name, pairs in answered.items()}
    return score_probabilities(np.stack(fitted), np.stack(outcomes)) | {"answered": means}


def summarize_answers(pairs: Array) -> dict[str, float | None]:
    """Return the mean share of queries that are answered, and the precision of all answers, from one pair a halving."""
    answered = float(pairs[:, 0].sum())
    return {
        "answered": answered / len(pairs),
        "precision": float((pairs[:, 0] * np.nan_to_num(pairs[:, 1])).sum() / answered) if answered else None,
    }


def find_safe_threshold(scores: NDArray[np.floating[Any]], right: NDArray[np.bool_]) -> float:
    """Return the lowest score above which the precision is at least 80 % with confidence 90 %; inf if there is none.

    Shares of 10 %, 15 %, … of the queries are tested in this order, each by a binomial test, until one fails.
    """
    order = np.argsort(-scores)
    threshold = float("inf")
    for share in np.arange(0.1, 1.001, 0.05):
        count = round(share * len(order))
        hits = int(right[order[:count]].sum())
        if binom.sf(hits - 1, count, PRECISION) > 1 - CONFIDENCE:
            break
        threshold = float(scores[order[count - 1]])
    return threshold


def estimate_right_rate(measured: Measured, weights: Array, rate: float) -> list[tuple[float, float]]:
    """Estimate the share of right first hits without judgements, and return it with the true one, for each halving.

    The probabilities are a mixture of those of right and of wrong hits, whose share is found by expectation
    maximization (Saerens, Latinne and Decaestecker, *Adjusting the Outputs of a Classifier to New a Priori
    Probabilities*, 2002, Eq. 2.9).
    """
    found = []
    for features, right in zip(measured.features["queries"], measured.right, strict=True):
        odds = apply_weights(features.astype(np.float64), weights)[:, 0] - np.log(rate / (1 - rate))
        estimate = rate
        for _ in range(EM_STEPS):
            mean = float(sigmoid(odds + np.log(estimate / (1 - estimate))).mean())
            estimate = min(max(mean, 1e-3), 1 - 1e-3)
        found.append((estimate, float(right.mean())))
    return found
