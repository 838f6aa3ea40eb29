"""Rows as a Gaussian that is the same in all but a few directions: probabilistic PCA."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from transforms.statistics.moments import Moments
from transforms.statistics.spectrum import NOTHING, Spectrum
from transforms.vectors import FloatArray

DIRECTIONS_MOST = 128


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(μ, Σ λᵢ vᵢvᵢᵀ + σ² (I − Σ vᵢvᵢᵀ)), with the r largest variances λᵢ and σ² the mean of the rest.

    The maximum-likelihood fit of Tipping and Bishop, *Probabilistic Principal Component Analysis*
    (1999), Eq. 7 and 8; r is 128, or fewer where rows vary in fewer directions.

    Attributes:
        mean: `(d,)` float32.
        directions: `(r, d)` float32, v.
        variances: `(r + 1,)` float32, λ falling, then σ².
    """

    mean: NDArray[np.float32]
    directions: NDArray[np.float32]
    variances: NDArray[np.float32]

    @classmethod
    def of(cls, moments: Moments) -> "Gaussian":
        """That of rows, from their moments."""
        spectrum = Spectrum.of(moments.covariance(ddof=0), moments.rounding())
        r = min(DIRECTIONS_MOST, moments.dimensions - 1, spectrum.rank)
        least = max(NOTHING * float(spectrum.values.sum()), float(np.finfo(np.float32).tiny))  # σ divides
        rest = max(float(spectrum.values[r:].mean()), least)
        variances = np.append(spectrum.values[:r], rest)
        return cls(*(array.astype(np.float32) for array in (moments.mean, spectrum.directions[:r], variances)))

    def moments(self, count: int) -> Moments:
        """The moments of so many rows that are distributed so; the higher ones are zero."""
        found = Moments()
        along, rest = self.directions.astype(np.float64), float(self.variances[-1])
        covariance = rest * np.eye(self.dimensions) + (along.T * (self.variances[:-1] - rest)) @ along
        found.count, found.mean, found.scatter = count, self.mean.astype(np.float64), count * covariance
        found.third = np.zeros(self.dimensions)
        return found

    @property
    def dimensions(self) -> int:
        """The width d."""
        return len(self.mean)

    @property
    def mean_norm(self) -> float:
        """‖μ‖."""
        return float(np.linalg.norm(self.mean.astype(np.float64)))

    @cached_property
    def spread(self) -> np.float32:
        """σ, the unit that rows are measured in."""
        found: np.float32 = np.sqrt(self.variances[-1])
        return found

    @cached_property
    def gains(self) -> NDArray[np.float32]:
        """σ²/λ − 1 `(r,)`: what a direction's own variance changes in a score."""
        found: NDArray[np.float32] = self.variances[-1] / self.variances[:-1] - np.float32(1)
        return found

    @property
    def shares(self) -> list[float]:
        """The shares of the variance along the directions, falling."""
        rest = float(self.variances[-1]) * (self.dimensions - len(self.directions))
        shares = self.variances[:-1] / (float(self.variances[:-1].sum(dtype=np.float64)) + rest)
        return [round(float(share), 6) for share in shares]

    def standardised(self, rows: FloatArray) -> NDArray[np.float32]:
        """(x − μ)/σ of rows `(n, d)`, in float32; infinite past that."""
        with np.errstate(over="ignore"):
            found: NDArray[np.float32] = (rows.astype(np.float32, copy=False) - self.mean) / self.spread
        return found

    def score(self, standardised: NDArray[np.float32]) -> NDArray[np.float64]:
        """How far standardised rows `(n, d)` lie from the mean, `(n,)`; infinite past float32.

        (x − μ)ᵀ C⁻¹ (x − μ)/d, the squared Mahalanobis distance, near 1 for rows it was fitted on. It
        orders rows as their likelihood does.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            along = standardised @ self.directions.T
            found = np.vecdot(standardised, standardised) + (along * along) @ self.gains
        whole = np.nan_to_num(found / self.dimensions, nan=np.inf, posinf=np.inf)
        scores: NDArray[np.float64] = whole.astype(np.float64)
        return scores
