"""Statistics of paired score differences: tests, intervals, correlations, as in the papers.

Differences are in points, hundredths of a score, and always paired: the same task with a method and without.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lathe.training.comparison import NEGLIGIBLE, Array, Interval

RESAMPLES = 10_000
"""Number of bootstrap resamples."""
DECISIVE_T = 2.0
"""|t| beyond which a difference counts as a win or loss: the mean-bias paper's threshold of effect size, not a test of
significance (its Section 2)."""
MIN_RESAMPLED_PAIRS = 5
"""Minimum number of pairs for a bootstrap of a correlation."""
LARGE_SCORE, LARGE_SHARE = 0.1, 0.02
"""Minimum change of a score, absolute and relative to the raw score, that counts as a large effect (its Appendix O)."""
OUTLIER_Z = 2.0
"""Number of standard deviations from an encoder's mean difference beyond which a difference is an outlier (its Table
6)."""

Verdict = Literal["win", "tie", "loss"]


@dataclass(frozen=True)
class PairedTest:
    """Paired test of score differences over tasks, for one encoder, method and group of tasks.

    Attributes:
        n: number of tasks.
        mean: mean difference in points.
        t: mean divided by its standard error; None for one task, or if all differences are equal.
        p: two-sided p-value; None if `t` is.
        sigma_cell: Eq. 12 of the mean-bias paper; it ignores the pairing and is kept for comparison.
    """

    n: int
    mean: float
    t: float | None
    p: float | None
    sigma_cell: float | None

    @property
    def verdict(self) -> Verdict:
        """Outcome of the test: "win" if t > 2, "loss" if t < −2, else "tie", also without t."""
        t = self.t or 0.0
        return "win" if t > DECISIVE_T else "loss" if t < -DECISIVE_T else "tie"


@dataclass(frozen=True)
class Correlation:
    """Pearson's r and Spearman's ρ of n pairs, with bootstrap intervals, and the p-value of ρ."""

    n: int
    pearson: Interval
    spearman: Interval
    p: float | None


def paired_test(scores: Array, control: Array) -> PairedTest:
    """Compute the paired t-test of scores `(n,)` against the control's, and σ_cell = n·Δ̄ / s_control (Eq. 12).

    Scores are fractions; the test is in points. Without any task the mean is 0.
    """
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


def bootstrap(values: Array, seed: int = 0) -> Interval:
    """Return the mean of values `(n,)`, or of `(n, m)`, with a 95 % bootstrap interval that resamples the n rows.

    Rows are tasks, which another study would sample differently. With fewer than two rows there are no bounds,
    and without rows the mean is 0.
    """
    rows = values if values.ndim == 1 else values.mean(axis=1)
    if len(rows) < 2:
        return Interval(float(rows.mean()) if len(rows) else 0.0, None, None)
    drawn = np.random.default_rng(seed).integers(0, len(rows), (RESAMPLES, len(rows)))
    means = rows[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(rows.mean()), float(low), float(high))


def bootstrap_ratio(scores: Array, control: Array, rival: Array | None = None, seed: int = 0) -> Interval:
    """Return the ratio of a method's mean score to the raw vectors', averaged over encoders, with its interval.

    The 95 % interval is from bootstrapping tasks. With a rival method, the difference of the two methods' ratios is
    returned instead. This is Eq. 2 of GeoPres, whose M is the mean metric of a group of data sets. The difference is
    method minus rival. With fewer than two tasks there are no bounds.

    Args:
        scores: `(n, m)`, tasks by encoders.
        control: scores of the raw vectors, `(n, m)`.
        rival: scores of another method, `(n, m)`, or None.
        seed: seed of the resamples.
    """
    scored = scores if rival is None else scores - rival
    n = len(scored)
    value = float((scored.mean(axis=0) / control.mean(axis=0)).mean())
    if n < 2:
        return Interval(value, None, None)

    samples = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    # How often each task is in each resample, (resamples, tasks): a product with (tasks, encoders) gives all sums.
    weights = np.zeros((RESAMPLES, n))
    np.add.at(weights, (np.arange(RESAMPLES)[:, None], samples), 1.0)

    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = ((weights @ scored) / (weights @ control)).mean(axis=1)

    # A resample whose control sums to zero has no ratio.
    low, high = np.quantile(ratios[np.isfinite(ratios)], [0.025, 0.975])
    return Interval(value, float(low), float(high))


def correlate(x: Array, y: Array, seed: int = 0) -> Correlation | None:
    """Compute Pearson's r and Spearman's ρ of x `(n,)` and y `(n,)`, each with a 95 % bootstrap interval, and ρ's p.

    Return None with fewer than 3 pairs, or if x or y is constant. With fewer than `MIN_RESAMPLED_PAIRS` pairs the
    intervals have no bounds.
    """
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    drawn = np.random.default_rng(seed).integers(0, len(x), (RESAMPLES, len(x)))
    ranks = stats.rankdata(x), stats.rankdata(y)
    return Correlation(
        n=len(x),
        pearson=_add_interval(row_correlation, x, y, drawn),
        spearman=_add_interval(rank_correlation, ranks[0], ranks[1], drawn),
        p=float(stats.spearmanr(x, y).pvalue),
    )


def _add_interval(measure: Callable[[Array, Array], Array], x: Array, y: Array, drawn: NDArray[np.int64]) -> Interval:
    """Return a correlation of all pairs with its 95 % bootstrap interval.

    Resamples where it is undefined are ignored. There are no bounds with fewer than `MIN_RESAMPLED_PAIRS` pairs: nearly
    every resample repeats some, and three pairs in a row give [1, 1].

    Args:
        measure: correlation of corresponding rows, `(b, n)` and `(b, n)` to `(b,)`.
        x: values `(n,)`.
        y: values `(n,)`.
        drawn: resampled indices, `(resamples, n)`.
    """
    value = float(measure(x[None], y[None])[0])
    if len(x) < MIN_RESAMPLED_PAIRS:
        return Interval(value, None, None)
    resampled = measure(x[drawn], y[drawn])
    resampled = resampled[np.isfinite(resampled)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def row_correlation(x: Array, y: Array) -> Array:
    """Return Pearson's r of corresponding rows, `(b, n)` and `(b, n)` to `(b,)`.

    It is NaN where a row is constant.
    """
    varies = (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0)
    x = x - x.mean(axis=1, keepdims=True)
    y = y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.where(varies, (x * y).sum(axis=1) / np.where(varies, scale, 1), np.nan)


def rank_correlation(x: Array, y: Array) -> Array:
    """Return Spearman's ρ of corresponding rows, `(b, n)` and `(b, n)` to `(b,)`.

    It is NaN where a row is constant.
    """
    return row_correlation(stats.rankdata(x, axis=1), stats.rankdata(y, axis=1))


def is_large(score: float, control: float) -> bool:
    """Return whether two scores differ by more than 0.1 and by more than 2 % of the control's score."""
    difference = abs(score - control)
    return difference > LARGE_SCORE and difference > LARGE_SHARE * abs(control)


def standardize(differences: Array) -> Array:
    """Return the z-scores `(n,)` of an encoder's differences in points, (Δ − Δ̄) / s.

    They are zeros if all differences are equal.
    """
    spread = differences.std(ddof=1) if len(differences) > 1 else 0.0
    if spread < NEGLIGIBLE:
        return np.zeros(len(differences))
    return np.asarray((differences - differences.mean()) / spread)


def outlier_shares(differences: Array) -> tuple[float, float]:
    """Return the shares of an encoder's differences `(n,)` with z > 2 and with z < −2."""
    return shares_beyond(standardize(differences))


def shares_beyond(z: Array) -> tuple[float, float]:
    """Return the shares of z-scores `(n,)` above 2 and below −2.

    They are zeros for an empty array.
    """
    n = max(len(z), 1)
    return int((z > OUTLIER_Z).sum()) / n, int((z < -OUTLIER_Z).sum()) / n


def leave_one_out(names: Sequence[str]) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return, for each distinct name, the name and a mask `(n,)` of the items that have another name."""
    items = np.array(names)
    return [(name, items != name) for name in dict.fromkeys(names)]
