"""Count, mean and centred second moment: what every spectral fit starts from."""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from transforms.arrays import BLOCK_ROWS, FloatArray, Vectors, as_numpy, require_finite, require_matrix, row_blocks
from transforms.errors import InputError


class Moments:
    """Mergeable first and second moments of row vectors, in float64.

    Updates and merges follow Chan, Golub and LeVeque (1979): every block is centred on its own
    mean before its product is taken, so data whose mean is far larger than its spread stays
    accurate, and the order and grouping of shards does not matter beyond rounding.
    Memory is O(d²) and one block.

    Attributes:
        count: rows seen.
        mean: `(d,)`, float64.
        scatter: `(d, d)`, float64: the sum of (x−μ)(x−μ)ᵀ.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(0)
        self.scatter: NDArray[np.float64] = np.zeros((0, 0))

    @classmethod
    def from_vectors(cls, vectors: Vectors, block_rows: int = BLOCK_ROWS) -> Self:
        """Moments of all rows of an array, memmap or view of shape `(n, d)`, in one pass.

        Raises:
            InputError: for NaN, inf or a shape that is not `(n, d)`.
        """
        moments = cls()
        for block in row_blocks(vectors, block_rows):
            moments.update(block)
        return moments

    @property
    def dimensions(self) -> int:
        """The width d of the vectors seen; 0 before the first."""
        return len(self.mean)

    def update(self, batch: Vectors) -> Self:
        """Add the rows of one batch `(n, d)`.

        Raises:
            InputError: for NaN, inf, or a width other than before.
        """
        require_matrix(batch)
        block: FloatArray = as_numpy(batch)
        if block.shape[0] == 0:
            return self
        require_finite(block, first_row=self.count)
        exact = block.astype(np.float64)
        part = type(self)()
        part.count = exact.shape[0]
        part.mean = exact.mean(axis=0)
        exact -= part.mean
        part.scatter = exact.T @ exact
        return self.merge(part)

    def merge(self, other: "Moments") -> Self:
        """Add another's rows to these, in place.

        Raises:
            InputError: if the widths differ.
        """
        if other.count == 0:
            return self
        if self.count == 0:
            self.count, self.mean, self.scatter = other.count, other.mean.copy(), other.scatter.copy()
            return self
        if self.dimensions != other.dimensions:
            raise InputError(f"cannot merge vectors {other.dimensions} wide into moments {self.dimensions} wide")
        total = self.count + other.count
        delta = other.mean - self.mean
        self.mean = self.mean + delta * (other.count / total)
        self.scatter = self.scatter + other.scatter + np.outer(delta, delta) * (self.count * other.count / total)
        self.count = total
        return self

    def covariance(self, ddof: int = 1) -> NDArray[np.float64]:
        """The centred covariance `(d, d)`, the scatter over `count − ddof`.

        Raises:
            InputError: with no more than `ddof` rows.
        """
        if self.count <= ddof:
            raise InputError(f"a covariance with ddof={ddof} needs more than {ddof} rows, got {self.count}")
        return self.scatter / (self.count - ddof)

    def second_moment(self) -> NDArray[np.float64]:
        """The uncentred second moment `(d, d)`, the mean of xxᵀ."""
        return self.covariance(ddof=0) + np.outer(self.mean, self.mean)

    def mean_norm(self) -> float:
        """‖μ‖: for unit vectors 0 is no common direction, 1 is nothing else."""
        return float(np.linalg.norm(self.mean))

    def noise_floor(self) -> float:
        """√(tr Σ / n): the length ‖μ‖ would have by chance if the true mean were zero."""
        return float(np.sqrt(np.trace(self.scatter)) / max(self.count, 1))
