"""Comparison of candidates on held-out data: paired differences with confidence intervals, and the choice of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Array of float64."""

NEGLIGIBLE = 1e-9
"""Values whose range is below this number count as equal: the range comes from rounding errors."""


@dataclass(frozen=True)
class Interval:
    """Estimate of a value with the bounds of its confidence interval.

    Attributes:
        value: the estimate.
        low: lower bound of the interval, by default at the 95 % level; None with too few data.
        high: upper bound of the interval; None with too few data.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound. Without an interval both are `value`."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)

    @property
    def reach(self) -> float | None:
        """Half the length of the interval, or None without bounds."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 if the whole interval is above zero, −1 if it is below zero, else 0, as without bounds."""
        if self.low is None or self.high is None:
            return 0
        if self.low > 0:
            return 1
        return -1 if self.high < 0 else 0


def mean_interval(values: Array, confidence: float = 0.95) -> Interval:
    """Compute the mean of values `(n,)` with Student's t confidence interval, without bounds for equal values."""
    from scipy import stats  # takes half a second, which a server's start need not wait for

    mean = float(values.mean())
    if np.ptp(values) < NEGLIGIBLE:
        return Interval(mean, None, None)
    # The standard error of the mean, with n − 1 degrees of freedom.
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return Interval(mean, mean - reach, mean + reach)


def compare(after: Array, before: Array, confidence: float = 0.95) -> Interval:
    """Compute the mean of the paired differences `after - before`, `(n,)` each, with its confidence interval.

    With a single pair, or if all differences are equal, the bounds are None.
    """
    return mean_interval(after - before, confidence)


def choose_cheapest(scores: Sequence[Array], confidence: float = 0.95) -> int:
    """Return the index of the cheapest candidate that beats the baseline and that no such candidate beats, 0 if none.

    Index 0 is the baseline. A candidate beats another if the confidence interval of the paired difference lies above
    zero.

    Args:
        scores: scores of the same units for each candidate, `(n,)` each: first the baseline without a change, then the
            candidates from the cheapest.
        confidence: level of the confidence intervals.
    """
    better = [index for index, score in enumerate(scores) if compare(score, scores[0], confidence).sign > 0]
    for index in better:
        # No candidate beats the one with the highest mean, so if there are better candidates, one is returned.
        if not any(compare(scores[other_index], scores[index], confidence).sign > 0 for other_index in better):
            return index
    return 0
