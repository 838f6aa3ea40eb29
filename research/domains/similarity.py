"""Similarity of data sets: cosines of their mean embeddings (*FinMTEB*, Appendix A.1 and Figure 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lathe.training.comparison import Array
from lathe.transforms import R2
from lathe.transforms.errors import TransformError
from research.fitted_methods.method_cache import normalize_rows

MIN_DATA_SETS = 3
"""Minimum number of data sets for removing the common direction: two residuals always point in opposite directions."""


@dataclass(frozen=True)
class Cosines:
    """Cosines between data sets, and their means over pairs of different data sets.

    Attributes:
        matrix: cosines of all data sets `(n, n)`.
        within: mean over pairs within each suite; None for a suite with fewer than 2 data sets.
        between: mean over pairs from different suites; None if all data sets are of one suite.
    """

    matrix: Array
    within: tuple[float | None, float | None]
    between: float | None


@dataclass(frozen=True)
class SimilarityMap:
    """Cosines between the mean embeddings of all data sets of both suites under one encoder.

    Attributes:
        encoder: name of the encoder.
        names: names of the data sets, those of the first suite first.
        suites: index of each data set's suite, 0 or 1.
        raw: cosines of the unchanged means, which share the direction common to all texts.
        centred: cosines without the mean direction of all data sets (R2), which average to a little less than 0, so
            only compare them with one another. None for fewer than 3 data sets, or if R2 cannot be fitted.
    """

    encoder: str
    names: tuple[str, ...]
    suites: tuple[int, ...]
    raw: Cosines
    centred: Cosines | None


def build_similarity_map(encoder: str, names: Sequence[str], suites: Sequence[int], means: Array) -> SimilarityMap:
    """Compute the cosines between data sets' mean embeddings `(n, d)`, with and without their common direction.

    Args:
        encoder: name of the encoder.
        names: names of the n data sets.
        suites: index of each data set's suite, 0 or 1.
        means: mean embedding of each data set `(n, d)`; normalized here.
    """
    rows = np.asarray(normalize_rows(means), np.float64)
    return SimilarityMap(
        encoder, tuple(names), tuple(suites), _compute_cosines(rows, suites), _remove_common_direction(rows, suites)
    )


def _remove_common_direction(rows: Array, suites: Sequence[int]) -> Cosines | None:
    """Compute the cosines of unit rows `(n, d)` after removing their mean direction with R2, fitted on these rows.

    Returns None for fewer than 3 rows, or if the rows cancel so that they have no mean direction.
    """
    if len(rows) < MIN_DATA_SETS:
        return None
    try:
        return _compute_cosines(np.asarray(R2().fit(rows).transform(rows), np.float64), suites)
    except TransformError:  # means that cancel exactly share no direction
        return None


def _compute_cosines(rows: Array, suites: Sequence[int]) -> Cosines:
    """Compute the cosines of unit rows `(n, d)`, and their means within and between the suites.

    Args:
        rows: mean embeddings of the data sets, normalized.
        suites: index of each row's suite, 0 or 1.
    """
    matrix = rows @ rows.T
    of = np.asarray(suites)
    upper = np.triu(np.ones_like(matrix, dtype=bool), 1)
    pairs = [upper & (of[:, None] == suite) & (of[None] == suite) for suite in (0, 1)]
    apart = upper & (of[:, None] != of[None])
    first, second, between = (float(matrix[some].mean()) if some.any() else None for some in (*pairs, apart))
    return Cosines(matrix, (first, second), between)
