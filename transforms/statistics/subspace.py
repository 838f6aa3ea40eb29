"""A linear subspace, described by the fewer of its own directions and those orthogonal to it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transforms.vectors import FloatArray


@dataclass(frozen=True)
class Subspace:
    """A subspace of `d` dimensions.

    Attributes:
        directions: `(m, d)` float32, orthonormal rows.
        complement: whether the directions span the orthogonal complement of the subspace.
    """

    directions: NDArray[np.float32]
    complement: bool

    def energy_outside(self, rows: FloatArray) -> NDArray[np.float64]:
        """Return the part of ‖x‖² that lies outside the subspace, `(n,)`, of rows `(n, d)`."""
        along = rows @ self.directions.T
        found: NDArray[np.float64] = np.vecdot(along, along).astype(np.float64)
        if not self.complement:
            found = np.maximum(np.vecdot(rows, rows) - found, 0)
        return found
