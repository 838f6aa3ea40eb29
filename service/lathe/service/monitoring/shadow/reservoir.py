"""A uniform sample of a stream of rows whose length is not known in advance."""

import numpy as np
from numpy.typing import NDArray


class Reservoir:
    """A uniform sample of the rows added so far (Vitter 1985, Algorithm R), in memory only.

    Args:
        capacity: maximum number of rows in the sample.
        dimensions: dimensions of a row.
        rng: random generator.

    Attributes:
        added: number of rows ever added.
    """

    def __init__(self, capacity: int, dimensions: int, rng: np.random.Generator) -> None:
        self.rows = np.empty((capacity, dimensions), np.float32)
        self.rng = rng
        self.added = 0

    def add(self, rows: NDArray[np.float32]) -> None:
        """Add rows `(n, d)` to the stream; when full, row i replaces a random one with probability capacity / i.

        i counts all rows ever added, from 1.
        """
        capacity, numbers = len(self.rows), self.added + np.arange(len(rows))
        positions = np.where(numbers < capacity, numbers, self.rng.integers(0, numbers + 1))
        for row, position in zip(rows, positions, strict=True):  # in order: a later row may replace an earlier one
            if position < capacity:
                self.rows[position] = row
        self.added += len(rows)

    @property
    def dimensions(self) -> int:
        """Dimensions of a row."""
        return self.rows.shape[1]

    def copy_distinct(self) -> NDArray[np.float32]:
        """Return a copy of the rows without duplicates, `(m, d)`, so that a repeated text is not its own neighbour."""
        rows = self.rows[: self.added]
        _, first = np.unique(rows, axis=0, return_index=True)
        return rows[np.sort(first)]
