"""L2 normalisation, with zero kept zero."""

import torch
from torch import Tensor

from transforms.arrays import Vectors
from transforms.moments import Moments
from transforms.transform import Progress, Transform


def row_norms(x: Tensor) -> Tensor:
    """L2 norm of each row, `(n, 1)` in float64, where the squares of 1e-30 and 1e30 still exist."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
    return norms


def unit_rows(x: Tensor) -> Tensor:
    """Rows of L2 norm 1; rows of zeros stay zeros, rows too long for the dtype become NaN."""
    norms = row_norms(x).to(x.dtype)
    return x / norms.masked_fill(norms == 0, 1).masked_fill(norms.isinf(), torch.nan)


def drop_rounding_residue(y: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
    """Set to zero the rows of `y` that are nothing but the rounding error of mapping `x`.

    A vector inside a map's kernel comes out as noise of about eps·‖x‖; normalising that would
    make a confident unit vector out of nothing.

    Args:
        y: `(n, k)`, the image of `x`.
        x: `(n, d)`.
        gain: the largest factor by which the map can lengthen a vector.
    """
    tolerance = 16 * torch.finfo(y.dtype).eps * gain
    return torch.where(row_norms(y) <= tolerance * row_norms(x), 0, y)


class Normalize(Transform):
    """x / ‖x‖; 0 stays 0. Nothing is learned."""

    kind = "normalize"

    def width_after(self, dimensions: int) -> int:
        """The width does not change."""
        return dimensions

    def learn(self, data: Moments | Vectors, on_progress: Progress) -> None:
        """Nothing to learn."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise rows, `(n, d)` to `(n, d)`."""
        return unit_rows(x)
