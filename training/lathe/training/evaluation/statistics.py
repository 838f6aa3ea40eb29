"""Estimates with their intervals."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
"""Array of float64."""

NEGLIGIBLE = 1e-9
"""Differences in points below this are rounding errors of equal differences."""
MAX_ZERO_NORM = 1e-12
"""Norm of a mean of unit vectors up to which it counts as zero, since it is only rounding error."""


@dataclass(frozen=True)
class Interval:
    """Estimate with the bounds of its interval, of level 95 % unless stated.

    Bounds are None with too few data.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound, each the value itself where there is none."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)

    @property
    def sign(self) -> int:
        """1 or −1 if the whole interval is above or below zero, else 0.

        It is also 0 without bounds.
        """
        if self.low is None or self.high is None:
            return 0
        if self.low > 0:
            return 1
        return -1 if self.high < 0 else 0


def mean_interval(values: Array, confidence: float = 0.95) -> Interval:
    """Return the mean of values `(n,)` with Student's t interval at this confidence level.
    There are no bounds for one value, or if all are equal.
    """
    mean = float(values.mean())
    if np.ptp(values) < NEGLIGIBLE:
        return Interval(mean, None, None)
    # The standard error of the mean, with n − 1 degrees of freedom.
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return Interval(mean, mean - reach, mean + reach)


def cosine_similarity(one: Array, other: Array) -> float | None:
    """Return the cosine between two means of unit vectors, `(d,)` each, or None if one is zero up to rounding."""
    lengths = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    return None if min(lengths) <= MAX_ZERO_NORM else float(one @ other) / (lengths[0] * lengths[1])
