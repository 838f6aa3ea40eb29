"""A linear subspace, stored as a basis of itself or of its orthogonal complement, whichever is smaller."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.vectors import FloatArray


@dataclass(frozen=True)
class Subspace:
    """A linear subspace of d-dimensional space, stored as an orthonormal basis of it or of its complement.

    Attributes:
        directions: `(m, d)` float32, the basis as orthonormal rows.
        complement: whether the basis spans the orthogonal complement instead of the subspace.
    """

    directions: NDArray[np.float32]
    complement: bool

    def energy_outside(self, rows: FloatArray) -> NDArray[np.float64]:
        """Return the squared norm `(n,)` of the component of each row `(n, d)` that is orthogonal to the subspace."""
        along = rows @ self.directions.T
        found: NDArray[np.float64] = np.vecdot(along, along).astype(np.float64)
        if not self.complement:
            # ‖x − Px‖² = ‖x‖² − ‖Px‖² for the projection P; rounding can make the difference negative.
            found = np.maximum(np.vecdot(rows, rows) - found, 0)
        return found
