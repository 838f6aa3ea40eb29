"""Eigenvalues and eigenvectors of covariance matrices, in descending order and with reproducible signs.

Subspaces are here too.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError
from lathe.transforms.statistics.moments import Moments
from lathe.transforms.vectors import FloatArray

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
        """Compute the eigenvalues, in descending order, and eigenvectors of a symmetric matrix `(d, d)`. Eigenvalues up
        to `rounding` are set to 0.
        """
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
        """Check that the rank is at least `dimensions`, so that as many eigenvectors are determined by the data.

        Eigenvectors beyond the rank are arbitrary: a map that uses them looks fitted and is not.

        Args:
            kind: kind of the transform, for the message.
            dimensions: number of eigenvectors needed.
            rows: number of fitted rows, for the message.

        Raises:
            InputError: if it is lower.
        """
        if self.rank < dimensions:
            remedy = f", or ask for at most {self.rank}" if self.rank else ""
            raise InputError(
                f"{kind} needs {dimensions} directions in which the vectors vary, these {rows} rows have "
                f"{self.rank}: fit on more rows that differ{remedy}"
            )


def participation_ratio(matrix: NDArray[np.float64]) -> float:
    """Return tr(C)²/‖C‖²_F, the effective number of dimensions of a covariance matrix C.

    It is from 1 to d, or 0 if C = 0.
    """
    squares = float((matrix * matrix).sum())
    return float(matrix.trace()) ** 2 / squares if squares > 0 else 0.0


MIN_EIGENVALUE = 1e-6
"""Smallest eigenvalue of the query metric relative to the largest: a direction that no query has keeps a little weight,
because later queries may have it."""


def query_metric_roots(queries: Moments, weighting: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the square root and the inverse root of a matrix that weights directions by queries. Returns both, `(d,
    d)` each. The matrix mixes the identity with the queries' second moment.

    With M = E[qqᵀ], they are M_λ^½ and M_λ^−½ of M_λ = (1 − λ)·I + λ·M/(tr M/d). The expected squared error of a score
    ⟨q, e⟩ over queries q is eᵀMe, the squared norm of M^½e. Eigenvalues are at least `MIN_EIGENVALUE` of the largest.

    Args:
        queries: moments of the queries.
        weighting: λ, from 0 (all directions alike) to 1 (by queries alone).
    """
    d = queries.dimensions
    # Uncentred: a score ⟨q, e⟩ contains the mean of the queries too.
    moment = queries.second_moment()
    level = moment.trace() / d
    if not weighting or not np.isfinite(level) or level <= 0:
        return np.eye(d), np.eye(d)

    spectrum = Spectrum.of((1 - weighting) * np.eye(d) + weighting / level * moment)
    values = np.maximum(spectrum.values, MIN_EIGENVALUE * spectrum.values[0])
    axes = spectrum.directions

    return (axes.T * np.sqrt(values)) @ axes, (axes.T / np.sqrt(values)) @ axes


@dataclass(frozen=True)
class Subspace:
    """A linear subspace of d-dimensional space, stored as an orthonormal basis of it or of its complement.

    Attributes:
        directions: `(m, d)` float32, the basis as orthonormal rows.
        complement: whether the basis spans the orthogonal complement instead of the subspace.
    """

    directions: NDArray[np.float32]
    complement: bool

    def energy_outside(self, rows: FloatArray) -> NDArray[np.float64]:
        """Return the squared norm `(n,)` of each row's component that is orthogonal to the subspace."""
        along = rows @ self.directions.T
        energy: NDArray[np.float64] = np.vecdot(along, along).astype(np.float64)
        if not self.complement:
            # ‖x − Px‖² = ‖x‖² − ‖Px‖² for the projection P; rounding can make the difference negative.
            energy = np.maximum(np.vecdot(rows, rows) - energy, 0)
        return energy
