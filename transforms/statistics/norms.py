"""L2 norms of rows, with zero, and what is too short to have a direction, kept zero."""

import torch
from torch import Tensor

EPSILONS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}

MIN_ORDINARY_NORM = 1e-15
"""From this to infinity a norm is right in float32 too, because no square underflows."""


def row_norms(x: Tensor) -> Tensor:
    """Return the L2 norm of each row, `(n, 1)`, in float64, where the squares of 1e-30 and 1e30 still exist."""
    return norms_of(x, torch.float64)


def without_direction(norms: Tensor, dtype: torch.dtype) -> Tensor:
    """Return which rows of a dtype have no direction: those whose norm is below its smallest normal number.

    Below that number digits are lost: of entries of 1e-45 in float32 only the sign is left. Such rows are treated as
    zero everywhere, because their image would depend on the order of the operations.
    """
    return norms < torch.finfo(dtype).tiny


def unit_rows(x: Tensor) -> Tensor:
    """Bring rows to L2 norm 1; rows `without_direction` become zeros, rows too long for the dtype NaN."""
    if _allows_fast_path(x):
        quick = norms_of(x)
        low, high = torch.aminmax(quick)
        if float(low) > MIN_ORDINARY_NORM and float(high) < torch.inf:
            return x / quick
    exact = row_norms(x)
    norms = exact.to(x.dtype)
    return x / norms.masked_fill(norms.isinf(), torch.nan).masked_fill(without_direction(exact, x.dtype), torch.inf)


def drop_rounding_residue(y: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
    """Set rows of `y` to zero that are images of zero, or mere rounding error of mapping `x`.

    A vector in the kernel of a map, or at the mean that it subtracts, becomes noise of about
    eps·‖x‖, which normalizing would turn into a unit vector. A zero stays zero, whatever the map
    adds to it.

    Args:
        y: `(n, k)`, the image of `x`.
        x: `(n, d)`.
        gain: largest factor by which the map lengthens a vector.
    """
    if _allows_fast_path(y):
        low, high = torch.aminmax(norms_of(y) / norms_of(x))
        if float(low) > residue_ratio(y, gain) and float(high) < torch.inf:
            return y
    before = row_norms(x)
    return torch.where((row_norms(y) <= residue_ratio(y, gain) * before) | without_direction(before, x.dtype), 0, y)


def zero_where_zero(y: Tensor, x: Tensor) -> Tensor:
    """Return the image `y` of `x`, with zero rows where rows of `x` are `without_direction`."""
    return y.masked_fill(without_direction(row_norms(x), x.dtype), 0)


def unit_image(y: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
    """Return `unit_rows(drop_rounding_residue(y, x, gain))`, at a fraction of its cost if no row is special.

    May overwrite `y`.
    """
    if _allows_fast_path(y):
        after = norms_of(y)
        low, high = torch.aminmax(after / norms_of(x))
        if float(low) > residue_ratio(y, gain) and float(high) < torch.inf and float(after.min()) > MIN_ORDINARY_NORM:
            return y.div_(after)
    return unit_rows(drop_rounding_residue(y, x, gain))


def residue_ratio(y: Tensor, gain: float) -> float:
    """Return the norm, relative to that of the input, below which an image is rounding error."""
    return 16 * EPSILONS[y.dtype] * gain


def norms_of(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the L2 norm of each row, `(n, 1)`."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    return norms


def _allows_fast_path(x: Tensor) -> bool:
    """Return whether norms may be read before they are used, which makes a GPU wait and breaks a gradient."""
    return x.is_cpu and not x.requires_grad and x.dtype in (torch.float32, torch.float64) and x.shape[0] > 0
