"""Is it better, and how sure are we: the statistics of the papers, on arrays.

Differences are in points, a hundredth of a score, and always paired: the same task with a method and without.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

DECISIVE_T = 2.0
"""|t| beyond which a difference counts as won or lost: the mean-bias paper's window of effect size, no test of
significance (its Section 2)."""
RESAMPLED_LEAST = 5
RESAMPLES = 10_000
"""Of a bootstrap, as in that paper (its Appendix U)."""
LARGE_SCORE, LARGE_SHARE = 0.1, 0.02
"""A large effect: more than .1 of the score and 2 % of it (its Appendix O)."""
NEGLIGIBLE = 1e-9
"""Points: less is rounding, of differences that are all equal."""
OUTSTANDING_Z = 2.0
"""Standard deviations of an encoder's own differences beyond which one stands out (its Table 6)."""

Verdict = Literal["win", "tie", "loss"]


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its interval, of 95 % unless said; None where there is too little to say."""

    value: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """1 or −1 where the interval lies on one side of zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


@dataclass(frozen=True)
class PairedTest:
    """Differences of tasks in one cell: an encoder, a method, a family of tasks.

    Attributes:
        n: tasks.
        mean: difference in points.
        t: mean over its standard error; None for one task, or where all differences are equal.
        p: two-sided.
        sigma_cell: Eq. 12 of the mean-bias paper; not a paired test, kept for comparison.
    """

    n: int
    mean: float
    t: float | None
    p: float | None
    sigma_cell: float | None

    @property
    def verdict(self) -> Verdict:
        """Won or lost at |t| > 2."""
        t = self.t or 0.0
        return "win" if t > DECISIVE_T else "loss" if t < -DECISIVE_T else "tie"


@dataclass(frozen=True)
class Correlation:
    """Pearson's r and Spearman's ρ of pairs, with bootstrap intervals and Spearman's p."""

    n: int
    pearson: Interval
    spearman: Interval
    p: float | None


def paired_test(scores: Array, control: Array) -> PairedTest:
    """The paired t of scores `(n,)` against the control's, and σ_cell = n·Δ̄ / s of the control's scores (Eq. 12)."""
    differences = 100 * (scores - control)
    n = len(differences)
    mean = float(differences.mean()) if n else 0.0
    error = float(differences.std(ddof=1)) / np.sqrt(n) if n > 1 else 0.0
    spread = 100 * float(control.std(ddof=1)) if n > 1 else 0.0
    t = mean / error if error > NEGLIGIBLE else None
    return PairedTest(
        n=n,
        mean=mean,
        t=t,
        p=None if t is None else float(2 * stats.t.sf(abs(t), n - 1)),
        sigma_cell=n * mean / spread if spread > 0 else None,
    )


