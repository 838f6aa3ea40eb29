"""Joint moments of pairs of vectors from two spaces."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError
from lathe.transforms.statistics.moments import Moments, Precision
from lathe.transforms.statistics.paired_rows import PairedRows
from lathe.transforms.vectors import Vectors, row_blocks


class PairedMoments(Moments):
    """Moments of pairs x `(d,)` and y `(k,)`, concatenated to rows `(d + k,)`, so that they include cross-covariances.

    Attributes:
        split: d, the index at which y begins.
    """

    def __init__(self, precision: Precision = "float64", split: int = 0) -> None:
        super().__init__(precision)
        self.split = split

    @classmethod
    def from_vectors(cls, vectors: Vectors, *_arguments: Any, **_keywords: Any) -> Self:
        """Raise `InputError`: pairs need two sets of vectors; use `from_pairs`.

        Raises:
            InputError: always.
        """
        raise InputError("moments of pairs are taken by from_pairs(vectors, targets)")

    @classmethod
    def from_pairs(cls, vectors: Vectors, targets: Vectors, precision: Precision = "float64") -> Self:
        """Compute the joint moments of `vectors` `(n, d)` and `targets` `(n, k)`, paired by row, block by block.

        Raises:
            InputError: if the numbers of rows differ, or for NaN or inf.
        """
        pairs = PairedRows(vectors, targets)
        moments = cls(precision, pairs.source_dimensions)
        for block in row_blocks(pairs):
            moments.update(block)
        return moments

    def merge(self, other: Moments) -> Self:
        """Merge the moments of other pairs into this object in place, and return it.

        Raises:
            InputError: if d or k differ.
        """
        # `Moments.update` merges each block as plain `Moments`, which have no split.
        theirs = getattr(other, "split", self.split)
        if self.count == 0 and self.split == 0:
            self.split = theirs
        if theirs != self.split:
            raise InputError(f"cannot merge pairs from {theirs} dimensions into pairs from {self.split}")
        return super().merge(other)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of `Moments.arrays` and `split`, by name, for saving."""
        return super().arrays() | {"split": np.array([self.split], np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild paired moments from the dict that `arrays` returned, without copying the arrays."""
        moments = super().from_arrays(arrays)
        moments.split = int(arrays["split"][0])
        return moments

    @property
    def source_dimensions(self) -> int:
        """Number of dimensions d of x."""
        return self.split

    def source_mean(self) -> NDArray[np.float64]:
        """Return the mean of x, `(d,)`."""
        return self.mean[: self.split]

    def target_mean(self) -> NDArray[np.float64]:
        """Return the mean of y, `(k,)`."""
        return self.mean[self.split :]

    def blocks(self, centered: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the means of xxᵀ `(d, d)` and xyᵀ `(d, k)` over the pairs; if `centered`, the covariances instead."""
        joint = self.covariance(ddof=0) if centered else self.second_moment()
        return joint[: self.split, : self.split], joint[: self.split, self.split :]
