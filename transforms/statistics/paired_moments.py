"""Moments of pairs of vectors, from two spaces."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transforms.errors import InputError
from transforms.statistics.moments import Moments, Precision
from transforms.vectors import FloatArray, Vectors, as_numpy, require_matrix, row_blocks


class PairedMoments(Moments):
    """Moments of the concatenated rows [x; y], x `(d,)` and y `(k,)`, which include their cross-covariance.

    Attributes:
        split: d, at which x ends and y begins.
    """

    def __init__(self, precision: Precision = "float64", split: int = 0) -> None:
        super().__init__(precision)
        self.split = split

    @classmethod
    def from_vectors(cls, vectors: Vectors, *_arguments: Any, **_keywords: Any) -> Self:
        """Refuse to build from one set of vectors.

        Raises:
            InputError: always.
        """
        raise InputError("moments of pairs are taken by from_pairs(vectors, targets)")

    @classmethod
    def from_pairs(cls, vectors: Vectors, targets: Vectors, precision: Precision = "float64") -> Self:
        """Take the moments of the rows of `vectors` `(n, d)` paired with those of `targets` `(n, k)`, streamed.

        Raises:
            InputError: if their numbers differ, or they hold NaN or inf.
        """
        pairs = _ConcatenatedRows(vectors, targets)
        moments = cls(precision, vectors.shape[1])
        for block in row_blocks(pairs):
            moments.update(block)
        return moments

    def merge(self, other: Moments) -> Self:
        """Add the pairs of other moments in place.

        Raises:
            InputError: if the dimensions differ.
        """
        theirs = getattr(other, "split", self.split)
        if self.count == 0 and self.split == 0:
            self.split = theirs
        if theirs != self.split:
            raise InputError(f"cannot merge pairs from {theirs} dimensions into pairs from {self.split}")
        return super().merge(other)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        return super().arrays() | {"split": np.array([self.split], np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Build moments from the arrays that `arrays` returned."""
        moments = super().from_arrays(arrays)
        moments.split = int(arrays["split"][0])
        return moments

    @property
    def source_dimensions(self) -> int:
        """Dimensions d of x."""
        return self.split

    def source_mean(self) -> NDArray[np.float64]:
        """Return the mean of x, `(d,)`."""
        return self.mean[: self.split]

    def target_mean(self) -> NDArray[np.float64]:
        """Return the mean of y, `(k,)`."""
        return self.mean[self.split :]

    def blocks(self, centered: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the second moments of x with x `(d, d)` and of x with y `(d, k)`, centred or not."""
        joint = self.covariance(ddof=0) if centered else self.second_moment()
        return joint[: self.split, : self.split], joint[: self.split, self.split :]


class _ConcatenatedRows:
    """Rows of two sources side by side, concatenated when they are read."""

    def __init__(self, vectors: Vectors, targets: Vectors) -> None:
        require_matrix(vectors)
        require_matrix(targets)
        if vectors.shape[0] != targets.shape[0]:
            raise InputError(f"{vectors.shape[0]} vectors and {targets.shape[0]} targets are not pairs")
        self.vectors, self.targets = vectors, targets
        self.shape = (vectors.shape[0], vectors.shape[1] + targets.shape[1])

    def __getitem__(self, rows: Any, /) -> FloatArray:
        """Return the chosen pairs."""
        return np.concatenate([as_numpy(self.vectors[rows]), as_numpy(self.targets[rows])], axis=1)
