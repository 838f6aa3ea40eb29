"""Agreement of nearest neighbours between raw vectors and the outputs of two versions of a chain."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.quality import recall_of_anchors

Rows = NDArray[np.float32] | None
"""Outputs `(n, k)` of a version; None if it failed."""

NORMAL_95 = 1.96
"""Half-width of the normal 95 % interval, in standard errors."""


def compare_neighbours(raw: NDArray[np.float32], live: Rows, candidate: Rows, k: int) -> dict[str, Any]:
    """Compare the exact nearest neighbours by cosine of the same rows in three spaces.

    Args:
        raw: `(n, d)`, distinct rows.
        live: outputs of the live version for the same rows; None if it failed.
        candidate: outputs of the candidate for the same rows; None if it failed.
        k: number of neighbours of each row.

    Returns:
        `{agreement_at_k, raw_recall_at_k: {live, candidate, difference}}`: the mean share of a row's k neighbours that
        both versions have, the recall of its raw neighbours by each version, and the candidate's recall minus that of
        the live one. Each is `{value, low, high}` with a 95 % interval over the rows; None with k rows or fewer, or
        where a version failed.
    """
    by_live, by_candidate = _compute_overlap(raw, live, k), _compute_overlap(raw, candidate, k)
    gained = None if by_live is None or by_candidate is None else by_candidate - by_live
    return {
        "agreement_at_k": _compute_interval(None if live is None else _compute_overlap(live, candidate, k)),
        "raw_recall_at_k": {
            "live": _compute_interval(by_live),
            "candidate": _compute_interval(by_candidate),
            "difference": _compute_interval(gained, least=-1.0),
        },
    }


def _compute_overlap(one: NDArray[np.float32], other: Rows, k: int) -> NDArray[np.float64] | None:
    """Return each row's share of k nearest neighbours common to both spaces, `(n,)`; 0 where either is not finite.

    All shares are 0 if at most k rows are finite. Returns None if `other` is None or there are at most k rows.
    """
    if other is None or len(one) <= k:
        return None
    found = np.zeros(len(one))
    sound = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    if sound.sum() > k:
        found[sound] = recall_of_anchors(one[sound], other[sound], k)
    return found


def _compute_interval(values: NDArray[np.float64] | None, least: float = 0.0) -> dict[str, float] | None:
    """Return the mean and its normal 95 % interval, clipped to [`least`, 1]; None for None."""
    if values is None:
        return None
    mean, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(len(values))
    low, high = max(mean - NORMAL_95 * error, least), min(mean + NORMAL_95 * error, 1.0)
    return {"value": mean, "low": float(low), "high": float(high)}
