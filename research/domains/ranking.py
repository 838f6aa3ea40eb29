"""Whether two suites rank encoders alike: Spearman's ρ of their mean scores, and what so few encoders can tell.

*FinMTEB*, Table 12: a ρ for each type of task, over seven encoders at most.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import factorial

import numpy as np
from scipy import stats

from lathe.training.comparison import Array
from research.paper_findings.statistics import rank_correlation, row_correlation

MIN_ENCODERS = 3
"""Minimum number of encoders: with two, ρ is 1 or −1 whatever the scores are."""
MAX_EXACT = 8
"""Maximum number of encoders for which p is computed from all n! orders; 9 encoders have 362,880."""
LEVEL = 0.05
"""Significance level."""


@dataclass(frozen=True)
class RankCorrelation:
    """Rank correlation of the encoders' mean scores in two suites.

    Attributes:
        type: task type, or `all types` for the mean over types.
        encoders: names of the encoders that have scores in both suites.
        means: mean scores of these encoders in each suite.
        rho: Spearman's ρ; None if there are too few encoders or one suite's means are all equal.
        p: two-sided p-value; from all orders for at most 8 encoders, else by Student's t.
        least_p: p-value of complete agreement, the smallest possible; 0 for more than 8 encoders.
        detectable: smallest |ρ| with p ≤ .05 for that number of encoders without ties; None if even |ρ| = 1 has more.
        within: ρ between two halves of the data sets of each suite; None for a suite with fewer than 4 data sets.
        problem: why there is no ρ, else None.
    """

    type: str
    encoders: tuple[str, ...]
    means: tuple[tuple[float, ...], tuple[float, ...]]
    rho: float | None = None
    p: float | None = None
    least_p: float | None = None
    detectable: float | None = None
    within: tuple[float | None, float | None] = (None, None)
    problem: str | None = None


def compare_rankings(type_: str, first: dict[str, float], second: dict[str, float]) -> RankCorrelation:
    """Compute Spearman's ρ of the mean scores in two suites, with its p-value, over the encoders that both suites have.

    With fewer than 3 encoders, or if all means in a suite are equal, the result has a `problem` and no ρ.

    Args:
        type_: task type.
        first: mean score by encoder in the first suite.
        second: mean score by encoder in the second suite.
    """
    encoders = tuple(encoder for encoder in first if encoder in second)
    x, y = (np.array([means[encoder] for encoder in encoders]) for means in (first, second))
    known = (type_, encoders, (tuple(x.tolist()), tuple(y.tolist())))
    if len(encoders) < MIN_ENCODERS:
        problem = f"a rank correlation takes at least {MIN_ENCODERS} encoders, here are {len(encoders)}"
        return RankCorrelation(*known, problem=problem)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return RankCorrelation(*known, problem="all encoders have the same mean score in one suite")
    rho = float(rank_correlation(x[None], y[None])[0])
    n = len(encoders)
    return RankCorrelation(*known, rho, _compute_p_value(x, y), compute_least_p(n), find_detectable_rho(n))


def _compute_p_value(x: Array, y: Array) -> float:
    """Return the two-sided p-value of Spearman's ρ of x and y `(n,)`: over all orders if n ≤ 8, else by Student's t."""
    if len(x) > MAX_EXACT:
        return float(stats.spearmanr(x, y).pvalue)
    ranks = stats.rankdata(y)

    def correlation(some: Array, axis: int) -> Array:
        """Return the Pearson correlation of `some` with the ranks of y along `axis`: the statistic of the test."""
        rows = np.moveaxis(np.atleast_2d(some), axis, -1)
        found = row_correlation(rows, np.broadcast_to(ranks, rows.shape))
        return found if some.ndim > 1 else found[0]

    test = stats.permutation_test(
        (stats.rankdata(x),), correlation, permutation_type="pairings", n_resamples=np.inf, vectorized=True
    )
    return float(test.pvalue)


def compute_least_p(n: int) -> float:
    """Return the p-value of |ρ| = 1 for n encoders, the smallest possible: 2/n! if n ≤ 8, else 0.0 (Student's t)."""
    return 2 / factorial(n) if n <= MAX_EXACT else 0.0


@lru_cache
def find_detectable_rho(n: int) -> float | None:
    """Return the smallest |ρ| with two-sided p ≤ .05 for n encoders without ties.

    The result is None if even |ρ| = 1 has p > .05.
    """
    if n > MAX_EXACT:
        t = stats.t.ppf(1 - LEVEL / 2, n - 2)
        return float(t / np.sqrt(n - 2 + t**2))
    orders = np.array(list(permutations(range(n))), float)
    correlations = np.abs(row_correlation(orders, np.broadcast_to(orders[0], orders.shape)).round(9))
    told = [rho for rho in np.unique(correlations) if (correlations >= rho).mean() <= LEVEL]
    return float(told[0]) if told else None
