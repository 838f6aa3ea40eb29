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
        """What the figures say, in one sentence."""
        value, low, high = self.auroc
        area = f"AUROC {value:.2f}, 95 % interval {low:.2f} to {high:.2f}, {self.queries} queries"
        if not self.separates:
            return f"No threshold separates right from wrong hits here ({area})."
        reached = [precision for precision, threshold in self.thresholds.items() if threshold is not None]
        if not reached:
            return (
                f"The probability tells right from wrong hits ({area}), but no threshold reaches a precision of "
                f"{min(self.thresholds)}."
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
    """Compare the probabilities of first hits `(n,)` with whether the hits are right `(n,)`.

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

    samples = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    areas = [measure_auroc(probabilities[sample], right[sample]) for sample in samples]
    brier, base = float(np.mean((probabilities - right) ** 2)), float(np.var(right))
    bins = _fill_bins(probabilities, right)
    answered, thresholds = {}, {}
    for precision in PRECISIONS:
        share, threshold = _answer_at(probabilities, right, precision)
        shares = [_answer_at(probabilities[sample], right[sample], precision)[0] for sample in samples]
        answered[f"{precision}"], thresholds[f"{precision}"] = _estimate(share, shares), threshold

    return ProbabilityReport(
        queries=n,
        right=float(right.mean()),
        auroc=_estimate(measure_auroc(probabilities, right), areas),
        brier=brier,
        skill=1 - brier / base,
        ece=sum(abs(mean - share) * count for mean, share, count in bins) / n,
        bins=bins,
        answered=answered,
        thresholds=thresholds,
    )


def measure_auroc(scores: Array, right: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, in which ties count half; NaN if all are right or all are wrong."""
    wrong = np.sort(scores[~right])
    scores = scores[right]
    if not len(wrong) or not len(scores):
        return float("nan")
    lower = np.searchsorted(wrong, scores, "left") + np.searchsorted(wrong, scores, "right")
    return float(lower.mean() / (2 * len(wrong)))


def _fill_bins(probabilities: Array, right: NDArray[np.bool_]) -> list[tuple[float, float, int]]:
    """Return mean probability, share of right hits and count of each equal bin that holds any."""
    places = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    held = [places == place for place in range(BINS)]
    return [(float(probabilities[own].mean()), float(right[own].mean()), int(own.sum())) for own in held if own.any()]


def _answer_at(probabilities: Array, right: NDArray[np.bool_], precision: float) -> tuple[float, float | None]:
    """Return the largest share of queries that a threshold answers at a precision, and the threshold."""
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    precise = np.cumsum(right[order]) / np.arange(1, len(order) + 1) >= precision
    # A threshold cannot cut between equal probabilities.
    precise[:-1] &= ranked[:-1] > ranked[1:]
    if not precise.any():
        return 0.0, None
    last = int(np.flatnonzero(precise)[-1])
    return (last + 1) / len(order), float(ranked[last])


def _estimate(value: float, resampled: list[float]) -> Estimate:
    low, high = np.nanquantile(resampled, (0.025, 0.975)).tolist()
    return value, low, high
