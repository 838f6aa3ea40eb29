"""Test for Matryoshka structure.

It asks whether the first coordinates preserve more neighbours than random coordinates.
"""

from dataclasses import dataclass

import numpy as np

from lathe.training.advice.sizes import NEIGHBOURS
from lathe.transforms.quality import recall_at_k
from lathe.transforms.vectors import FloatArray

SHARES = (1 / 2, 1 / 4, 1 / 8)
"""Compared prefixes, as shares of the dimensions."""
RESAMPLES = 19
"""Number of random choices of coordinates; the first ones exceed all 19 by chance with probability 1/20."""
MAX_ROWS = 1000
"""Maximum number of held-out rows; neighbours are searched among these."""
MIN_COORDINATE_ROWS = 100
"""Minimum number of held-out rows; with fewer, recall@10 varies too much by chance for the comparison."""
MIN_LEAD = 2.0
"""Points of recall@10 by which the first coordinates must exceed the mean of random ones, at a quarter of the
dimensions and less. There is no such margin at a half, where any coordinates find nearly all neighbours."""


@dataclass(frozen=True)
class DimensionCut:
    """Recall of the first k coordinates and of k random ones, on held-out rows.

    Attributes:
        dimensions: number k of coordinates.
        first: recall@10 of the first coordinates, in per cent.
        random: mean recall@10 of random coordinates, in per cent.
        best: largest recall@10 of random coordinates, in per cent.
    """

    dimensions: int
    first: float
    random: float
    best: float


@dataclass(frozen=True)
class Matryoshka:
    """Comparisons at every number of coordinates, and the verdict.

    Attributes:
        cuts: comparisons, the largest number of coordinates first.
        first_hold_more: whether the first coordinates exceed all random choices at every size, and their mean by
            `MIN_LEAD` points below a half; False with fewer than two sizes.
    """

    cuts: list[DimensionCut]
    first_hold_more: bool


def compare_first_coordinates(vectors: FloatArray, seed: int = 0) -> Matryoshka:
    """Test whether the first coordinates of vectors hold more than random ones, by recall@10.
    The result has the recalls at a half, a quarter and an eighth of the dimensions, and the verdict.

    Only the first `MAX_ROWS` rows are used, and at least 11 are needed.
    """
    rows, width = vectors[:MAX_ROWS], vectors.shape[1]
    random = np.random.default_rng(seed)
    cuts = []

    for size in dict.fromkeys(int(width * share) for share in SHARES if width * share >= 1):
        first = 100 * recall_at_k(rows, rows[:, :size], NEIGHBOURS)
        # 19 random choices: the first coordinates exceed all of them by chance in one case of 20.
        samples = [np.sort(random.permutation(width)[:size]) for _ in range(RESAMPLES)]
        random_recalls = [100 * recall_at_k(rows, rows[:, coordinates], NEIGHBOURS) for coordinates in samples]
        cuts.append(DimensionCut(size, first, float(np.mean(random_recalls)), max(random_recalls)))

    return Matryoshka(cuts, len(cuts) > 1 and not find_failing_cuts(cuts))


def find_failing_cuts(cuts: list[DimensionCut]) -> list[DimensionCut]:
    """Return the cuts at which the first coordinates are not clearly better than random ones in recall@10.
    There they do not beat all random choices, or lead their mean by less than `MIN_LEAD`.

    The margin `MIN_LEAD` is not required of the first cut, at half of the dimensions.
    """
    # At half of the dimensions any coordinates find nearly all neighbours, so no margin is asked for there.
    near = [False, *(cut.first - cut.random < MIN_LEAD for cut in cuts[1:])]
    return [cut for cut, is_near in zip(cuts, near, strict=False) if cut.first <= cut.best or is_near]
