"""Recall of a search through a form, among the sampled rows and among as many as there will be.

A sample of n of N rows holds about the nearest 10·n/N of a query's ten nearest rows, and as large a part of the
candidates of its search. So how many of the k nearest rows are among m·k candidates in the sample says how many of the
ten nearest are among 10·m candidates of 10·n/k rows: from k = 10 for the sample itself to k = 1 for ten times as many
rows. Beyond that, the logit of recall is taken as linear in the logarithm of the number of rows.

Chance in which rows were drawn lowers recall for small k, so that what is expected is rather too low than too high.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

K = 10
"""Number of nearest rows that a search should find."""
NEAREST = (10, 7, 5, 3, 2, 1)
"""Numbers of nearest rows that are counted in the sample."""
CANDIDATES = (1, 2, 4, 8)
"""Numbers of candidates that are ranked by the full vectors, as multiples of the nearest rows. 1 ranks none."""
PART = 4
"""Divisor of the rows of the sample from which recall among all of them is predicted, as a check."""
UNSEEN_LOSSES = 3
"""Rows that may be lost although none of many was: with less than 5 % chance, more would go unseen (rule of three)."""
UNTRENDED_LOSS = 1.6
"""Logits for each tenfold beyond ten times the sample by which recall may lie below its trend: as far as it did at most
among a million rows grown from 25,000 texts, forecast from 20,000 of them (benchmarks/places.md)."""
RESAMPLES = 300
"""Number of resamples of the queries, for the interval."""


@dataclass(frozen=True)
class ExpectedRecall:
    """Recall among a number of rows, with a 95 % interval, and the check of how it was found.

    Attributes:
        rows: number of rows.
        value: share of the ten nearest rows that a search finds.
        low: lower bound.
        high: upper bound.
        sampled: the same share among the sampled rows.
        predicted: the share among the sampled rows that a quarter of them predicts.
    """

    rows: int
    value: float
    low: float
    high: float
    sampled: float
    predicted: float


def find_nearest(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the positions `(q, K)` of the `K` rows with the highest scores `(q, n)` for each query, best first."""
    return _find_highest(scores, K)


def measure_recall(found: NDArray[np.int64], nearest: NDArray[np.int64]) -> float:
    """Return the share of the nearest rows, positions `(q, K)`, that are among the found ones `(q, any number)`."""
    return float((found[:, :, None] == nearest[:, None, :]).any(axis=1).mean())


