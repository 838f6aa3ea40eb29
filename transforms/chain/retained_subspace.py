"""The directions of its inputs that a chain keeps; what lies beside them no output can tell."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transforms.chain.chain import Chain
from transforms.incremental.propagation import affine_parts, as_float64
from transforms.vectors import FloatArray


@dataclass(frozen=True)
class Kept:
    """The subspace of its inputs that a chain keeps, or what it loses, whichever takes fewer directions.

    Attributes:
        directions: `(m, d)` float32, unit rows at right angles to one another.
        lost: whether these are the lost ones.
    """

    directions: NDArray[np.float32]
    lost: bool

    @classmethod
    def of(cls, chain: Chain) -> "Kept | None":
        """That of a fitted chain, at its full size: the row space of the product of its affine maps.

        Normalisations change lengths only and a quantisation keeps every direction, so both are
        passed over. None for a chain that takes any width, or is more than affine maps.
        """
        width = chain.input_dimensions
        if width is None:
            return None
        product = np.eye(width)
        for step in chain.float_steps:
            parts = affine_parts(step)
            if parts is None:
                return None
            for part in parts:
                product = as_float64(part.weight) @ product
        _, values, directions = np.linalg.svd(product)
        rank = int((values > width * np.finfo(np.float32).eps * values.max(initial=0)).sum())  # the maps are float32
        lost = width - rank < rank
        return cls((directions[rank:] if lost else directions[:rank]).astype(np.float32), lost)

    def outside(self, rows: FloatArray) -> NDArray[np.float64]:
        """‖x‖² of rows `(n, d)` that lies beside what is kept, `(n,)`."""
        along = rows @ self.directions.T
        found: NDArray[np.float64] = np.vecdot(along, along).astype(np.float64)
        if not self.lost:
            found = np.maximum(np.vecdot(rows, rows) - found, 0)
        return found
