"""Probabilistic PCA: a Gaussian with equal variance in all but a few directions."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.statistics.moments import Moments
from lathe.transforms.statistics.spectrum import RANK_TOLERANCE, Spectrum
from lathe.transforms.vectors import FloatArray

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
        """Fit a Gaussian (probabilistic PCA) to moments, and return it. It has the mean, up to 128 principal directions
        with their variances, and one variance for all other directions.
        """
        spectrum = Spectrum.of(moments.covariance(ddof=0), moments.rounding_variance())
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

    @property
    def shares(self) -> list[float]:
        """Share of the variance along each principal direction, in descending order, rounded to 6 decimals."""
        noise_variance = float(self.variances[-1]) * (self.dimensions - len(self.directions))
        shares = self.variances[:-1] / (float(self.variances[:-1].sum(dtype=np.float64)) + noise_variance)
        return [round(float(share), 6) for share in shares]

    def standardize(self, rows: FloatArray) -> NDArray[np.float32]:
        """Standardize rows x `(n, d)` to (x − μ)/σ in float32, with one σ for all dimensions. A number that overflows
        is inf.
        """
        with np.errstate(over="ignore"):
            standardized: NDArray[np.float32] = (rows.astype(np.float32, copy=False) - self.mean) / self.spread
        return standardized

    def score(self, standardized: NDArray[np.float32]) -> NDArray[np.float64]:
        """Score how far standardized rows lie from the mean, and return the scores `(n,)`. A score is the squared
        Mahalanobis distance divided by d.

        That is (x − μ)ᵀ C⁻¹ (x − μ)/d, near 1 for rows like the fitted ones, and inf where float32 overflows. A lower
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
