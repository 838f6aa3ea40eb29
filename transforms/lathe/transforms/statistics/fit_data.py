"""Moments of fitting data: of vectors, given moments, or of vectors whose owner computes the moments."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.transforms.statistics.moments import Moments
from lathe.transforms.statistics.norms import unit_rows
from lathe.transforms.vectors import FloatArray, Vectors, row_blocks


class RowTransform(Protocol):
    """Protocol of a fitted chain, as far as lazy views of vectors need it."""

    def dimensions_after(self, dimensions: int) -> int:
        """Return the number of output dimensions for inputs of `dimensions` dimensions."""

    def transform(self, rows: Any) -> Any:
        """Map rows `(n, d)` to outputs `(n, k)`."""


@runtime_checkable
class SharedVectors(Vectors, Protocol):
    """Vectors whose owner computes their moments itself, for instance in other processes."""

    def view_through(self, chain: RowTransform) -> "SharedVectors":
        """Return a lazy view of these vectors, transformed by a fitted chain."""

    def block_moments(self, unit: bool) -> Iterator[Moments]:
        """Yield the moments of each block of `BLOCK_ROWS` rows, in order.

        Rows are L2-normalized first if `unit`.
        """


def moments_of(data: Moments | Vectors) -> Moments:
    """Compute the moments of vectors `(n, d)`. Data that are `Moments` already are returned unchanged."""
    # `from_vectors` would also work, but would read every row here that the owner can summarize itself.
    if isinstance(data, SharedVectors):
        return _merge_moments(data.block_moments(unit=False))
    return data if isinstance(data, Moments) else Moments.from_vectors(data)


def unit_moments(vectors: Vectors) -> Moments:
    """Compute the moments of the rows of `vectors` `(n, d)` after L2 normalization, block by block."""
    if isinstance(vectors, SharedVectors):
        return _merge_moments(vectors.block_moments(unit=True))
    moments = Moments()
    for block in row_blocks(vectors):
        moments.update(at_unit_length(block))
    return moments


def at_unit_length(block: FloatArray) -> NDArray[np.float64]:
    """Return the rows `(n, d)` L2-normalized, as a new float64 array.

    Near-zero rows become zeros.
    """
    # Float64 before the division: unit rows in float32 have norms that are off by float32's rounding.
    unit: NDArray[np.float64] = unit_rows(torch.from_numpy(block.astype(np.float64))).numpy()
    return unit


def _merge_moments(parts: Iterable[Moments]) -> Moments:
    """Merge the moments of disjoint sets of rows into the moments of all rows, and return them as a new object.

    If the parts are blocks in order, the result equals that of a single pass to the last bit.
    """
    moments = Moments()
    # `Moments.update` merges its blocks in the same order, hence the same bits; a tree of merges rounds otherwise.
    for part in parts:
        moments.merge(part)
    return moments


def dimensions_of(data: Moments | Vectors) -> int:
    """Return the number of dimensions d of vectors `(n, d)` or of moments."""
    return data.dimensions if isinstance(data, Moments) else data.shape[1]
