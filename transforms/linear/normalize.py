"""L2 normalisation, with zero, and what is too short to have a direction, kept zero."""

import torch
from torch import Tensor

from transforms.base.signature import Outline
from transforms.base.transform import Run, Transform
from transforms.statistics.moments import Moments
from transforms.vectors import Vectors

EPSILONS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}

ORDINARY_NORM = 1e-15
"""Above this and below infinity, a norm is right in float32 too: no square was lost."""


def row_norms(x: Tensor) -> Tensor:
    """L2 norm of each row, `(n, 1)` in float64, where the squares of 1e-30 and 1e30 still exist."""
    return norms_of(x, torch.float64)


def without_direction(norms: Tensor, dtype: torch.dtype) -> Tensor:
    """Return which rows of a dtype are zero or as good as zero, by their norms: those below its smallest normal number.

    Below it digits are lost, the more the shorter the row is: of entries of 1e-45 in float32 nothing but the sign is
    left. Such rows are zero everywhere, as what was made of them would depend on the order of the operations.
    """
    return norms < torch.finfo(dtype).tiny


def unit_rows(x: Tensor) -> Tensor:
    """Rows of L2 norm 1; rows `without_direction` become zeros, rows too long for the dtype NaN."""
    if can_be_quick(x):
        quick = norms_of(x)
        low, high = torch.aminmax(quick)
        if float(low) > ORDINARY_NORM and float(high) < torch.inf:
            return x / quick
    exact = row_norms(x)
    norms = exact.to(x.dtype)
    return x / norms.masked_fill(norms.isinf(), torch.nan).masked_fill(without_direction(exact, x.dtype), torch.inf)


def drop_rounding_residue(y: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
    """Set to zero the rows of `y` that say nothing: images of zero, and rounding error of mapping `x`.

    A vector inside a map's kernel, or at the centre it subtracts, comes out as noise of about
    eps·‖x‖; normalising that would make a confident unit vector out of nothing. A zero has
    nothing to say before any map, whatever the map adds to it.

    Args:
        y: `(n, k)`, the image of `x`.
        x: `(n, d)`.
        gain: the largest factor by which the map can lengthen a vector.
    """
    if can_be_quick(y):
        low, high = torch.aminmax(norms_of(y) / norms_of(x))
        if float(low) > residue(y, gain) and float(high) < torch.inf:
            return y
    before = row_norms(x)
    return torch.where((row_norms(y) <= residue(y, gain) * before) | without_direction(before, x.dtype), 0, y)


def zero_where_zero(y: Tensor, x: Tensor) -> Tensor:
    """The image `y` of `x`, with zero rows where those of `x` are `without_direction`."""
    return y.masked_fill(without_direction(row_norms(x), x.dtype), 0)


def unit_image(y: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
    """`unit_rows(drop_rounding_residue(y, x, gain))`, at a fraction of its cost where no row is odd.

    May overwrite `y`.
    """
    if can_be_quick(y):
        after = norms_of(y)
        low, high = torch.aminmax(after / norms_of(x))
        if float(low) > residue(y, gain) and float(high) < torch.inf and float(after.min()) > ORDINARY_NORM:
            return y.div_(after)
    return unit_rows(drop_rounding_residue(y, x, gain))


def residue(y: Tensor, gain: float) -> float:
    """The length, relative to the input, below which an image is rounding error."""
    return 16 * EPSILONS[y.dtype] * gain


def norms_of(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """L2 norm of each row, `(n, 1)`."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    return norms


def can_be_quick(x: Tensor) -> bool:
    """Whether norms may be looked at before they are used: that makes a GPU wait, and breaks a gradient."""
    return x.is_cpu and not x.requires_grad and x.dtype in (torch.float32, torch.float64) and x.shape[0] > 0


class Normalize(Transform):
    """x / ‖x‖; 0 stays 0. Nothing is learned, and the length cannot be had back."""

    kind = "normalize"
    learns_from = "nothing"

    def after(self, before: Outline) -> Outline:
        """Nothing changes."""
        return before

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Nothing to learn."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise rows, `(n, d)` to `(n, d)`."""
        return unit_rows(x)
