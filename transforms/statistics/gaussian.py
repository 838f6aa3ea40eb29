"""A Gaussian with equal variance in all but a few directions: probabilistic PCA."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from transforms.statistics.moments import Moments
from transforms.statistics.spectrum import NOTHING, Spectrum
from transforms.vectors import FloatArray

MAX_DIRECTIONS = 128


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(μ, Σ λᵢ vᵢvᵢᵀ + σ² (I − Σ vᵢvᵢᵀ)), with the r largest variances λᵢ and σ² the mean of the rest.

    The maximum-likelihood fit of Tipping and Bishop, *Probabilistic Principal Component Analysis*
    (1999), Eq. 7 and 8; r is 128, or less if the rows vary in fewer directions.

    Attributes:
        mean: `(d,)` float32.
        directions: `(r, d)` float32, v.
        variances: `(r + 1,)` float32, λ descending, then σ².
    """

    mean: NDArray[np.float32]
    directions: NDArray[np.float32]
    variances: NDArray[np.float32]

    @classmethod
    def fit(cls, moments: Moments) -> "Gaussian":
        """Fit a Gaussian to the moments of rows."""
        spectrum = Spectrum.of(moments.covariance(ddof=0), moments.rounding())
        r = min(MAX_DIRECTIONS, moments.dimensions - 1, spectrum.rank)
        least = max(NOTHING * float(spectrum.values.sum()), float(np.finfo(np.float32).tiny))  # σ divides
        rest = max(float(spectrum.values[r:].mean()), least)
        variances = np.append(spectrum.values[:r], rest)
        return cls(*(array.astype(np.float32) for array in (moments.mean, spectrum.directions[:r], variances)))

    def to_moments(self, count: int) -> Moments:
        """Return the moments of so many rows of this distribution; third and fourth moments are zero."""
        found = Moments()
        along, rest = self.directions.astype(np.float64), float(self.variances[-1])
        covariance = rest * np.eye(self.dimensions) + (along.T * (self.variances[:-1] - rest)) @ along
        found.count, found.mean, found.scatter = count, self.mean.astype(np.float64), count * covariance
        found.third = np.zeros(self.dimensions)
        return found

    @property
    def dimensions(self) -> int:
        """Dimensions d."""
        return len(self.mean)

    @property
    def mean_norm(self) -> float:
        """‖μ‖."""
        return float(np.linalg.norm(self.mean.astype(np.float64)))

    @cached_property
    def spread(self) -> np.float32:
        """σ, in which standardized rows are measured."""
        found: np.float32 = np.sqrt(self.variances[-1])
        return found

    @cached_property
    def gains(self) -> NDArray[np.float32]:
        """σ²/λ − 1 `(r,)`: how the variance of a direction changes a score."""
        found: NDArray[np.float32] = self.variances[-1] / self.variances[:-1] - np.float32(1)
        return found

    @property
    def shares(self) -> list[float]:
        """Shares of the variance along the directions, descending."""
        rest = float(self.variances[-1]) * (self.dimensions - len(self.directions))
        shares = self.variances[:-1] / (float(self.variances[:-1].sum(dtype=np.float64)) + rest)
        return [round(float(share), 6) for share in shares]

    def standardize(self, rows: FloatArray) -> NDArray[np.float32]:
        """Return (x − μ)/σ of rows `(n, d)` in float32; infinite where it overflows."""
        with np.errstate(over="ignore"):
            found: NDArray[np.float32] = (rows.astype(np.float32, copy=False) - self.mean) / self.spread
        return found

    def score(self, standardized: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return how far standardized rows `(n, d)` lie from the mean, `(n,)`; infinite where it overflows float32.

        (x − μ)ᵀ C⁻¹ (x − μ)/d, the squared Mahalanobis distance per dimension, near 1 for rows it was fitted
        on. It orders rows as their likelihood does.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            along = standardized @ self.directions.T
            found = np.vecdot(standardized, standardized) + (along * along) @ self.gains
        whole = np.nan_to_num(found / self.dimensions, nan=np.inf, posinf=np.inf)
        scores: NDArray[np.float64] = whole.astype(np.float64)
        return scores
