"""Was the encoder trained to be cut: do its first numbers keep more than others would?"""

from dataclasses import dataclass

import numpy as np

from training.advice.sizes import NEIGHBOURS
from training.evaluation.statistics import Interval, mean_interval
from transforms.arrays import FloatArray
from transforms.metrics import recall_of_anchors

SHARES = (1 / 2, 1 / 4, 1 / 8)
DRAWS = 5
"""Random choices of coordinates that the first ones are compared with."""
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
        ahead: the difference, paired by row.
    """

    dimensions: int
    first: float
    random: float
    ahead: Interval


@dataclass(frozen=True)
class Matryoshka:
    """All cuts, and the verdict: ahead beyond the interval at every size, and by `AHEAD` points below a half."""

    cuts: list[Cut]
    trained: bool


def find_matryoshka(vectors: FloatArray, seed: int = 0) -> Matryoshka:
    """Compare prefixes of raw vectors `(n, d)` with random choices of as many coordinates."""
    width = vectors.shape[1]
    random = np.random.default_rng(seed)
    cuts = []
    for size in dict.fromkeys(int(width * share) for share in SHARES if width * share >= 1):
        first = 100 * recall_of_anchors(vectors, vectors[:, :size], NEIGHBOURS)
        others = [
            100 * recall_of_anchors(vectors, vectors[:, chosen(random, width, size)], NEIGHBOURS) for _ in range(DRAWS)
        ]
        mean = np.mean(others, axis=0)
        cuts.append(Cut(size, float(first.mean()), float(mean.mean()), mean_interval(first - mean)))
    trained = (
        len(cuts) > 1 and all(cut.ahead.sign > 0 for cut in cuts) and all(c.ahead.value >= AHEAD for c in cuts[1:])
    )
    return Matryoshka(cuts, trained)


def chosen(random: np.random.Generator, width: int, size: int) -> np.ndarray:
    """Coordinates in their order."""
    return np.sort(random.permutation(width)[:size])
