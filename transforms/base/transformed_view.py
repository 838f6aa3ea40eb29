"""Rows as a chain makes them, computed when they are read."""

from collections.abc import Callable
from typing import Any

from transforms.statistics import RowTransform, SharedVectors
from transforms.vectors import Vectors


class TransformedView:
    """Vectors `(n, k)` that are transformed block by block when they are read, never all at once.

    Args:
        vectors: `(n, d)`, where they are stored.
        dimensions: k, of the outputs.
        transform: applied to every block of rows that is read.
    """

    def __init__(self, vectors: Vectors, dimensions: int, transform: Callable[[Any], Any]) -> None:
        self.vectors = vectors
        self.transform = transform
        self.shape = (vectors.shape[0], dimensions)

    def __getitem__(self, rows: Any, /) -> Any:
        """Return the chosen rows, transformed."""
        return self.transform(self.vectors[rows])


def view_through(vectors: Vectors, chain: RowTransform) -> Vectors:
    """Return vectors `(n, d)` as a fitted chain transforms them, without computing any row yet."""
    if isinstance(vectors, SharedVectors):
        return vectors.view_through(chain)
    return TransformedView(vectors, chain.dimensions_after(vectors.shape[1]), chain.transform)
