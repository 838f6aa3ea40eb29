"""Shares of a quality that a change retains."""

from lathe.training.evaluation.statistics import Interval


def compute_retained_share(retrieval: float, change: Interval) -> Interval:
    """Return the share of a mean reciprocal rank that is left after a change, with its interval.
    It is 1 plus the change divided by the MRR before it.

    Args:
        retrieval: mean reciprocal rank before a change, above 0.
        change: difference of 100·MRR that the change makes.
    """
    low, high = (None if bound is None else 1 + bound / (100 * retrieval) for bound in (change.low, change.high))
    return Interval(1 + change.value / (100 * retrieval), low, high)
