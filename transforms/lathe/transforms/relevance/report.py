"""How good probabilities are on judged searches: whether they separate right from wrong, and whether they are true."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError

Array = NDArray[np.float64]

Estimate = tuple[float, float, float]
"""A value with the lower and upper bound of its 95 % interval."""

PRECISIONS = (0.8, 0.9, 0.95)
"""Precisions for which the share of answered queries is reported."""

BINS = 10
"""Number of equal bins of the expected calibration error."""

RESAMPLES = 1000
"""Number of bootstrap samples of the queries."""

MIN_QUERIES = 30
"""Minimum number of judged queries."""


@dataclass(frozen=True)
class ProbabilityReport:
    """Quality of probabilities of judged first hits that the model was not fitted on.

    Attributes:
        queries: number of judged queries.
        right: share of them whose first hit is right.
        auroc: probability that a right hit has a higher probability than a wrong one, with its interval.
        brier: mean squared difference of probability and outcome.
        skill: share by which `brier` is below that of always answering `right` (Brier skill score).
        ece: expected calibration error over ten equal bins.
        bins: mean probability, share of right hits and number of hits of each bin that holds any.
        answered: by precision, the largest share of queries that can be answered at it with a minimum probability, with
            its interval.
        thresholds: by precision, that minimum probability; None if no threshold reaches the precision.
    """

    queries: int
    right: float
    auroc: Estimate
    brier: float
    skill: float
    ece: float
    bins: list[tuple[float, float, int]]
    answered: dict[str, Estimate]
    thresholds: dict[str, float | None]

    @property
    def separates(self) -> bool:
        """Whether the interval of the AUROC is above .5."""
        return self.auroc[1] > 0.5

    @property
    def sentence(self) -> str:
        """Sentence on the recommended threshold and share answered, or that no threshold separates or is precise."""
        value, low, high = self.auroc
        area = f"AUROC {value:.2f}, 95 % interval {low:.2f} to {high:.2f}, {self.queries} queries"
        if not self.separates:
            return f"No threshold separates right from wrong hits here ({area})."
        reached = [precision for precision, (_, low, _) in self.answered.items() if low > 0]
        if not reached:
            return (
                f"The probability tells right from wrong hits ({area}), but no threshold surely reaches a precision of "
                f"{PRECISIONS[0]:.0%}."
            )
        best = reached[0]
        share, low, high = self.answered[best]
        return (
            f"With min_probability {self.thresholds[best]:.2f}, {share:.0%} of the queries are answered (95 % interval "
            f"{low:.0%} to {high:.0%}), {float(best):.0%} of them rightly ({area})."
        )

    def describe(self) -> dict[str, Any]:
        """Return the figures and the sentence as a JSON object."""
        return asdict(self) | {"separates": self.separates, "sentence": self.sentence}


def evaluate_probabilities(probabilities: Array, right: NDArray[np.bool_]) -> ProbabilityReport:
    """Compare probabilities `(n,)` with whether hits are right `(n,)`. Raise for under 30 queries or one class.

    Intervals are of 1,000 bootstrap samples of the queries. A threshold is chosen and judged on the same queries, in
    each sample as well.

    Raises:
        InputError: for fewer than 30 queries, shapes that differ, probabilities outside [0, 1], or if all hits are
            right or all are wrong.
    """
    n = len(right)
    if probabilities.shape != (n,) or n < MIN_QUERIES:
        raise InputError(f"at least {MIN_QUERIES} judged hits are needed, got {n} and {probabilities.shape}")
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise InputError("probabilities must be between 0 and 1")
    if right.all() or not right.any():
        raise InputError("all hits are right, or all are wrong: there is nothing to separate")

    # Row 0 has each query once; the other rows are the samples.
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    levels, hits, misses = _count_above(probabilities, right, np.vstack([np.ones((1, n), np.int64), draws]))
    answered, thresholds = {}, {}
    for precision in PRECISIONS:
        share, last = _answer_at(hits, misses, precision)
        answered[f"{precision}"] = _estimate(share)
        thresholds[f"{precision}"] = float(levels[last[0]]) if share[0] else None
    brier = float(np.mean((probabilities - right) ** 2))

    return ProbabilityReport(
        queries=n,
        right=float(right.mean()),
        auroc=_estimate(_measure_areas(hits, misses)),
        brier=brier,
        skill=1 - brier / float(np.var(right)),
        ece=measure_ece(probabilities, right),
        bins=fill_bins(probabilities, right),
        answered=answered,
        thresholds=thresholds,
    )


def measure_auroc(scores: Array, right: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, in which ties count half, or NaN if all are right or all are wrong."""
    _, hits, misses = _count_above(scores, right, np.ones((1, len(right)), np.int64))
    return float(_measure_areas(hits, misses)[0])


def measure_ece(probabilities: Array, right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error: the mean difference of probability and share of right hits in a bin."""
    return sum(abs(mean - share) * count for mean, share, count in fill_bins(probabilities, right)) / len(right)


def _count_above(
    scores: Array, right: NDArray[np.bool_], counts: NDArray[np.int64]
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct scores in descending order, and how many right and wrong hits each sample has from them on.

    Each row of `counts` `(r, n)` says how often a sample has each hit. The numbers of right and wrong hits are `(r, m)`
    for m distinct scores.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    # A threshold cannot cut between equal scores.
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    sorted_counts, of_right = counts[:, order], right[order]
    hits, misses = (np.cumsum(sorted_counts * kept, axis=1)[:, ends] for kept in (of_right, ~of_right))
    return ranked[ends], hits, misses


def _measure_areas(hits: NDArray[np.int64], misses: NDArray[np.int64]) -> Array:
    """Return the area under the ROC curve of each sample, by the trapezoid rule, `(r,)`."""
    before = np.pad(hits[:, :-1], ((0, 0), (1, 0)))
    widths = np.diff(misses, axis=1, prepend=0)
    with np.errstate(invalid="ignore"):
        areas: Array = (widths * (hits + before)).sum(1) / (2 * hits[:, -1] * misses[:, -1])
    return areas


def _answer_at(hits: NDArray[np.int64], misses: NDArray[np.int64], precision: float) -> tuple[Array, NDArray[np.int64]]:
    """Return the largest share of queries that a threshold answers at a precision, 0 if none, and its place, `(r,)`.

    Both have one value for each sample.
    """
    answered = hits + misses
    precise = (hits >= precision * answered) & (answered > 0)
    last = precise.shape[1] - 1 - precise[:, ::-1].argmax(1)
    share = np.where(precise.any(1), answered[np.arange(len(last)), last] / answered[:, -1], 0)
    return share, last


def fill_bins(probabilities: Array, right: NDArray[np.bool_]) -> list[tuple[float, float, int]]:
    """Return mean probability, share of right hits and count of each equal bin that holds any."""
    places = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    held = [places == place for place in range(BINS)]
    return [(float(probabilities[own].mean()), float(right[own].mean()), int(own.sum())) for own in held if own.any()]


def _estimate(values: Array) -> Estimate:
    """Return the first value, with the interval of the others, which are of samples."""
    low, high = np.nanquantile(values[1:], (0.025, 0.975)).tolist()
    return float(values[0]), low, high
