"""The rows of a source that a chain is fitted on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.vectors import FloatArray, Vectors


class Rows:
    """Some rows of vectors that stay where they are."""

    def __init__(self, vectors: Vectors, chosen: NDArray[np.int64]) -> None:
        self.vectors = vectors
        self.chosen = chosen
        self.shape = (len(chosen), vectors.shape[1])

    def __getitem__(self, rows: Any, /) -> FloatArray:
        """Those of the chosen rows."""
        return np.asarray(self.vectors[self.chosen[rows]])
