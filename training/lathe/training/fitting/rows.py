"""Rows of a source that a chain is fitted on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.vectors import FloatArray, Vectors


class Rows:
    """Lazy selection of rows of vectors on disk; indexing reads the rows it asks for.

    Args:
        vectors: `(n, d)`.
        chosen: indices of the selected rows `(m,)`.

    Attributes:
        shape: `(m, d)`.
    """

    def __init__(self, vectors: Vectors, chosen: NDArray[np.int64]) -> None:
        self.vectors = vectors
        self.chosen = chosen
        self.shape = (len(chosen), vectors.shape[1])

    def __getitem__(self, rows: Any, /) -> FloatArray:
        """Read the selected rows at these positions, as an array."""
        return np.asarray(self.vectors[self.chosen[rows]])
