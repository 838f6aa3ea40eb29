"""What a checkup asks of a store of vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.measures import find_nearest
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

Metric = Literal["cosine", "ip", "l2"]


@dataclass(frozen=True)
class Rows:
    """Rows of a store, drawn at random.

    Attributes:
        ids: id of each row.
        vectors: stored vectors `(n, d)`, which may hold NaN, inf and zeros.
        texts: text of each row, None where there is none; None if the store has no texts.
        total: number of rows of the store that have a vector.
    """

    ids: list[str]
    vectors: FloatArray
    texts: list[str | None] | None
    total: int

    @property
    def is_valid(self) -> NDArray[np.bool_]:
        """Mask `(n,)` of the rows that have a direction: finite and not all zeros."""
        return np.asarray(np.isfinite(self.vectors).all(axis=1) & self.vectors.any(axis=1))


@dataclass(frozen=True)
class Hits:
    """Rows that a search returned.

    Attributes:
        ids: ids of the hits of each query, best first.
        scores: their scores, a higher one is nearer.
        seconds: mean seconds of a query.
    """

    ids: Sequence[Sequence[str]]
    scores: Sequence[NDArray[np.float64]]
    seconds: float


class Store(Protocol):
    """Store of vectors under checkup."""

    @property
    def name(self) -> str:
        """Name of the store in sentences."""

    @property
    def metric(self) -> Metric:
        """Metric of its searches."""

    @property
    def effort_name(self) -> str:
        """Setting of the number of candidates that a search looks at, such as `hnsw.ef_search`."""

    @property
    def efforts(self) -> Sequence[int]:
        """Values of that setting, the present one first; empty without an approximate index."""

    @property
    def quantizer(self) -> str | None:
        """What the index stores in place of the vectors, such as `halfvec`; None if it stores the vectors."""

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` rows drawn at random."""

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search as users do, with another effort if one is given, for each of the queries `(q, d)`."""

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all rows, in the form that the index stores, or with `full` by the full vectors."""


def compare_all(ids: Sequence[str], vectors: FloatArray, queries: FloatArray, metric: Metric, k: int) -> Hits:
    """Return the k rows `(n, d)` that are nearest to each of the queries `(q, d)`, after comparing all."""
    if metric == "cosine":
        vectors, queries = (normalized_rows(side, np.float32).numpy() for side in (vectors, queries))
    elif metric == "l2":  # ‖q − x‖² orders rows as q·x − ‖x‖²/2
        half = (vectors**2).sum(axis=1, keepdims=True) / 2
        vectors = np.concatenate([vectors, -half], axis=1)
        queries = np.concatenate([queries, np.ones((len(queries), 1), np.float32)], axis=1)
    nearest = find_nearest(queries, vectors, k)
    scores = np.einsum("qkd,qd->qk", vectors[nearest], queries).astype(np.float64)
    return Hits([[ids[row] for row in rows] for rows in nearest], list(scores), 0.0)
