"""Rows as they are after some map, computed when they are asked for."""

from collections.abc import Callable
from typing import Any

from transforms.arrays import Vectors


class View:
    """Vectors `(n, d)` behind a map: what the next step is fitted on, never all at once.

    Args:
        vectors: where they lie.
        width: what the map makes of them.
        transform: the map, of a block of rows.
    """

    def __init__(self, vectors: Vectors, width: int, transform: Callable[[Any], Any]) -> None:
        self.vectors = vectors
        self.transform = transform
        self.shape = (vectors.shape[0], width)

    def __getitem__(self, rows: Any, /) -> Any:
        """The chosen rows, transformed."""
        return self.transform(self.vectors[rows])
