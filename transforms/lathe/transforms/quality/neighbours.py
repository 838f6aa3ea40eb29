"""Agreement of nearest neighbours between vectors and what two chains make of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError
from lathe.transforms.quality.metrics import NORMAL_QUANTILE, recall_of_anchors

Rows = NDArray[np.float32]


def compare_neighbours(raw: Rows, first: Rows, second: Rows, k: int = 10) -> dict[str, Any]:
    """Compare the nearest neighbours, by cosine, of rows and of what two chains make of them. Returns, as a dict, how
    far the chains agree with each other and how well each keeps the raw neighbours.

    Args:
        raw: `(n, d)`, distinct rows.
        first: what one chain makes of them, `(n, k₁)`.
        second: what another chain makes of them, `(n, k₂)`.
        k: number of neighbours of each row.

    Returns:
        `{agreement_at_k, raw_recall_at_k: {first, second, difference}}`: the mean share of a row's k neighbours that
        both chains have, the recall of its raw neighbours by each chain, and the second's recall minus the first's.
        Each is `{value, low, high}` with a 95 % interval over the rows. Rows that are not finite share no neighbours.

    Raises:
        InputError: if there are not more than k rows.
    """
    if len(raw) <= k:
        raise InputError(f"{k} neighbours need more than {k} rows, got {len(raw)}")

    by_first, by_second = _share_neighbours(raw, first, k), _share_neighbours(raw, second, k)

    return {
        "agreement_at_k": _compute_interval(_share_neighbours(first, second, k)),
        "raw_recall_at_k": {
            "first": _compute_interval(by_first),
            "second": _compute_interval(by_second),
            "difference": _compute_interval(by_second - by_first, minimum=-1.0),
        },
    }


def _share_neighbours(first: Rows, second: Rows, k: int) -> NDArray[np.float64]:
    """Return, for each row, the share of its k nearest neighbours that both spaces have in common, `(n,)`. It is 0 for
    a row that is not finite in either space.

    All shares are 0 if at most k rows are finite.
    """
    shares = np.zeros(len(first))
    is_finite = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    if is_finite.sum() > k:
        shares[is_finite] = recall_of_anchors(first[is_finite], second[is_finite], k)
    return shares


def _compute_interval(values: NDArray[np.float64], minimum: float = 0.0) -> dict[str, float]:
    """Compute the mean of values and its 95 % interval by the normal approximation. Returns them as `value`, `low` and
    `high`, the bounds clipped to [`minimum`, 1].
    """
    mean, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(len(values))
    low, high = max(mean - NORMAL_QUANTILE * error, minimum), min(mean + NORMAL_QUANTILE * error, 1.0)
    return {"value": mean, "low": float(low), "high": float(high)}
