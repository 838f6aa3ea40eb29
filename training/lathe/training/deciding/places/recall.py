"""Recall of a search through a form, among the sampled rows and extrapolated to the rows in production.

A sample of n of N rows holds about 10·n/N of a query's ten nearest rows, and the same share of the candidates of a
search. So the share of the k nearest rows that are among m·k candidates in the sample estimates the share of the ten
nearest that are among 10·m candidates of 10·n/k rows: from k = 10 for the sample itself to k = 1 for ten times as many
rows. Beyond that, the logit of recall is taken as linear in the logarithm of the number of rows.

Chance in which rows were sampled lowers recall for small k, so that the estimate is rather too low than too high.
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
"""Numbers of candidates that the full vectors rescore, as multiples of the nearest rows. 1 rescores none."""
PART = 4
"""Divisor of the sampled rows for a check: recall among all sampled rows is predicted from this part of them."""
UNSEEN_LOSSES = 3
"""Number of missed rows that are possible although none was observed (rule of three, 95 % confidence)."""
UNTRENDED_LOSS = 1.6
"""Logits by which recall may lie below its trend, for each factor of ten beyond ten times the sample: the largest error
among a million rows made from 25,000 texts, predicted from 20,000 of these (benchmarks/places.md)."""
RESAMPLES = 300
"""Number of resamples of the queries, for the interval."""


@dataclass(frozen=True)
class ExpectedRecall:
    """Expected recall among a number of rows, with a 95 % interval, and a check of the extrapolation.

    Attributes:
        rows: number of rows.
        value: expected share of the ten nearest rows that a search finds.
        low: lower bound of the interval.
        high: upper bound of the interval.
        sampled: share of the ten nearest rows that is found among the sampled rows.
        predicted: the value of `sampled` that a quarter of the sampled rows predicts.
    """

    rows: int
    value: float
    low: float
    high: float
    sampled: float
    predicted: float


def find_nearest(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Find the `K` rows with the highest scores `(q, n)` for each query, as positions `(q, K)`, best first."""
    return _find_highest(scores, K)


def measure_recall(found: NDArray[np.int64], nearest: NDArray[np.int64]) -> float:
    """Compute the share of the nearest rows, positions `(q, K)`, that are among the found positions `(q, m)`."""
    return float((found[:, :, None] == nearest[:, None, :]).any(axis=1).mean())


def count_found(scores: NDArray[np.float32], nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count how many of the k exact nearest rows of each query are among the m·k rows with the highest scores.

    The counts are an array `(len(CANDIDATES), len(NEAREST), q)`, by m of `CANDIDATES`, k of `NEAREST`, and query.

    Args:
        scores: scores through a form, `(q, n)`, higher for nearer rows.
        nearest: positions of the exact nearest rows, `(q, K)`, nearest first.
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
    """Extrapolate the recall of a search from the sampled rows to `rows` rows, with a 95 % interval.

    For fewer rows than were sampled, the result is the recall among the sampled rows. As a check, the result also has
    the recall among the sampled rows that a quarter of them predicts.

    The interval comes from resampling the queries. It is widened by the error of the check, as far as the error is more
    than chance. For more than ten times the sampled rows, the interval also reaches up to no further loss, and down by
    `UNTRENDED_LOSS` for each further factor of ten.

    Args:
        found: counts in the sample for one number of candidates, `(len(NEAREST), q)`; see `count_found`.
        found_in_part: counts among the first `sampled // PART` rows, `(len(NEAREST), q)`.
        sampled: number of sampled rows.
        rows: number of rows to extrapolate to.
        seed: seed of the resamples.
    """
    rows = max(rows, sampled)
    queries = found.shape[1]
    draws = np.random.default_rng(seed).integers(queries, size=(RESAMPLES, queries))
    every = np.concatenate([np.arange(queries)[None], draws])
    sums, sums_in_part = (counts[:, every].sum(axis=2).T for counts in (found, found_in_part))
    expected = _expect(sums, queries, sampled, rows)
    predicted = _expect(sums_in_part, queries, sampled // PART, sampled)
    seen = _expect(sums, queries, sampled, sampled)

    # The first entry is of all queries, the others are of resamples, whose spread is what chance explains.
    errors = predicted - seen
    excess = max(0.0, abs(errors[0]) - 1.96 * errors[1:].std())
    # The error of predicting over a factor of PART is taken to grow with the logarithm of the factor.
    widening = excess * math.log(rows / sampled) / math.log(PART)
    # Beyond ten times the sample, nothing further may be lost, or more than the trend predicts.
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
    """Limit the value and bounds of `recall` to at most (`min`) or at least (`max`) the value and bounds of `other`.

    `bound` is the built-in function `min` or `max`.
    """
    return replace(
        recall,
        value=bound(recall.value, other.value),
        low=bound(recall.low, other.low),
        high=bound(recall.high, other.high),
    )


def _expect(sums: NDArray[np.int64], queries: int, sampled: int, rows: int) -> NDArray[np.float64]:
    """Interpolate or extrapolate the logit of recall to `rows` rows, linearly in the logarithm of the number of rows.

    Returns logits `(r,)` for r samples of the queries. Extrapolated recall does not rise. `sums` are counts summed over
    the queries of a sample, `(r, len(NEAREST))`.

    Counts are smoothed by half a row of ten, so that shares of 0 and 1 have a finite logit. The smoothing moves equal
    shares equally for all k, so that a search without losses is not expected to lose more among more rows.
    """
    nearest = np.array(NEAREST)
    hits, possible = sums + nearest / 20, nearest * queries + nearest / 10
    logits = np.log(hits / (possible - hits))

    sizes, log_rows = np.log(sampled * K / nearest), math.log(rows)
    if log_rows <= sizes[-1]:
        weights = [np.interp(log_rows, sizes, at_one_size) for at_one_size in np.eye(len(NEAREST))]
        interpolated: NDArray[np.float64] = logits @ np.array(weights)
        return interpolated

    # The slope is fitted by least squares. Recall is not extrapolated upwards: more rows do not make a search easier.
    centred = sizes - sizes.mean()
    slopes = np.minimum(0.0, logits @ centred / (centred @ centred))
    extrapolated: NDArray[np.float64] = logits[:, -1] + slopes * (log_rows - sizes[-1])
    return extrapolated


def _expit(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
