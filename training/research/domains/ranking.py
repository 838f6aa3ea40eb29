"""Do two suites rank encoders alike: Spearman's ρ of their mean scores, and what so few encoders can tell.

*FinMTEB*, Table 12: a ρ for each type of task, over seven encoders at most.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import factorial

import numpy as np
from scipy import stats

from training.evaluation.statistics import Array, rank_correlation, row_correlation

ENCODERS_LEAST = 3
"""Of two, ρ is 1 or −1 whatever they do."""
EXACT_MOST = 8
"""Encoders whose orders are all counted; of 9 there are 362,880."""
LEVEL = 0.05


@dataclass(frozen=True)
class RankCorrelation:
    """How two suites rank the same encoders.

    Attributes:
        type: of the tasks, or of all.
        encoders: that both suites have scores of.
        means: their mean scores in each suite.
        rho: Spearman's; None where it cannot be told.
        p: two-sided; of all orders counted where there are at most 8 encoders, else by Student's t.
        least_p: what complete agreement would have.
        detectable: the least |ρ| with p ≤ .05 among so many encoders without ties; None where there is none.
        within: ρ of two halves of each suite's data sets; None for fewer than 4.
        problem: why there is no ρ.
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
    """ρ of mean scores by encoder, over the encoders that both have."""
    encoders = tuple(encoder for encoder in first if encoder in second)
    x, y = (np.array([means[encoder] for encoder in encoders]) for means in (first, second))
    known = (type_, encoders, (tuple(x.tolist()), tuple(y.tolist())))
    if len(encoders) < ENCODERS_LEAST:
        problem = f"a rank correlation takes at least {ENCODERS_LEAST} encoders, here are {len(encoders)}"
        return RankCorrelation(*known, problem=problem)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return RankCorrelation(*known, problem="all encoders have the same mean score in one suite")
    rho = float(rank_correlation(x[None], y[None])[0])
    n = len(encoders)
    return RankCorrelation(*known, rho, p_value(x, y), least_p(n), detectable(n))


def p_value(x: Array, y: Array) -> float:
    """The two-sided p of ρ of values `(n,)`."""
    if len(x) > EXACT_MOST:
        return float(stats.spearmanr(x, y).pvalue)
    ranks = stats.rankdata(y)

    def correlation(some: Array, axis: int) -> Array:
        rows = np.moveaxis(np.atleast_2d(some), axis, -1)
        found = row_correlation(rows, np.broadcast_to(ranks, rows.shape))
        return found if some.ndim > 1 else found[0]

    test = stats.permutation_test(
        (stats.rankdata(x),), correlation, permutation_type="pairings", n_resamples=np.inf, vectorized=True
    )
    return float(test.pvalue)


def least_p(n: int) -> float:
    """The p of two equal, or opposite, orders of n encoders: 2 of all n! orders; 0 where t is taken."""
    return 2 / factorial(n) if n <= EXACT_MOST else 0.0


@lru_cache
def detectable(n: int) -> float | None:
    """The least |ρ| whose two-sided p is at most .05 for n encoders without ties; None where even 1 has more."""
    if n > EXACT_MOST:
        t = stats.t.ppf(1 - LEVEL / 2, n - 2)
        return float(t / np.sqrt(n - 2 + t**2))
    orders = np.array(list(permutations(range(n))), float)
    correlations = np.abs(row_correlation(orders, np.broadcast_to(orders[0], orders.shape)).round(9))
    told = [rho for rho in np.unique(correlations) if (correlations >= rho).mean() <= LEVEL]
    return float(told[0]) if told else None
