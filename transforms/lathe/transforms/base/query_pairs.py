"""Queries and the documents that are relevant to them, which maps of queries are learned from and measured on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.transforms.errors import InputError
from lathe.transforms.vectors import FloatArray

BLOCK_SCORES = 20_000_000
"""Maximum number of scores in memory at once: 80 MB."""


@dataclass(frozen=True)
class QueryPairs:
    """Vectors of queries and documents, and which document is relevant to which query.

    Documents that no query needs are welcome: negatives are mined among them.

    Attributes:
        queries: `(n, d)`.
        documents: `(m, d)`.
        relevant: row of a query and row of a document that is relevant to it, `(p, 2)` integers; a query may have
            several, and every query has at least one.
        excluded: row of a query and row of a document that is left out of its results, `(e, 2)` integers: a document
            that is the query's own text, which every encoder finds first.

    Raises:
        InputError: if shapes do not match, vectors hold NaN or inf, a row does not exist, a pair repeats, or a query
            has no document.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms.base import QueryPairs, measure_relevance
        >>> documents = np.eye(3, dtype=np.float32)
        >>> pairs = QueryPairs(documents[:2], documents, relevant=np.array([[0, 0], [1, 2]]))
        >>> ndcg, recall = measure_relevance(pairs, k=1)  # document 2 is not the best for query 1
        >>> ndcg.tolist(), recall.tolist()
        ([1.0, 0.0], [1.0, 0.0])
    """

    queries: FloatArray
    documents: FloatArray
    relevant: NDArray[np.int64]
    excluded: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))

    def __post_init__(self) -> None:
        """Check that queries and documents are finite matrices, and that the pairs name existing rows.

        Every query needs a pair, and a pair must not repeat.
        """
        for name, vectors in (("queries", self.queries), ("documents", self.documents)):
            if vectors.ndim != 2:
                raise InputError(f"the {name} of pairs must be a matrix, got the shape {vectors.shape}")
            if not np.isfinite(vectors).all():
                raise InputError(f"the {name} of pairs hold NaN or inf")

        relevant = np.asarray(self.relevant)
        if relevant.ndim != 2 or relevant.shape[1] != 2 or not np.issubdtype(relevant.dtype, np.integer):
            raise InputError(
                f"pairs are two columns of row numbers, query and document, got {relevant.dtype} {relevant.shape}"
            )

        for column, (name, count) in enumerate((("query", len(self.queries)), ("document", len(self.documents)))):
            wrong = relevant[(relevant[:, column] < 0) | (relevant[:, column] >= count), column]
            if len(wrong):
                raise InputError(f"a pair names {name} {wrong[0]}; there are {count}, counted from 0")

        # A repeated pair would count twice in nDCG.
        distinct, counts = np.unique(relevant, axis=0, return_counts=True)
        if len(distinct) < len(relevant):
            query, document = distinct[counts > 1][0]
            raise InputError(
                f"{len(relevant) - len(distinct)} pairs repeat, such as query {query}, document {document}"
            )
        if unanswered := len(self.queries) - len(np.unique(relevant[:, 0])):
            raise InputError(f"{unanswered} queries of the pairs have no relevant document")

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.queries)

    def append(self, others: "QueryPairs") -> "QueryPairs":
        """Return these pairs with the queries of `others` after the present ones.

        Both must search the same documents.
        """
        shift = np.array([len(self.queries), 0])
        return replace(
            self,
            queries=np.concatenate([self.queries, others.queries]),
            relevant=np.concatenate([self.relevant, others.relevant + shift]),
            excluded=np.concatenate([self.excluded, others.excluded + shift]),
        )

    def select(self, rows: NDArray[np.int64]) -> "QueryPairs":
        """Return the pairs of some queries, renumbered in the order of `rows`, with all documents.

        Args:
            rows: distinct rows of queries, `(k,)`.
        """
        # new_rows[old row] is the row among the selected queries, −1 for the others.
        new_rows = np.full(len(self.queries), -1)
        new_rows[rows] = np.arange(len(rows))

        def renumber(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
            retained = pairs[new_rows[pairs[:, 0]] >= 0]
            return np.stack([new_rows[retained[:, 0]], retained[:, 1]], axis=1)

        return replace(
            self, queries=self.queries[rows], relevant=renumber(self.relevant), excluded=renumber(self.excluded)
        )

    def map(
        self, queries: Callable[[FloatArray], FloatArray], documents: Callable[[FloatArray], FloatArray]
    ) -> "QueryPairs":
        """Return the same pairs with other vectors.

        Args:
            queries: function applied to the matrix of query vectors.
            documents: function applied to the matrix of document vectors.
        """
        return replace(self, queries=queries(self.queries), documents=documents(self.documents))


def measure_relevance(pairs: QueryPairs, k: int = 10) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Search all documents with every query by inner product, and return nDCG@k and recall@k of each query.

    Relevance is binary. nDCG@k is the sum of 1/log₂(rank + 1) over relevant documents up to rank k, divided by the
    largest that is possible; recall@k is their share of all that are relevant, or of k if more are. Excluded documents
    are not ranked, as by the `ignore_identical_ids` of mteb.

    Returns:
        nDCG@k of each query `(n,)` and recall@k of each query `(n,)`.
    """
    n, m = len(pairs.queries), len(pairs.documents)
    documents = torch.from_numpy(np.ascontiguousarray(pairs.documents, np.float32))
    counts = np.bincount(pairs.relevant[:, 0], minlength=n)
    # A pair of query and document as one integer, so that one sorted search finds all hits of a block.
    keys = np.sort(pairs.relevant[:, 0] * m + pairs.relevant[:, 1])
    discounts = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])
    ndcg, recall = np.empty(n), np.empty(n)
    step = max(1, BLOCK_SCORES // m)
    excluded = pairs.excluded[np.argsort(pairs.excluded[:, 0], kind="stable")]

    for start in range(0, n, step):
        rows = slice(start, start + step)
        queries = torch.from_numpy(np.ascontiguousarray(pairs.queries[rows], np.float32))
        scores = queries @ documents.T
        left_out = excluded[slice(*np.searchsorted(excluded[:, 0], [start, start + step]))]
        scores[left_out[:, 0] - start, left_out[:, 1]] = -torch.inf
        ranked = scores.topk(min(k, m), dim=1).indices.numpy()
        found_keys = np.arange(start, start + len(queries))[:, None] * m + ranked
        hits = keys[np.searchsorted(keys, found_keys).clip(max=len(keys) - 1)] == found_keys
        # A query with more than k relevant documents can find k of them at most.
        best = np.minimum(counts[rows], k)
        ndcg[rows] = (hits * discounts[: hits.shape[1]]).sum(axis=1) / ideal[best]
        recall[rows] = hits.sum(axis=1) / best

    return ndcg, recall
