"""How alike a suite ranks encoders to itself: two halves of its data sets against each other.

No two suites can be expected to agree more than that. A half has half the data sets, so a whole suite ranks more
reliably than this says; it is not corrected for that (Spearman–Brown), which would assume more than is known.
"""

from collections.abc import Sequence

import numpy as np

from training.evaluation.statistics import Array, rank_correlation

HALVINGS = 200
DATA_SETS_LEAST = 4
"""Of fewer, a half is a single data set."""
TYPE_LEAST = 2
"""Data sets of a type that both halves have a share of."""


def split_half(types: Sequence[Array], seed: int = 0) -> float | None:
    """Spearman's ρ of the encoders' mean scores in two random halves of the data sets, the mean over 200 halvings.

    Every type is halved, and counts once in each half; one with a single data set is left out. None for fewer than 4
    data sets, and where the encoders never have an order.

    Args:
        types: scores `(encoders, tasks)` of each type of task.
        seed: of the halves.
    """
    halved = [scores for scores in types if scores.shape[1] >= TYPE_LEAST]
    if sum(scores.shape[1] for scores in halved) < DATA_SETS_LEAST:
        return None
    random = np.random.default_rng(seed)
    first, second = np.mean([half_means(scores, random) for scores in halved], axis=0)
    correlations = rank_correlation(first, second)
    known = correlations[np.isfinite(correlations)]
    return float(known.mean()) if len(known) else None


def half_means(scores: Array, random: np.random.Generator) -> Array:
    """Mean scores `(2, halvings, encoders)` in both halves of the tasks of a type; the second has the odd one."""
    tasks = scores.shape[1]
    orders = random.permuted(np.tile(np.arange(tasks), (HALVINGS, 1)), axis=1)
    halves = orders[:, : tasks // 2], orders[:, tasks // 2 :]
    return np.stack([scores[:, places].mean(axis=2).T for places in halves])
