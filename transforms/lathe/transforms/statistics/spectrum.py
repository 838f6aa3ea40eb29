"""Eigenvalues and eigenvectors of covariance matrices, in descending order and with reproducible signs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError

RANK_TOLERANCE = 1e-13
"""A variance below this fraction of the total counts as zero.

Rounding error gives a direction without variance up to 1e-14 of the total in float32 rows, 1e-16 in float64 arithmetic.
"""

TIE = 1e-6
"""Relative difference below which the absolute values of two eigenvector entries count as equal."""


@dataclass(frozen=True)
class Spectrum:
    """The eigendecomposition of a covariance or second moment matrix.

    Attributes:
        values: `(d,)`, eigenvalues, descending and nonnegative.
        directions: `(d, d)`, eigenvectors of unit norm as rows, in the same order. The entry of largest absolute value
            (the first of several) is made positive, so that fits are reproducible.
    """

    values: NDArray[np.float64]
    directions: NDArray[np.float64]

    @classmethod
    def of(cls, matrix: NDArray[np.float64], rounding: float = 0.0) -> "Spectrum":
        """Compute the eigendecomposition of a symmetric matrix `(d, d)`; eigenvalues up to `rounding` are set to 0."""
        # `eigh` sorts in ascending order; the copy gives the reversed view the positive strides that torch needs.
        values, vectors = np.linalg.eigh(matrix)
        directions = np.ascontiguousarray(vectors[:, ::-1].T)
        sizes = np.abs(directions)
        # Rounding must not choose among entries that are equal up to rounding: (1, −1)/√2 could get either sign.
        largest = (sizes >= (1 - TIE) * sizes.max(axis=1, keepdims=True)).argmax(axis=1)
        directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
        # Rounding can make zero eigenvalues negative, and then their roots and powers NaN.
        return cls(np.where(values[::-1] > rounding, values[::-1], 0), directions)

    @property
    def rank(self) -> int:
        """Numerical rank: number of eigenvalues above 1e-13 (`RANK_TOLERANCE`) of their sum."""
        return int((self.values > RANK_TOLERANCE * self.values.sum()).sum())

    def require_rank(self, kind: str, dimensions: int, rows: int) -> None:
        """Raise `InputError` if the numerical rank is below `dimensions`.

        Eigenvectors beyond the rank are arbitrary: a map that uses them looks fitted and is not.

        Args:
            kind: kind of the transform, for the message.
            dimensions: number of eigenvectors needed.
            rows: number of fitted rows, for the message.
        """
        if self.rank < dimensions:
            remedy = f", or ask for at most {self.rank}" if self.rank else ""
            raise InputError(
                f"{kind} needs {dimensions} directions in which the vectors vary, these {rows} rows have "
                f"{self.rank}: fit on more rows that differ{remedy}"
            )


def participation_ratio(matrix: NDArray[np.float64]) -> float:
    """Return tr(C)²/‖C‖²_F, the effective number of dimensions of a covariance matrix C, from 1 to d; 0 if C = 0."""
    squares = float((matrix * matrix).sum())
    return float(matrix.trace()) ** 2 / squares if squares > 0 else 0.0
