"""Rows of pairs of vectors from two spaces, read where they are stored."""

from typing import Any

import numpy as np

from lathe.transforms.errors import InputError
from lathe.transforms.vectors import FloatArray, Vectors, as_numpy, require_matrix


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
        """Read the rows of both at the given index or slice, and return them concatenated, `(m, d + k)`."""
        return np.concatenate([as_numpy(self.vectors[rows]), as_numpy(self.targets[rows])], axis=1)
