"""Eigenvalues and eigenvectors of covariance matrices, in descending order and with reproducible signs.

Subspaces are here too, and what follows from the eigenvalues alone: probabilistic PCA, a Gaussian with equal variance
in all but a few directions, and spectral tempering, which says how strongly to whiten a reduction.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
    def from_matrix(cls, matrix: NDArray[np.float64], rounding: float = 0.0) -> "Spectrum":
        """Compute eigenvalues, descending and 0 up to `rounding`, and eigenvectors of a symmetric matrix `(d, d)`."""
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
        """Check that at least `dimensions` eigenvalues are not zero, so that the data determine as many eigenvectors.

        Eigenvectors beyond the rank are arbitrary: a map that uses them looks fitted and is not.

        Args:
            kind: kind of the transform, for the message.
            dimensions: number of eigenvectors needed.
            rows: number of fitted rows, for the message.

        Raises:
            InputError: if the rank is lower.
        """
        if self.rank < dimensions:
            remedy = f", or ask for at most {self.rank}" if self.rank else ""
            raise InputError(
                f"{kind} needs {dimensions} directions in which the vectors vary, these {rows} rows have "
                f"{self.rank}: fit on more rows that differ{remedy}"
            )


def participation_ratio(matrix: NDArray[np.float64]) -> float:
    """Return the participation ratio tr(C)²/‖C‖²_F of a covariance matrix C, its effective number of dimensions.

    It is from 1 to d, or 0 if C = 0.
    """
    squares = float((matrix * matrix).sum())
    return float(matrix.trace()) ** 2 / squares if squares > 0 else 0.0


MIN_EIGENVALUE = 1e-6
"""Smallest eigenvalue of the query metric relative to the largest: a direction that no query has keeps a little weight,
because later queries may have it."""


def compute_query_metric_roots(queries: Moments, weighting: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return square root and inverse square root `(d, d)` of the queries' metric M_λ, the identity for λ = 0.

    M_λ mixes the identity with the queries' second moment M, and so weights a direction by how far queries reach along
    it: M_λ = (1 − λ)·I + λ·M/(tr M/d) with M = E[qqᵀ]. The expected squared error of a score ⟨q, e⟩ over queries q is
    eᵀMe, the squared norm of M^½e. Eigenvalues are at least `MIN_EIGENVALUE` of the largest.

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

    spectrum = Spectrum.from_matrix((1 - weighting) * np.eye(d) + weighting / level * moment)
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
        """Return the squared norm `(n,)` of the component of each row that is orthogonal to the subspace.

        The rows are `(n, d)`.
        """
        along = rows @ self.directions.T
        energy: NDArray[np.float64] = np.vecdot(along, along).astype(np.float64)
        if not self.complement:
            # ‖x − Px‖² = ‖x‖² − ‖Px‖² for the projection P; rounding can make the difference negative.
            energy = np.maximum(np.vecdot(rows, rows) - energy, 0)
        return energy


MAX_DIRECTIONS = 128
"""Maximum number of principal directions r of a fitted Gaussian."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """The Gaussian of probabilistic PCA: variances λᵢ along r principal directions vᵢ, σ² in all other directions.

    N(μ, Σ λᵢ vᵢvᵢᵀ + σ² (I − Σ vᵢvᵢᵀ)), with the r largest variances λᵢ, and σ² the mean of the others. This is the
    maximum-likelihood fit of Tipping and Bishop, *Probabilistic Principal Component Analysis* (1999), Eq. 7 and 8;
    r is 128, or less if the rows vary in fewer directions.

    Attributes:
        mean: `(d,)` float32, μ.
        directions: `(r, d)` float32, the vᵢ as orthonormal rows.
        variances: `(r + 1,)` float32, the λᵢ descending, then σ².
    """

    mean: NDArray[np.float32]
    directions: NDArray[np.float32]
    variances: NDArray[np.float32]

    @classmethod
    def fit(cls, moments: Moments) -> "Gaussian":
        """Fit a Gaussian (probabilistic PCA) to moments.

        It has the mean, up to 128 principal directions with their variances, and one variance for all other directions.
        """
        spectrum = Spectrum.from_matrix(moments.covariance(ddof=0), moments.rounding_variance())
        # At least one direction is left over, because σ² is the mean of the other variances (Eq. 8).
        r = min(MAX_DIRECTIONS, moments.dimensions - 1, spectrum.rank)
        min_variance = max(RANK_TOLERANCE * float(spectrum.values.sum()), float(np.finfo(np.float32).tiny))  # σ divides
        noise_variance = max(float(spectrum.values[r:].mean()), min_variance)
        variances = np.append(spectrum.values[:r], noise_variance)
        return cls(*(array.astype(np.float32) for array in (moments.mean, spectrum.directions[:r], variances)))

    @property
    def dimensions(self) -> int:
        """Number of dimensions d."""
        return len(self.mean)

    @property
    def mean_norm(self) -> float:
        """L2 norm of the mean, ‖μ‖."""
        return float(np.linalg.norm(self.mean.astype(np.float64)))

    @cached_property
    def spread(self) -> np.float32:
        """Standard deviation σ outside the principal directions, by which `standardize` divides."""
        deviation: np.float32 = np.sqrt(self.variances[-1])
        return deviation

    @cached_property
    def gains(self) -> NDArray[np.float32]:
        """Weights σ²/λ − 1 `(r,)` of the squared coordinates along the principal directions, used by `score`."""
        weights: NDArray[np.float32] = self.variances[-1] / self.variances[:-1] - np.float32(1)
        return weights

    @cached_property
    def _excess_directions(self) -> NDArray[np.float32]:
        """Principal directions of length √(λᵢ − σ²), `(r, d)`."""
        excess = np.maximum(self.variances[:-1] - self.variances[-1], 0)
        scaled: NDArray[np.float32] = self.directions * np.sqrt(excess)[:, None]
        return scaled

    @property
    def shares(self) -> list[float]:
        """Share of the variance along each principal direction, in descending order, rounded to 6 decimals."""
        noise_variance = float(self.variances[-1]) * (self.dimensions - len(self.directions))
        shares = self.variances[:-1] / (float(self.variances[:-1].sum(dtype=np.float64)) + noise_variance)
        return [round(float(share), 6) for share in shares]

    def standardize(self, rows: FloatArray) -> NDArray[np.float32]:
        """Return rows x `(n, d)` as (x − μ)/σ in float32, with one σ for all dimensions.

        A number that overflows becomes inf.
        """
        with np.errstate(over="ignore"):
            standardized: NDArray[np.float32] = (rows.astype(np.float32, copy=False) - self.mean) / self.spread
        return standardized

    def measure_products(self, queries: FloatArray) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
        """Return the mean and the standard deviation, `(n,)` each, of each query's dot products with the rows.

        They are q·μ and √(qᵀCq) with the covariance C of the Gaussian. The queries are `(n, d)`.
        """
        # qᵀCq = Σ (λᵢ − σ²)(vᵢ·q)² + σ²‖q‖², so that a query costs r dot products.
        along = queries @ self._excess_directions.T
        variance = np.vecdot(along, along) + self.variances[-1] * np.vecdot(queries, queries)
        return queries @ self.mean, np.sqrt(variance)

    def score(self, standardized: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the squared Mahalanobis distance divided by d of each standardized row, `(n,)`, inf on overflow.

        It is (x − μ)ᵀ C⁻¹ (x − μ)/d, near 1 for rows like the fitted ones, and inf where float32 overflows. A lower
        score is a higher likelihood.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            # σ²C⁻¹ = I + Σ (σ²/λᵢ − 1) vᵢvᵢᵀ, so a row costs r dot products; C⁻¹ itself would cost d.
            along = standardized @ self.directions.T
            distances = np.vecdot(standardized, standardized) + (along * along) @ self.gains

        # Where squares overflow, a gain below 0 gives inf − inf = NaN.
        per_dimension = np.nan_to_num(distances / self.dimensions, nan=np.inf, posinf=np.inf)
        scores: NDArray[np.float64] = per_dimension.astype(np.float64)
        return scores


NOISE_SHARE = 0.1
"""Share of the eigenvalues, the smallest, whose mean is taken for the variance of noise."""


def compute_tempered_power(values: NDArray[np.float64], dimensions: int) -> float:
    """Return the power p, from 0 to 1, with which a reduction to `dimensions` principal directions should be whitened.

    A direction of variance λ is then scaled by λ^{−p/2}. SpecTemp (arXiv 2603.19339): with σ² the mean of the smallest
    tenth of the eigenvalues and SNR(k) = λ_k/σ² − 1,

        p(k) = min(1, SNR(k) / SNR(knee)),

    where the knee is the eigenvalue farthest below the straight line from the first to the last one before that tenth
    (Kneedle, Satopää et al., 2011). So a reduction up to the knee is whitened fully, and one that keeps directions of
    noise hardly at all. Kneedle's sensitivity is left out: the knee is the farthest point, and not the first one from
    which the distance falls.

    Args:
        values: eigenvalues `(d,)`, descending and nonnegative.
        dimensions: k, from 1 to d. If k is above nine tenths of d, p is computed for k at nine tenths of d.
    """
    signals = max(1, int(len(values) * (1 - NOISE_SHARE)))
    # The division by σ² cancels, so that empty directions, whose σ² is 0, need no case of their own.
    excess = values[:signals] - values[signals:].mean() if signals < len(values) else values
    knee = _find_knee(excess)
    if excess[knee] <= 0:  # all variances are equal: every power gives the same map up to a factor
        return 1.0
    return float(min(1.0, max(0.0, excess[min(dimensions, signals) - 1]) / excess[knee]))


def _find_knee(curve: NDArray[np.float64]) -> int:
    """Return the position of the knee of a descending curve, farthest below the line between its ends, 0 if flat.

    It is also 0 for fewer than three points.
    """
    height = curve[0] - curve[-1]
    if len(curve) < 3 or height <= 0:
        return 0
    # Both axes on [0, 1], so that the distance does not depend on the scale of the eigenvalues.
    line = np.linspace(1, 0, len(curve))
    return int((line - (curve - curve[-1]) / height).argmax())


def draw_rotation(dimensions: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Draw an orthogonal matrix `(d, d)` uniformly at random, and return it."""
    rotation, triangle = np.linalg.qr(random.standard_normal((dimensions, dimensions)))
    return np.asarray(rotation * np.sign(np.diag(triangle)))  # without the signs it would not be uniform
