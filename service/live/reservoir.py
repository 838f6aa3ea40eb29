"""A uniform sample of a stream of rows whose length is not known in advance."""

import numpy as np
from numpy.typing import NDArray


class Reservoir:
    """A uniform sample of the rows added so far (Vitter 1985, Algorithm R), in memory only.

    Args:
        capacity: maximum number of rows held.
        width: dimensions of a row.
        rng: random generator.

    Attributes:
        taken: number of rows ever added.
    """

    def __init__(self, capacity: int, width: int, rng: np.random.Generator) -> None:
        self.held = np.empty((capacity, width), np.float32)
        self.rng = rng
        self.taken = 0

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add rows `(n, d)` to the stream; when full, row number i is kept with probability capacity / i."""
        capacity, numbers = len(self.held), self.taken + np.arange(len(rows))
        places = np.where(numbers < capacity, numbers, self.rng.integers(0, numbers + 1))
        for row, place in zip(rows, places, strict=True):  # in order: a later row may take a place of an earlier one
            if place < capacity:
                self.held[place] = row
        self.taken += len(rows)

    @property
    def width(self) -> int:
        """Dimensions of a row."""
        return self.held.shape[1]

    def distinct(self) -> NDArray[np.float32]:
        """Return a copy of the held rows without duplicates, `(m, d)`: a text sent often is not its own neighbour."""
        held = self.held[: self.taken]
        _, first = np.unique(held, axis=0, return_index=True)
        return held[np.sort(first)]
