"""Comparison of candidates on held-out data: differences with their intervals, and the choice by them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Array of float64."""

NEGLIGIBLE = 1e-9
"""Differences in points below this are rounding errors of equal differences."""


@dataclass(frozen=True)
class Interval:
    """Estimate of a value with the bounds of its confidence interval.

    The level is 95 % unless the function that makes it says otherwise. Bounds are None with too few data.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound, which are both the value itself without an interval."""
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
    """Return the mean of values `(n,)` with Student's t interval at this confidence level.

    There are no bounds for one value, or if all are equal.
    """
    from scipy import stats  # takes half a second, which a server's start need not wait for

    mean = float(values.mean())
    if np.ptp(values) < NEGLIGIBLE:
        return Interval(mean, None, None)
    # The standard error of the mean, with n − 1 degrees of freedom.
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return Interval(mean, mean - reach, mean + reach)


def compare(after: Array, before: Array, confidence: float = 0.95) -> Interval:
    """Return the mean difference of two measures of the same units, `(n,)` each, paired by unit, with its interval.

    There are no bounds for one unit, or if all differences are equal.
    """
    return mean_interval(after - before, confidence)


def choose_cheapest(scores: Sequence[Array], confidence: float = 0.95) -> int:
    """Return the index of the first candidate that beats the first one and that no other such candidate beats.

    It is 0 if no candidate beats the first. One candidate beats another if its mean is higher by more than the interval
    of the paired difference.

    Args:
        scores: a measure of the same units for each candidate, `(n,)` each: what there is without a change, then the
            candidates, the cheapest first.
        confidence: level of the intervals.
    """
    better = [index for index, score in enumerate(scores) if compare(score, scores[0], confidence).sign > 0]
    for index in better:
        # None beats the candidate with the highest mean, so this returns one of those that are better, if any is.
        if not any(compare(scores[other_index], scores[index], confidence).sign > 0 for other_index in better):
            return index
    return 0
