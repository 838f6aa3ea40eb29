"""Eigenvalues and principal directions of a symmetric matrix, repeatable and in descending order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transforms.errors import InputError

NOTHING = 1e-13
"""A variance below this share of the total is rounding error: directions without variance have 1e-14 and less of it
in float32 rows, 1e-16 in float64 arithmetic."""

TIE = 1e-6
"""Entries of a direction this close in size, relatively, count as equal."""


@dataclass(frozen=True)
class Spectrum:
    """The eigendecomposition of a covariance or second moment.

    Attributes:
        values: `(d,)`, descending, none below zero.
        directions: `(d, d)`, the i-th row a unit vector that belongs to the i-th value. The sign
            is arbitrary; each has its largest entry (the first of several) positive, so that fits are repeatable.
    """

    values: NDArray[np.float64]
    directions: NDArray[np.float64]

    @classmethod
    def of(cls, matrix: NDArray[np.float64], rounding: float = 0.0) -> "Spectrum":
        """Decompose a symmetric matrix `(d, d)`; values below `rounding` count as zero."""
        values, vectors = np.linalg.eigh(matrix)
        directions = np.ascontiguousarray(vectors[:, ::-1].T)
        sizes = np.abs(directions)
        # Rounding must not choose among entries that are equal up to rounding: (1, −1)/√2 could get either sign.
        largest = (sizes >= (1 - TIE) * sizes.max(axis=1, keepdims=True)).argmax(axis=1)
        directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
        return cls(np.where(values[::-1] > rounding, values[::-1], 0), directions)

    @property
    def rank(self) -> int:
        """Number of values above rounding error."""
        return int((self.values > NOTHING * self.values.sum()).sum())

    def require_rank(self, kind: str, dimensions: int, rows: int) -> None:
        """Raise `InputError` if the rank is below `dimensions`.

        Eigenvectors beyond the rank are arbitrary: a map that uses them looks fitted and is not.
        """
        if self.rank < dimensions:
            remedy = f", or ask for at most {self.rank}" if self.rank else ""
            raise InputError(
                f"{kind} needs {dimensions} directions in which the vectors vary, these {rows} rows have "
                f"{self.rank}: fit on more rows that differ{remedy}"
            )


def participation_ratio(matrix: NDArray[np.float64]) -> float:
    """Return tr(C)²/‖C‖²_F, the number of directions that the variance is spread over, 1 to d; 0 without variance."""
    squares = float((matrix * matrix).sum())
    return float(matrix.trace()) ** 2 / squares if squares > 0 else 0.0
