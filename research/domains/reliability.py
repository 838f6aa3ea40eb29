"""Reliability of a suite's ranking of encoders: the rank correlation between two halves of its data sets.

No two suites can be expected to agree more than that. A half has half the data sets, so a whole suite ranks more
reliably than this says; the value is not corrected for that (Spearman–Brown), which would assume more than is known.
"""

from collections.abc import Sequence

import numpy as np

from lathe.training.comparison import Array
from research.paper_findings.statistics import rank_correlation

HALVINGS = 200
"""Number of random halvings that are averaged."""
MIN_DATA_SETS = 4
"""Minimum number of data sets: with fewer, a half is a single data set."""
MIN_TYPE_DATA_SETS = 2
"""Minimum number of data sets of a task type, so that both halves get at least one."""


def measure_split_half(types: Sequence[Array], seed: int = 0) -> float | None:
    """Return the mean Spearman ρ between the encoders' mean scores in two random halves of the data sets.

    This is the split-half reliability, averaged over 200 halvings. Every task type is halved separately and has equal
    weight; types with a single data set are left out. Returns None for fewer than 4 data sets, or if ρ is undefined in
    every halving because all means are equal.

    Args:
        types: scores `(encoders, tasks)` of each task type.
        seed: seed of the random halvings.
    """
    halved = [scores for scores in types if scores.shape[1] >= MIN_TYPE_DATA_SETS]
    if sum(scores.shape[1] for scores in halved) < MIN_DATA_SETS:
        return None
    random = np.random.default_rng(seed)
    first, second = np.mean([_average_halves(scores, random) for scores in halved], axis=0)
    correlations = rank_correlation(first, second)
    known = correlations[np.isfinite(correlations)]
    return float(known.mean()) if len(known) else None


def _average_halves(scores: Array, random: np.random.Generator) -> Array:
    """Return the encoders' mean scores in both random halves of a task type's data sets, `(2, halvings, encoders)`.

    If the number of data sets is odd, the second half has one more.

    Args:
        scores: scores `(encoders, tasks)`.
        random: generator that draws the halvings.
    """
    tasks = scores.shape[1]
    orders = random.permuted(np.tile(np.arange(tasks), (HALVINGS, 1)), axis=1)
    halves = orders[:, : tasks // 2], orders[:, tasks // 2 :]
    return np.stack([scores[:, places].mean(axis=2).T for places in halves])