def holm(p: Sequence[float | None]) -> list[float | None]:
    """p-values of a family of tests as Holm (1979) corrects them; tests without one are none of the family."""
    known = sorted((value, place) for place, value in enumerate(p) if value is not None)
    found: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, (value, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        found[place] = largest
    return found


def mean_interval(values: Array, confidence: float = 0.95) -> Interval:
    """The mean of values `(n,)` with Student's interval; values that are all equal have none."""
    mean = float(values.mean())
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    if error == 0:
        return Interval(mean, None, None)
    reach = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return Interval(mean, mean - reach, mean + reach)


def bootstrap(values: Array, seed: int = 0) -> Interval:
    """The mean of rows `(n,)`, or of their means `(n, m)`, with the interval of resampled rows.

    The rows are what another study would have drawn anew: tasks.
    """
    rows = values if values.ndim == 1 else values.mean(axis=1)
    if len(rows) < 2:
        return Interval(float(rows.mean()) if len(rows) else 0.0, None, None)
    drawn = np.random.default_rng(seed).integers(0, len(rows), (RESAMPLES, len(rows)))
    means = rows[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(rows.mean()), float(low), float(high))


def bootstrap_ratio(scores: Array, control: Array, rival: Array | None = None, seed: int = 0) -> Interval:
    """Mean scores over the control's mean, of encoders `(n, m)` averaged, with the interval of resampled tasks.

    Eq. 2 of GeoPres, whose M is the mean metric of a group of data sets. With a rival: how much of the control's mean
    is kept more than by it.
    """
    kept = scores if rival is None else scores - rival
    n = len(kept)
    value = float((kept.mean(axis=0) / control.mean(axis=0)).mean())
    if n < 2:
        return Interval(value, None, None)
    drawn = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    weights = np.zeros((RESAMPLES, n))
    np.add.at(weights, (np.arange(RESAMPLES)[:, None], drawn), 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = ((weights @ kept) / (weights @ control)).mean(axis=1)
    low, high = np.quantile(ratios[np.isfinite(ratios)], [0.025, 0.975])
    return Interval(value, float(low), float(high))


def correlate(x: Array, y: Array, seed: int = 0) -> Correlation | None:
    """How two measures of the same things `(n,)` go together; None for fewer than 3, or where one never varies."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    drawn = np.random.default_rng(seed).integers(0, len(x), (RESAMPLES, len(x)))
    ranks = stats.rankdata(x), stats.rankdata(y)
    return Correlation(
        n=len(x),
        pearson=with_interval(row_correlation, x, y, drawn),
        spearman=with_interval(rank_correlation, ranks[0], ranks[1], drawn),
        p=float(stats.spearmanr(x, y).pvalue),
    )


def with_interval(measure: Callable[[Array, Array], Array], x: Array, y: Array, drawn: NDArray[np.int64]) -> Interval:
    """A correlation of all pairs, and the interval of those of resampled ones; draws of one pair alone say nothing.

    Of fewer than `RESAMPLED_LEAST` pairs there is none: nearly every draw repeats some, and three in a row give [1, 1].
    """
    value = float(measure(x[None], y[None])[0])
    if len(x) < RESAMPLED_LEAST:
        return Interval(value, None, None)
    resampled = measure(x[drawn], y[drawn])
    resampled = resampled[np.isfinite(resampled)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def row_correlation(x: Array, y: Array) -> Array:
    """Pearson's r of corresponding rows `(b, n)`; NaN where one never varies."""
    varies = (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0)
    x = x - x.mean(axis=1, keepdims=True)
    y = y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.where(varies, (x * y).sum(axis=1) / np.where(varies, scale, 1), np.nan)


def rank_correlation(x: Array, y: Array) -> Array:
    """Spearman's ρ of corresponding rows `(b, n)`."""
    return row_correlation(stats.rankdata(x, axis=1), stats.rankdata(y, axis=1))


def is_large(score: float, control: float) -> bool:
    """Whether a difference of scores is a large effect."""
    difference = abs(score - control)
    return difference > LARGE_SCORE and difference > LARGE_SHARE * abs(control)


def standardized(differences: Array) -> Array:
    """How many of their standard deviations an encoder's differences `(n,)` in points lie from their mean."""
    spread = differences.std(ddof=1) if len(differences) > 1 else 0.0
    if spread < NEGLIGIBLE:
        return np.zeros(len(differences))
    return np.asarray((differences - differences.mean()) / spread)


def outstanding(differences: Array) -> tuple[float, float]:
    """Shares of an encoder's differences `(n,)` two of their standard deviations above, and below, their mean."""
    return beyond(standardized(differences))


def beyond(z: Array) -> tuple[float, float]:
    """Shares of standardized differences `(n,)` above 2 and below −2."""
    n = max(len(z), 1)
    return int((z > OUTSTANDING_Z).sum()) / n, int((z < -OUTSTANDING_Z).sum()) / n


def leave_out(names: Sequence[str]) -> list[tuple[str, NDArray[np.bool_]]]:
    """For each distinct name, which of the items remain without those of that name."""
    items = np.array(names)
    return [(name, items != name) for name in dict.fromkeys(names)]
