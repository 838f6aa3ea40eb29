"""Rows as they are after some map, computed when they are asked for."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from transforms.vectors import Vectors

if TYPE_CHECKING:
    from transforms.statistics.moments import Moments


class Reduction(Protocol):
    """What rows can be seen behind: a chain."""

    def width_after(self, width: int) -> int:
        """Return the width of what comes out for rows of some width."""

    def transform(self, rows: Any) -> Any:
        """Apply to rows `(n, d)`."""


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


@runtime_checkable
class SharedVectors(Vectors, Protocol):
    """Vectors that others can read where they lie, who take their moments."""

    def behind(self, chain: Reduction) -> "SharedVectors":
        """The same vectors after a fitted chain."""

    def block_moments(self, unit: bool) -> Iterator["Moments"]:
        """The moments of every `BLOCK_ROWS` rows, in order; of the rows at unit length if so asked."""


def behind(vectors: Vectors, chain: Reduction) -> Vectors:
    """Vectors `(n, d)` as they are after a fitted chain."""
    if isinstance(vectors, SharedVectors):
        return vectors.behind(chain)
    return View(vectors, chain.width_after(vectors.shape[1]), chain.transform)
