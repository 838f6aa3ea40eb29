"""A search request to an index, the same for every backend."""

from collections.abc import Iterator
from dataclasses import dataclass

from lathe.service.index.filters import Filter
from lathe.service.index.reducer import Vectors

MAX_BATCH_QUERIES = 256
"""Maximum number of queries in a batch, which bounds the memory."""
MAX_BATCH_ENTRIES = 2**24
"""Maximum number of entries of original vectors gathered for a batch: 64 MB in float32."""
DEFAULT_EF = 100
"""Default size of the candidate list of a graph search."""


@dataclass(frozen=True, eq=False)
class Query:
    """Search request: vectors, how many items to return for each, and which items and scores count.

    Attributes:
        vectors: original query vectors `(q, d)`, or reduced ones `(q, k)` if `reduced`.
        k: number of items per vector.
        ef: size of the graph's candidate list; raised to the number of candidates if smaller. None for the default.
        rescoring: take this many times k candidates, and rank them by the original vectors; None ranks by the reduced
            ones.
        item_filter: filter that the items must satisfy; None for all items.
        reduced: whether the vectors are reduced already; they must not be rescored then.
    """

    vectors: Vectors
    k: int
    ef: int | None = None
    rescoring: float | None = None
    item_filter: Filter | None = None
    reduced: bool = False

    def slice_batches(self, candidates: int, width: int) -> Iterator[slice]:
        """Yield consecutive slices of the query vectors, small enough that searching each bounds the memory.

        A slice has at least one query, at most 256, and so few that the original vectors of all their candidates have
        at most 2²⁴ entries.
        """
        step = max(1, min(MAX_BATCH_QUERIES, MAX_BATCH_ENTRIES // (candidates * width)))
        for start in range(0, len(self.vectors), step):
            yield slice(start, start + step)
