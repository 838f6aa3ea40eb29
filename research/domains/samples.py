"""Bootstrap samples of examples, on which the analysis of variance is based.

For each type of task the paper pools the examples of all data sets, draws 50 with replacement, measures them, and
repeats that 500 times (*FinMTEB*, Appendix E).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Array
from lathe.training.evaluation.encoders import Member
from research.domains.measures import Places, Vectors, v_measures

SAMPLES, SAMPLE_EXAMPLES = 500, 50
"""Number of samples of a pool, and number of examples in each sample, as in the paper."""

StoredVectors = tuple[Member, Path]
"""Encoder, and the folder of the raw vectors that its evaluation stored."""

RowMeasure = Callable[[Array, Array], Array]
"""Function of two arrays `(b, n)` that returns a metric `(b,)` of each pair of rows."""


class Pool(Protocol):
    """Protocol of the examples of one encoder, of which bootstrap samples can be scored."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def measure(self, drawn: Places) -> Array:
        """Return the score `(b,)` of each sample, given as row indices `(b, n)`.

        The result is NaN where the score is undefined.
        """


@dataclass(frozen=True)
class ScoredPool:
    """Examples with one score each.

    The score of a sample is the mean of its finite scores.

    Attributes:
        scores: score of each example `(m,)`; NaN where undefined.
    """

    scores: Array

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.scores)

    def measure(self, drawn: Places) -> Array:
        """Return the mean finite score `(b,)` of each sample of row indices `(b, n)`.

        The result is NaN if a sample has none.
        """
        rows = self.scores[drawn]
        known = np.isfinite(rows)
        counts = known.sum(axis=1)
        return np.where(counts > 0, np.where(known, rows, 0).sum(axis=1) / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True)
class PairPool:
    """Pairs of texts, whose samples are scored by comparing the cosines with the human judgements.

    Attributes:
        cosines: cosine of each pair `(m,)`.
        targets: gold score or label of each pair `(m,)`.
        compare: metric of cosines and targets, from two arrays `(b, n)` to `(b,)`.
    """

    cosines: Array
    targets: Array
    compare: RowMeasure

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.cosines)

    def measure(self, drawn: Places) -> Array:
        """Return the metric `compare` of each sample `(b,)`, given as row indices `(b, n)`."""
        return self.compare(self.cosines[drawn], self.targets[drawn])


@dataclass(frozen=True)
class LabelledPool:
    """Texts with cluster labels, whose samples are scored by clustering their vectors.

    Attributes:
        vectors: vector of each text `(m, d)`.
        labels: label of each text `(m,)`, integers from 0.
    """

    vectors: Vectors
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.vectors)

    def measure(self, drawn: Places) -> Array:
        """Return the V-measure of k-means on each sample `(b,)`, given as row indices `(b, n)`."""
        return v_measures(self.vectors, self.labels, drawn)


def concatenate_pools(parts: Sequence[Pool]) -> Pool:
    """Concatenate the pools of several data sets into one.

    Cluster labels are shifted so that data sets share no label. For pairs, the metric of the first pool is used.

    Raises:
        TypeError: if the pools are of different classes, which does not occur within one type of task.
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


def score_samples(pool: Pool, seed: int = 0) -> Array:
    """Draw 500 bootstrap samples of 50 examples from a pool and return the score of each sample, `(500,)`.

    Pools of the same size get the same row indices, so all encoders are measured on the same samples of a pool.
    """
    drawn = np.random.default_rng(seed).integers(0, len(pool), (SAMPLES, SAMPLE_EXAMPLES))
    return pool.measure(drawn)