def count_found(scores: NDArray[np.float32], nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count, for each query, how many of its k truly nearest rows are among the first m·k rows by score.

    Args:
        scores: scores through a form, `(q, n)`.
        nearest: the truly nearest rows, `(q, K)`.

    Returns:
        Counts by m of `CANDIDATES`, k of `NEAREST` and query, `(len(CANDIDATES), len(NEAREST), q)`.
    """
    ranked = _find_highest(scores, min(K * max(CANDIDATES), scores.shape[1]))
    hits = ranked[:, :, None] == nearest[:, None, :]  # (q, candidates, K): which candidate is which of the nearest
    counts = [[hits[:, : m * k, :k].any(axis=1).sum(axis=1) for k in NEAREST] for m in CANDIDATES]
    return np.array(counts, np.int64)


def _find_highest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    return torch.from_numpy(np.ascontiguousarray(scores)).topk(count, dim=1).indices.numpy()


def extrapolate(
    found: NDArray[np.int64], found_in_part: NDArray[np.int64], sampled: int, rows: int, seed: int = 0
) -> ExpectedRecall:
    """Extrapolate the recall of a search from the sampled rows to `rows` rows.

    The interval comes from resampling the queries. It is widened by the error with which a part of the sample
    predicts the recall among all of it, as far as that is more than chance. Among more than ten times as many rows as
    were sampled, it also reaches up to no further loss, and down by `UNTRENDED_LOSS` for each further tenfold.

    Args:
        found: counts in the sample for one number of candidates, `(len(NEAREST), q)`; see `count_found`.
        found_in_part: the same among one in `PART` of the sampled rows.
        sampled: number of sampled rows.
        rows: number of rows; recall among fewer than were sampled is the recall among the sampled rows.
        seed: seed of the resamples.

    Returns:
        The expected recall with its 95 % interval, and the recall that a quarter of the sample predicts for all of it,
        as a check.
    """
    rows = max(rows, sampled)
    queries = found.shape[1]
    draws = np.random.default_rng(seed).integers(queries, size=(RESAMPLES, queries))
    every = np.concatenate([np.arange(queries)[None], draws])
    sums, sums_in_part = (counts[:, every].sum(axis=2).T for counts in (found, found_in_part))
    expected = _expect(sums, queries, sampled, rows)
    predicted = _expect(sums_in_part, queries, sampled // PART, sampled)
    seen = _expect(sums, queries, sampled, sampled)

    # The first entry is of all queries, the others are of resamples: their spread is what chance alone explains.
    errors = predicted - seen
    excess = max(0.0, abs(errors[0]) - 1.96 * errors[1:].std())
    # The error of predicting over a factor of PART is taken to grow with the logarithm of the factor.
    widening = excess * math.log(rows / sampled) / math.log(PART)
    # What is expected to be lost beyond ten times the sample may not be lost, or more than the trend says.
    beyond = max(0.0, math.log10(rows / (K * sampled)))
    trend = _expect(sums, queries, sampled, min(rows, K * sampled))[0] - expected[0]
    low, high = np.quantile(expected[1:], [0.025, 0.975])
    counted = queries * max(1.0, K * sampled / rows)
    # Rule of three: no bound may promise fewer losses than could go unseen among the rows counted.
    highest_low = math.log(max(counted, 2 * UNSEEN_LOSSES) / UNSEEN_LOSSES - 1)

    return ExpectedRecall(
        rows=rows,
        value=_expit(expected[0]),
        low=_expit(min(low - widening - max(trend, UNTRENDED_LOSS * beyond), highest_low)),
        high=_expit(high + widening + trend),
        sampled=_expit(seen[0]),
        predicted=_expit(predicted[0]),
    )


def bound_recall(
    bound: Callable[[float, float], float], recall: ExpectedRecall, other: ExpectedRecall
) -> ExpectedRecall:
    """Return a recall whose value and bounds are at most (`min`) or at least (`max`) the values of `other`."""
    return replace(
        recall,
        value=bound(recall.value, other.value),
        low=bound(recall.low, other.low),
        high=bound(recall.high, other.high),
    )


def _expect(sums: NDArray[np.int64], queries: int, sampled: int, rows: int) -> NDArray[np.float64]:
    """Return the logits `(r,)` of the recall to expect among `rows` rows, for r samples of the queries.

    They are interpolated, or extrapolated, linearly in the logarithm of the number of rows. Shares of 0 and 1 are first
    moved off by a small constant, half a row of ten for each query. The same share is moved alike for each k, so that a
    search that loses nothing is not expected to lose more and more. `sums` are counts summed over the queries, `(r,
    len(NEAREST))`.
    """
    nearest = np.array(NEAREST)
    hits, possible = sums + nearest / 20, nearest * queries + nearest / 10
    logits = np.log(hits / (possible - hits))

    sizes, log_rows = np.log(sampled * K / nearest), math.log(rows)
    if log_rows <= sizes[-1]:
        weights = [np.interp(log_rows, sizes, at_one_size) for at_one_size in np.eye(len(NEAREST))]
        interpolated: NDArray[np.float64] = logits @ np.array(weights)
        return interpolated

    # The slope is that of least squares. Recall is not extrapolated upwards: more rows make a search no easier.
    centred = sizes - sizes.mean()
    slopes = np.minimum(0.0, logits @ centred / (centred @ centred))
    extrapolated: NDArray[np.float64] = logits[:, -1] + slopes * (log_rows - sizes[-1])
    return extrapolated


def _expit(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
