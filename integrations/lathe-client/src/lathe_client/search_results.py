"""Items that a search in an index found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lathe_client.embeddings import require_same_space


@dataclass(frozen=True)
class Hit:
    """An item that a query found.

    Attributes:
        id: id of the item.
        score: cosine or inner product, higher is nearer; for the metric `l2` the distance, lower is nearer.
        metadata: metadata of the item; None if it has none.
        probability: probability that the item is right; None if the index is not calibrated, or with under ten hits.
    """

    id: str
    score: float
    metadata: dict[str, Any] | None = None
    probability: float | None = None


@dataclass(frozen=True)
class SearchResults:
    """Hits of each query of a search, with the space id and chain of the index.

    Attributes:
        hits: for each query in order, its hits, best first.
        space_id: id of the vector space of the index.
        chain: `NAME@VERSION` of the chain of the index.
    """

    hits: list[list[Hit]]
    space_id: str
    chain: str

    @property
    def probabilities(self) -> list[list[float | None]]:
        """Probability of each hit, for each query in order."""
        return [[hit.probability for hit in hits] for hits in self.hits]


def join_results(parts: Sequence[SearchResults]) -> SearchResults:
    """Return the hits of several answers joined in order.

    Raises:
        SpaceMismatchError: if the index moved between two of them.
    """
    require_same_space([part.space_id for part in parts])
    return SearchResults([hits for part in parts for hits in part.hits], parts[0].space_id, parts[0].chain)
