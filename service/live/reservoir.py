"""Some rows of many, each with the same chance, without knowing how many will come."""

import numpy as np
from numpy.typing import NDArray


class Reservoir:
    """A uniform sample of the rows that were added (Vitter 1985, Algorithm R), in memory alone.

    Args:
        capacity: rows it holds at most.
        width: of a row.
        rng: the dice.

    Attributes:
        taken: rows that were ever added.
    """

    def __init__(self, capacity: int, width: int, rng: np.random.Generator) -> None:
        self.held = np.empty((capacity, width), np.float32)
        self.rng = rng
        self.taken = 0

    def add(self, rows: NDArray[np.float32]) -> None:
        """Let rows `(n, d)` in; once it is full, row number i stays with a chance of capacity / i."""
        capacity, numbers = len(self.held), self.taken + np.arange(len(rows))
        places = np.where(numbers < capacity, numbers, self.rng.integers(0, numbers + 1))
        for row, place in zip(rows, places, strict=True):  # in order: a later row may take a place of an earlier one
            if place < capacity:
                self.held[place] = row
        self.taken += len(rows)

    @property
    def width(self) -> int:
        """Of a row."""
        return self.held.shape[1]

    def distinct(self) -> NDArray[np.float32]:
        """A copy of what is held `(m, d)`, equal rows once: a text that is asked often is no neighbour of itself."""
        held = self.held[: self.taken]
        _, first = np.unique(held, axis=0, return_index=True)
        return held[np.sort(first)]
