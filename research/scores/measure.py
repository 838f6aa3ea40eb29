"""Hits of judged searches in which half of the queries have lost their answers, and measures of probabilities."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.relevance import MIN_HITS, NEAREST, RelevanceModel, Searches, fit_logistic
from research.scores.data import FAMILIES, JudgedSearch, Vectors

Array = NDArray[np.float64]

HALVINGS = 10
"""Number of random choices of the queries that lose their answers."""

ROW_SEARCHES = 500
"""Maximum number of rows that search for other rows where there is no log."""

STRENGTH = 1.0
"""Precision of the prior at zero of the weights that are learnt from many collections."""

KINDS = ("queries", "rows")


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
        stored: vectors that are searched in place of the documents, such as decoded codes.
    """

    def __init__(self, search: JudgedSearch, stored: Vectors | None = None) -> None:
        self.search = search
        self.name = search.name
        self.encoder = search.encoder
        self.family = FAMILIES.get(search.encoder, search.encoder)
        self.documents = search.documents if stored is None else stored
        self.cosines = np.asarray(search.queries @ self.documents.T)
        self.model = RelevanceModel.from_rows(self.documents)
        self.row_hubs = self.model.measure_hubs(self.documents)
        # However many relevant documents a query loses, ten of these are left.
        most = min(MIN_HITS + int(search.relevant.sum(1).max()), len(self.documents))
        self.candidates = np.argpartition(-self.cosines, most - 1, axis=1)[:, :most]

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
            {kind: Searches(self.search.queries, scores, hubs[kind]) for kind in KINDS},
            np.take_along_axis(relevant & ~hidden, order, 1),
            rows,
        )

    def _measure_query_hubs(self, rows: NDArray[np.int64], scores: Array) -> Array:
        """Return the hubs of the hits `(q, k)`, measured with all queries but the one that searches."""
        nearest = self.nearest_queries[rows]
        relevant = np.take_along_axis(self.search.relevant, rows, 1)
        # A query that is among the ten nearest is replaced by the eleventh.
        own = ~relevant & (scores >= nearest[..., NEAREST - 1])
        return np.where(own, nearest.sum(2) - scores, nearest[..., :NEAREST].sum(2)) / NEAREST

    def search_rows(self) -> Searches:
        """Search with a sample of the rows for other rows."""
        count = len(self.documents)
        sample = np.linspace(0, count - 1, min(count, ROW_SEARCHES)).astype(int)
        queries = self.documents[sample]
        cosines = queries @ self.documents.T
        cosines[np.arange(len(sample)), sample] = -1
        rows = np.argsort(-cosines, axis=1)[:, :MIN_HITS]
        return Searches(queries, np.take_along_axis(cosines, rows, 1), self.row_hubs[rows])


Standardized = list[tuple[Array, NDArray[np.bool_]]]
"""Standardized features `(q, k, 3)` and relevance `(q, k)` of the halvings of a collection."""


def standardize(collection: Collection, halvings: list[Halving], kind: str, by: str) -> Standardized:
    """Standardize the features of halvings by the unjudged queries or, if `by` is "rows", by searches of rows."""
    model = collection.model
    standardized = []
    for halving in halvings:
        searches = halving.searches[kind]
        model.fit(searches if by == "queries" else collection.search_rows())
        standardized.append((model.standardize(searches), halving.relevant))
    return standardized


def learn(standardized: Iterable[Standardized], halvings: int = 2, queries: int = 300) -> tuple[Array, float]:
    """Learn weights `(2, 4)` from several collections, each with as many queries; return also the share of right hits."""
    parts = [part for each in standardized for part in each[:halvings]]
    features = np.concatenate([features[:queries] for features, _ in parts])
    relevant = np.concatenate([relevant[:queries] for _, relevant in parts])
    return fit_logistic(features, relevant, np.zeros((2, features.shape[2] + 1)), STRENGTH), float(relevant[:, 0].mean())


def leave_out(
    collections: list[Collection], standardized: Mapping[int, Standardized]
) -> Iterable[tuple[int, Array, float]]:
    """Yield each collection's number, and weights learnt without its data set and without its encoder."""
    for number, held_out in enumerate(collections):
        others = [
            standardized[other]
            for other, collection in enumerate(collections)
            if collection.name != held_out.name and collection.family != held_out.family
        ]
        yield number, *learn(others)
