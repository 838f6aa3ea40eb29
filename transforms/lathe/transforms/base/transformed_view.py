"""Lazy views of vectors: rows are transformed when they are read."""

from collections.abc import Callable
from functools import partial
from typing import Any

from lathe.transforms.base.map import apply
from lathe.transforms.statistics import RowTransform, SharedVectors
from lathe.transforms.vectors import Vectors


class TransformedView:
    """A lazy view `(n, k)` of vectors `(n, d)`: indexing reads the chosen rows and transforms them.

    Args:
        vectors: `(n, d)`, the rows before the transform.
        dimensions: k, the number of output dimensions.
        transform: function applied to the rows that are read.
    """

    def __init__(self, vectors: Vectors, dimensions: int, transform: Callable[[Any], Any]) -> None:
        self.vectors = vectors
        self.transform = transform
        self.shape = (vectors.shape[0], dimensions)

    def __getitem__(self, rows: Any, /) -> Any:
        """Read the rows at the given index or slice and return them transformed."""
        return self.transform(self.vectors[rows])


def view_through(vectors: Vectors, chain: RowTransform) -> Vectors:
    """Return a view `(n, k)` of vectors `(n, d)` whose rows the fitted chain transforms only when they are read."""
    # The owner makes the view, so that it can still compute the moments itself, where the rows are.
    if isinstance(vectors, SharedVectors):
        return vectors.view_through(chain)
    # Not `transform`: a fit names the rows with NaN and inf itself.
    transform = partial(apply, chain)  # type: ignore[arg-type]  # a chain is a `FittedMap`, too
    return TransformedView(vectors, chain.dimensions_after(vectors.shape[1]), transform)
