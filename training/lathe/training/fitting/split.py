"""Split of a source's rows into rows to fit on and held-out rows to measure with."""

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import FitError
from lathe.training.fitting.requests import MIN_DISTINCT_ROWS

HELDOUT_SHARE = 0.2
"""Share of the distinct rows that is held out."""

MAX_HELDOUT = 5000
"""Maximum number of held-out rows: enough for recall@10 to ±.003. Memory and time of the metrics grow with its
square."""

MIN_HELDOUT = 50
"""Minimum number of held-out rows, unless this is more than half of the distinct rows."""

SPLIT_ROWS = 1_000_000
"""Number of rows that are processed at a time when rows are split."""


def split_heldout(hashes: NDArray[np.uint64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows at random into fitted and held-out indices, never equal rows in both. Too few distinct rows raise.

    The split is by hash. Of equal held-out rows, only the first is returned; equal rows to fit on are all returned. The
    split depends on the seed and the content of the rows, not on their order.

    `HELDOUT_SHARE` of the distinct rows are held out, but at most `MAX_HELDOUT`, and at least the smaller of
    `MIN_HELDOUT` and half of the distinct rows.

    Args:
        hashes: 64-bit hash of each row `(n,)`.
        seed: seed of the choice of held-out hashes.

    Raises:
        FitError: if there are fewer than `MIN_DISTINCT_ROWS` distinct rows.
    """
    distinct = sort_distinct(hashes)
    if len(distinct) < MIN_DISTINCT_ROWS:
        raise FitError(f"a fit needs at least {MIN_DISTINCT_ROWS} different rows, and the source has {len(distinct)}")

    count = max(int(len(distinct) * HELDOUT_SHARE), min(MIN_HELDOUT, len(distinct) // 2))

    # Sorted hashes make the choice independent of the order of the rows.
    order = np.random.default_rng(seed).permutation(len(distinct))
    chosen = np.sort(distinct[order[: min(count, MAX_HELDOUT)]])
    del distinct, order  # with millions of rows, these arrays take most of the memory

    is_held = _find_members(chosen, hashes)
    held_rows = np.flatnonzero(is_held)
    _, first = np.unique(hashes[held_rows], return_index=True)
    return np.flatnonzero(~is_held), held_rows[np.sort(first)]


def sort_distinct(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sort hashes in ascending order, and remove duplicates."""
    ordered = np.sort(hashes)  # `np.unique` would use a table five times as large
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def _find_members(chosen: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask `(n,)` of the hashes that are in the sorted array `chosen`. `chosen` must not be empty."""
    is_member = np.zeros(len(hashes), bool)

    # By binary search in blocks; `np.isin` would sort all hashes again.
    for start in range(0, len(hashes), SPLIT_ROWS):
        block = hashes[start : start + SPLIT_ROWS]
        positions = np.minimum(np.searchsorted(chosen, block), len(chosen) - 1)
        is_member[start : start + SPLIT_ROWS] = chosen[positions] == block
    return is_member
