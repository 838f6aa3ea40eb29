"""Drawing examples with replacement: what the analysis of variance rests on.

For each type of task the paper pools the examples of all data sets, draws 50, measures, and repeats that 500 times
(*FinMTEB*, Appendix E).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.evaluation.statistics import Array
from training.research.domains.measures import Places, Vectors, v_measures

SAMPLES, SAMPLE_EXAMPLES = 500, 50
"""Of the paper: samples of a pool, and examples of a sample."""

RowMeasure = Callable[[Array, Array], Array]


class Pool(Protocol):
    """Examples of one encoder; samples of them can be measured."""

    def __len__(self) -> int:
        """Examples."""

    def measure(self, drawn: Places) -> Array:
        """The score `(b,)` of samples, given as places `(b, n)`; NaN where one cannot be measured."""


@dataclass(frozen=True)
class ScoredPool:
    """Examples with a score each `(m,)`; a sample has the mean of those that are numbers."""

    scores: Array

    def __len__(self) -> int:
        """Examples."""
        return len(self.scores)

    def measure(self, drawn: Places) -> Array:
        """Mean scores `(b,)`."""
        rows = self.scores[drawn]
        known = np.isfinite(rows)
        counts = known.sum(axis=1)
        return np.where(counts > 0, np.where(known, rows, 0).sum(axis=1) / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True)
class PairPool:
    """Pairs of texts: their cosines `(m,)`, what people said of them `(m,)`, and how both are compared in a sample."""

    cosines: Array
    targets: Array
    compare: RowMeasure

    def __len__(self) -> int:
        """Pairs."""
        return len(self.cosines)

    def measure(self, drawn: Places) -> Array:
        """The measure of each sample `(b,)`."""
        return self.compare(self.cosines[drawn], self.targets[drawn])


@dataclass(frozen=True)
class LabelledPool:
    """Texts to be clustered: vectors `(m, d)` and the cluster each belongs to `(m,)`."""

    vectors: Vectors
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Texts."""
        return len(self.vectors)

    def measure(self, drawn: Places) -> Array:
        """V-measure of each sample `(b,)`."""
        return v_measures(self.vectors, self.labels, drawn)


def pooled(parts: Sequence[Pool]) -> Pool:
    """The examples of several data sets as one pool; labels of different data sets are different clusters.

    Raises:
        TypeError: for pools of different kinds, which no type of task has.
    """
    if all(isinstance(part, ScoredPool) for part in parts):
        return ScoredPool(np.concatenate([part.scores for part in parts if isinstance(part, ScoredPool)]))
    pairs = [part for part in parts if isinstance(part, PairPool)]
    if len(pairs) == len(parts):
        cosines, targets = (np.concatenate([getattr(p, name) for p in pairs]) for name in ("cosines", "targets"))
        return PairPool(cosines, targets, pairs[0].compare)
    texts = [part for part in parts if isinstance(part, LabelledPool)]
    if len(texts) != len(parts):
        raise TypeError("examples of different kinds cannot be pooled")
    firsts = np.cumsum([0, *(part.labels.max() + 1 for part in texts[:-1])])
    labels = [part.labels + first for part, first in zip(texts, firsts, strict=True)]
    return LabelledPool(np.concatenate([part.vectors for part in texts]), np.concatenate(labels))


def sample_scores(pool: Pool, seed: int = 0) -> Array:
    """The score `(500,)` of each sample; pools of one size, and so all encoders on it, get the same drawings."""
    drawn = np.random.default_rng(seed).integers(0, len(pool), (SAMPLES, SAMPLE_EXAMPLES))
    return pool.measure(drawn)
