"""Pairs of vectors from two spaces, read where they are stored, and their joint moments."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError
from lathe.transforms.statistics.moments import Moments, Precision
from lathe.transforms.vectors import FloatArray, Vectors, as_numpy, require_matrix, row_blocks


class PairedRows:
    """Lazy view `(n, d + k)` of vectors `(n, d)` and their targets `(n, k)`, whose rows are concatenated when read.

    Args:
        vectors: `(n, d)`.
        targets: `(n, k)`, paired by row.

    Attributes:
        shape: `(n, d + k)`.

    Raises:
        InputError: unless both are matrices with the same number of rows.
    """

    def __init__(self, vectors: Vectors, targets: Vectors) -> None:
        require_matrix(vectors)
        require_matrix(targets)
        if vectors.shape[0] != targets.shape[0]:
            raise InputError(f"{vectors.shape[0]} vectors and {targets.shape[0]} targets are not pairs")
        self.vectors, self.targets = vectors, targets
        self.shape = (vectors.shape[0], vectors.shape[1] + targets.shape[1])

    @property
    def source_dimensions(self) -> int:
        """Number of dimensions d of the vectors, at which the targets begin."""
        return self.vectors.shape[1]

    def __getitem__(self, rows: Any, /) -> FloatArray:
        """Read the vectors and targets at the given index or slice, and return them side by side, `(m, d + k)`."""
        return np.concatenate([as_numpy(self.vectors[rows]), as_numpy(self.targets[rows])], axis=1)


class PairedMoments(Moments):
    """Moments of pairs x `(d,)` and y `(k,)`, concatenated to rows `(d + k,)`, so that they include cross-covariances.

    Attributes:
        split: d, the index at which y begins.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import PairedMoments
        >>> rows = np.random.default_rng(0).normal(size=(300, 4))
        >>> moments = PairedMoments.from_pairs(rows, 2 * rows)
        >>> covariance, cross_covariance = moments.blocks(centered=True)
        >>> bool(np.allclose(cross_covariance, 2 * covariance))
        True
    """

    def __init__(self, precision: Precision = "float64", split: int = 0) -> None:
        super().__init__(precision)
        self.split = split

    @classmethod
    def from_vectors(cls, vectors: Vectors, *_arguments: Any, **_keywords: Any) -> Self:
        """Always raise `InputError`, because pairs need two sets of vectors.

        `from_pairs` takes both.

        Raises:
            InputError: always.
        """
        raise InputError("moments of pairs are taken by from_pairs(vectors, targets)")

    @classmethod
    def from_pairs(cls, vectors: Vectors, targets: Vectors, precision: Precision = "float64") -> Self:
        """Compute the joint moments of `vectors` `(n, d)` and `targets` `(n, k)`, paired by row. NaN or inf raises.

        Raises:
            InputError: if the numbers of rows differ, or for NaN or inf.
        """
        pairs = PairedRows(vectors, targets)
        moments = cls(precision, pairs.source_dimensions)
        for block in row_blocks(pairs):
            moments.update(block)
        return moments

    def merge(self, other: Moments) -> Self:
        """Add moments of other pairs to these moments in place, and return `self`. Other dimensions raise.

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
        """Return the arrays of `Moments.arrays` and the array `split`, by name, for saving."""
        return super().arrays() | {"split": np.array([self.split], np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild paired moments from the arrays that `arrays` returned.

        The arrays are not copied.
        """
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
        """Return the means of xxᵀ `(d, d)` and of xyᵀ `(d, k)` over the pairs (x, y).

        With `centered`, they are the covariance of x and the cross-covariance of x and y instead.
        """
        # The joint matrix (d + k, d + k) of (x, y) is [[xx, xy], [yx, yy]]: these are its two upper blocks.
        joint = self.covariance(ddof=0) if centered else self.second_moment()
        return joint[: self.split, : self.split], joint[: self.split, self.split :]
