"""Moments of what a transform is fitted on: vectors, earlier moments, or vectors whose owner takes the moments."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from transforms.statistics.moments import Moments
from transforms.statistics.norms import unit_rows
from transforms.vectors import FloatArray, Vectors, row_blocks


class RowTransform(Protocol):
    """What rows can be viewed through: a fitted chain."""

    def dimensions_after(self, dimensions: int) -> int:
        """Return the dimensions of the outputs for inputs of so many dimensions."""

    def transform(self, rows: Any) -> Any:
        """Apply to rows `(n, d)`."""


@runtime_checkable
class SharedVectors(Vectors, Protocol):
    """Vectors whose owner takes their moments, in other processes for instance."""

    def view_through(self, chain: RowTransform) -> "SharedVectors":
        """Return the same vectors as a fitted chain transforms them."""

    def block_moments(self, unit: bool) -> Iterator[Moments]:
        """Yield the moments of every `BLOCK_ROWS` rows, in order; of the rows at unit length if `unit`."""


def moments_of(data: Moments | Vectors) -> Moments:
    """Return the moments given, or take those of the vectors `(n, d)`."""
    if isinstance(data, SharedVectors):
        return merge_moments(data.block_moments(unit=False))
    return data if isinstance(data, Moments) else Moments.from_vectors(data)


def unit_moments(vectors: Vectors) -> Moments:
    """Return the moments of the rows `(n, d)` after L2 normalization, streamed."""
    if isinstance(vectors, SharedVectors):
        return merge_moments(vectors.block_moments(unit=True))
    moments = Moments()
    for block in row_blocks(vectors):
        moments.update(at_unit_length(block))
    return moments


def at_unit_length(block: FloatArray) -> NDArray[np.float64]:
    """Return rows `(n, d)` in float64 after L2 normalization."""
    unit: NDArray[np.float64] = unit_rows(torch.from_numpy(block.astype(np.float64))).numpy()
    return unit


def merge_moments(parts: Iterable[Moments]) -> Moments:
    """Return the moments of the rows of all parts.

    If the parts are blocks in order, the result equals that of a single pass to the last bit.
    """
    moments = Moments()
    for part in parts:
        moments.merge(part)
    return moments


def dimensions_of(data: Moments | Vectors) -> int:
    """Return the dimensions of vectors or moments."""
    return data.dimensions if isinstance(data, Moments) else data.shape[1]
