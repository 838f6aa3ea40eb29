"""How near data sets lie to one another: cosines of their mean embeddings (*FinMTEB*, Appendix A.1 and Figure 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.evaluation.shelf import unit
from training.evaluation.statistics import Array
from transforms import R2
from transforms.errors import TransformError

DATA_SETS_LEAST = 3
"""Of two, what is left without their common direction points in opposite ways whatever they hold."""


@dataclass(frozen=True)
class Cosines:
    """Cosines between data sets, and their means over pairs of different ones.

    Attributes:
        matrix: `(n, n)`.
        within: mean within each suite; None for one data set.
        between: mean between the suites.
    """

    matrix: Array
    within: tuple[float | None, float | None]
    between: float | None


@dataclass(frozen=True)
class SimilarityMap:
    """The data sets of both suites under one encoder.

    Attributes:
        encoder: its name.
        names: of the data sets, those of the first suite first.
        suites: the place of each one's suite, 0 or 1.
        raw: of the means as they are, which share the direction of all texts.
        centred: without the mean direction of all data sets (R2); its cosines average to a little less than 0, so
            only compare them with one another. None for fewer than three data sets.
    """

    encoder: str
    names: tuple[str, ...]
    suites: tuple[int, ...]
    raw: Cosines
    centred: Cosines | None


def similarity_map(encoder: str, names: Sequence[str], suites: Sequence[int], means: Array) -> SimilarityMap:
    """Cosines of mean embeddings `(n, d)`, before and after the direction they share is taken away."""
    rows = np.asarray(unit(means), np.float64)
    return SimilarityMap(encoder, tuple(names), tuple(suites), cosines(rows, suites), without_common(rows, suites))


def without_common(rows: Array, suites: Sequence[int]) -> Cosines | None:
    """Cosines of unit rows `(n, d)` after R2 fitted on these themselves, each data set counting once."""
    if len(rows) < DATA_SETS_LEAST:
        return None
    try:
        return cosines(np.asarray(R2().fit(rows).transform(rows), np.float64), suites)
    except TransformError:  # means that cancel exactly share no direction
        return None


def cosines(rows: Array, suites: Sequence[int]) -> Cosines:
    """Cosines of unit rows `(n, d)`, and their means."""
    matrix = rows @ rows.T
    of = np.asarray(suites)
    upper = np.triu(np.ones_like(matrix, dtype=bool), 1)
    pairs = [upper & (of[:, None] == suite) & (of[None] == suite) for suite in (0, 1)]
    apart = upper & (of[:, None] != of[None])
    first, second, between = (float(matrix[some].mean()) if some.any() else None for some in (*pairs, apart))
    return Cosines(matrix, (first, second), between)
