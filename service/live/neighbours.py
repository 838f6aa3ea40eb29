"""How the neighbours of the same rows agree between raw vectors and two versions of a chain."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.quality import recall_of_anchors

Rows = NDArray[np.float32] | None
NORMAL_95 = 1.96


def compared(raw: NDArray[np.float32], live: Rows, candidate: Rows, k: int) -> dict[str, Any]:
    """Neighbours by cosine, exact, each row the anchor once.

    Args:
        raw: `(n, d)`, different rows.
        live: the same through the live version; None if it could not be applied.
        candidate: the same through the candidate.
        k: neighbours of each row.

    Returns:
        `{agreement_at_k, raw_recall_at_k: {live, candidate, difference}}`: the share of a row's k neighbours that both
        versions have; of its raw neighbours that each finds, and by how much the candidate finds more. Each
        `{value, low, high}` with a 95 % interval over the rows; null with k rows or fewer, or where a version failed.
    """
    by_live, by_candidate = shared(raw, live, k), shared(raw, candidate, k)
    gained = None if by_live is None or by_candidate is None else by_candidate - by_live
    return {
        "agreement_at_k": interval(None if live is None else shared(live, candidate, k)),
        "raw_recall_at_k": {
            "live": interval(by_live),
            "candidate": interval(by_candidate),
            "difference": interval(gained, least=-1.0),
        },
    }


def shared(one: NDArray[np.float32], other: Rows, k: int) -> NDArray[np.float64] | None:
    """The share of each row's k neighbours that both spaces have `(n,)`; none for rows that are not finite."""
    if other is None or len(one) <= k:
        return None
    found = np.zeros(len(one))
    sound = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    if sound.sum() > k:
        found[sound] = recall_of_anchors(one[sound], other[sound], k)
    return found


def interval(values: NDArray[np.float64] | None, least: float = 0.0) -> dict[str, float] | None:
    """Mean and normal 95 % interval, within what is possible."""
    if values is None:
        return None
    mean, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(len(values))
    low, high = max(mean - NORMAL_95 * error, least), min(mean + NORMAL_95 * error, 1.0)
    return {"value": mean, "low": float(low), "high": float(high)}
