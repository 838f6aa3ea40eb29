"""Was the encoder trained to be cut: do its first coordinates keep more than others would?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.advice.sizes import NEIGHBOURS
from transforms.quality import recall_at_k
from transforms.vectors import FloatArray

SHARES = (1 / 2, 1 / 4, 1 / 8)
DRAWS = 19
"""Random choices of coordinates that the first ones are compared with: to be ahead of all by chance is 1 in 20."""
ROWS = 1000
"""Held-out rows that are looked at."""
ROWS_LEAST = 100
"""Among fewer chance moves recall@10 by more than would tell first coordinates from others."""
AHEAD = 2.0
"""Points of recall@10 at a quarter and less that the first coordinates of a trained encoder are ahead; half of the
coordinates find nearly all neighbours whichever they are."""


@dataclass(frozen=True)
class Cut:
    """The first coordinates against random ones, on held-out rows.

    Attributes:
        dimensions: of both.
        first: recall@10 with the first coordinates, in points.
        random: the mean with random ones.
        best: the most that random ones reached.
    """

    dimensions: int
    first: float
    random: float
    best: float


@dataclass(frozen=True)
class Matryoshka:
    """All cuts, and the verdict.

    Attributes:
        cuts: the largest first.
        first_hold_more: ahead of all draws at every size, and by `AHEAD` points of their mean below a half.
    """

    cuts: list[Cut]
    first_hold_more: bool


def find_matryoshka(vectors: FloatArray, seed: int = 0) -> Matryoshka:
    """Compare prefixes of raw vectors `(n, d)` with random choices of as many coordinates."""
    rows, width = vectors[:ROWS], vectors.shape[1]
    random = np.random.default_rng(seed)
    cuts = []
    for size in dict.fromkeys(int(width * share) for share in SHARES if width * share >= 1):
        first = 100 * recall_at_k(rows, rows[:, :size], NEIGHBOURS)
        others = [100 * recall_at_k(rows, rows[:, chosen(random, width, size)], NEIGHBOURS) for _ in range(DRAWS)]
        cuts.append(Cut(size, first, float(np.mean(others)), max(others)))
    return Matryoshka(cuts, len(cuts) > 1 and not against(cuts))


def against(cuts: list[Cut]) -> list[Cut]:
    """Those at which the first coordinates are not ahead of all draws, or below a half by less than `AHEAD`."""
    near = [False, *(cut.first - cut.random < AHEAD for cut in cuts[1:])]
    return [cut for cut, is_near in zip(cuts, near, strict=False) if cut.first <= cut.best or is_near]


def chosen(random: np.random.Generator, width: int, size: int) -> NDArray[np.int64]:
    """Coordinates in their order."""
    return np.sort(random.permutation(width)[:size])
