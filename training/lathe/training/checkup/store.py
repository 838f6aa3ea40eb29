"""What a checkup asks of a store of vectors."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import EmptyError
from lathe.training.measures import find_nearest
from lathe.training.settings import Metric
from lathe.transforms.errors import InputError
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray, find_valid_rows

Change = tuple[str, list[float], list[float]]
"""Id of a row, the vector that it should have now, and the vector that it gets."""


@dataclass(frozen=True)
class Rows:
    """Rows of a store, drawn at random.

    Attributes:
        ids: id of each row.
        vectors: stored vectors `(n, d)`, which may hold NaN, inf and zeros.
        texts: text of each row, None where there is none; None if the store has no texts.
        total: number of rows of the store that have a vector.

    Raises:
        EmptyError: if there are no rows.
    """

    ids: list[str]
    vectors: FloatArray
    texts: list[str | None] | None
    total: int

    def __post_init__(self) -> None:
        if not self.ids:
            raise EmptyError("the store has no vectors to check")

    @cached_property
    def is_valid(self) -> NDArray[np.bool_]:
        """Mask `(n,)` of the rows that have a direction: finite and not all zeros."""
        return find_valid_rows(self.vectors)


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
    seconds: float = 0.0


@dataclass(frozen=True)
class Cures:
    """What to run against what a checkup finds, as commands of a shell or SQL; empty if there is nothing to run.

    Attributes:
        encode: encodes rows again.
        rebuild: builds the index again.
    """

    encode: str = "lathe checkup … --fix OLD.jsonl"
    rebuild: str = ""


class Store(ABC):
    """Base class of stores of vectors under checkup.

    Attributes:
        name: name of the store in sentences.
        metric: metric of its searches.
        effort_name: setting of the number of candidates that a search looks at, such as `hnsw.ef_search`.
        efforts: values of that setting, the present one first; empty without an approximate index.
        quantizer: what the index stores in place of the vectors, such as `halfvec`; None if it stores the vectors.
        cures: what to run against what is found.
    """

    name: str
    metric: Metric
    effort_name: str = ""
    efforts: Sequence[int] = ()
    quantizer: str | None = None
    cures: Cures = Cures()

    @abstractmethod
    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` rows drawn at random."""

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search as users do, with another effort if one is given, for each of the queries `(q, d)`."""
        return self.search_exactly(queries, k)

    @abstractmethod
    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all rows, in the form that the index stores, or with `full` by the full vectors."""

    def search_rebuilt(self, queries: FloatArray, k: int) -> Hits | None:
        """Build the approximate index again elsewhere and search it, or return None where that is not possible."""
        return None

    def replace(self, changes: Sequence[Change]) -> int:
        """Replace vectors of rows, and return how many rows had the old vector and have the new one.

        Raises:
            InputError: if vectors of this store cannot be replaced.
        """
        raise InputError(f"vectors of {self.name} cannot be replaced here")


def ask_each(queries: FloatArray, ask: Callable[[list[float]], Iterable[tuple[Any, float]]]) -> Hits:
    """Ask queries `(q, d)` one after the other, and return hits with the mean seconds of a query.

    Args:
        queries: the queries.
        ask: returns id and score of the hits of a query, best first; a higher score is nearer.
    """
    begun = time.perf_counter()
    found = [list(ask(query.tolist())) for query in queries]
    seconds = (time.perf_counter() - begun) / max(len(queries), 1)
    ids = [[str(row) for row, _ in hits] for hits in found]
    return Hits(ids, [np.array([score for _, score in hits], np.float64) for hits in found], seconds)


def compare_all(ids: Sequence[str], vectors: FloatArray, queries: FloatArray, metric: Metric, k: int) -> Hits:
    """Return ids and scores of the k rows `(n, d)` nearest to each of the queries `(q, d)`, after comparing all."""
    if metric == "cosine":
        vectors, queries = (normalized_rows(side, np.float32).numpy() for side in (vectors, queries))
    elif metric == "l2":  # ‖q − x‖² orders rows as q·x − ‖x‖²/2
        half = (vectors**2).sum(axis=1, keepdims=True) / 2
        vectors = np.concatenate([vectors, -half], axis=1)
        queries = np.concatenate([queries, np.ones((len(queries), 1), np.float32)], axis=1)
    nearest = find_nearest(queries, vectors, k)
    scores = np.einsum("qkd,qd->qk", vectors[nearest], queries).astype(np.float64)
    return Hits([[ids[row] for row in rows] for rows in nearest], list(scores))
