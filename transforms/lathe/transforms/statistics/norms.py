"""L2 norms and normalization of rows.

Zero rows, near-zero rows and rounding error become zero, not unit vectors.
"""

import torch
from torch import Tensor

EPSILONS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
"""Machine epsilon by float dtype."""

MIN_ORDINARY_NORM = 1e-15
"""Norms from this up to inf are accurate even if computed in float32, because no square underflows."""


def row_norms(x: Tensor) -> Tensor:
    """Return the L2 norm of each row, `(n, 1)`, in float64, so that squares neither overflow nor underflow."""
    return norms_of(x, torch.float64)


def is_near_zero(norms: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool mask of the norms that are below the smallest normal number of `dtype`.

    Rows with such norms count as zero. Below that number digits are lost: a float32 entry of 1e-45 has little more than
    a sign. Such rows are treated as zero everywhere, because their outputs would depend on the order of the operations.

    Args:
        norms: L2 norms of rows, as `row_norms` returns them.
        dtype: dtype of the rows.
    """
    return norms < torch.finfo(dtype).tiny


def unit_rows(x: Tensor) -> Tensor:
    """Return rows divided by L2 norms. Near-zero rows become zeros, and rows whose norm overflows become NaN.

    `is_near_zero` defines near-zero rows.
    """
    if _allows_fast_path(x):
        quick = norms_of(x)
        low, high = torch.aminmax(quick)
        # `aminmax` returns NaN if any norm is NaN, which fails both tests and takes the exact path.
        if float(low) > MIN_ORDINARY_NORM and float(high) < torch.inf:
            return x / quick

    exact = row_norms(x)
    norms = exact.to(x.dtype)
    # Division by inf turns rows without direction into zeros; rows whose norm overflows must not look like them.
    return x / norms.masked_fill(norms.isinf(), torch.nan).masked_fill(is_near_zero(exact, x.dtype), torch.inf)


def drop_rounding_residue(y: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
    """Return a map's outputs `y` with zeros in place of the rows that are only rounding error.

    Such rows are far shorter than their inputs in `x`, or have near-zero inputs. A row in the kernel of a map, or equal
    to the mean that the map subtracts, becomes noise of about eps·‖x‖, which normalizing would turn into a unit vector.
    Zero inputs give zero outputs, whatever bias the map adds. Returns `y` itself if no row changes on the fast path,
    else a new tensor.

    Args:
        y: `(n, k)`, outputs of a map for `x`.
        x: `(n, d)`, its inputs.
        gain: largest factor by which the map scales a norm.
    """
    if _allows_fast_path(y):
        # A norm of 0, inf or NaN makes its ratio 0, inf or NaN, which fails a test and takes the exact path.
        low, high = torch.aminmax(norms_of(y) / norms_of(x))
        if float(low) > rounding_threshold(y, gain) and float(high) < torch.inf:
            return y

    before = row_norms(x)
    is_rounding = row_norms(y) <= rounding_threshold(y, gain) * before
    return torch.where(is_rounding | is_near_zero(before, x.dtype), 0, y)


def zero_outputs_of_zero_rows(y: Tensor, x: Tensor) -> Tensor:
    """Return a copy of a map's outputs `y` `(n, k)` with zeros in the rows whose inputs `x` `(n, d)` are near zero."""
    return y.masked_fill(is_near_zero(row_norms(x), x.dtype), 0)


def normalize_outputs(y: Tensor, x: Tensor, gain: float = 1.0) -> Tensor:
    """Return outputs `y` divided by L2 norms, with zeros for rows that are only rounding error. May overwrite `y`.

    `x` are the inputs. The result equals `unit_rows(drop_rounding_residue(y, x, gain))`, but is computed faster if no
    row is special.
    """
    if _allows_fast_path(y):
        after = norms_of(y)
        low, high = torch.aminmax(after / norms_of(x))
        threshold = rounding_threshold(y, gain)
        if float(low) > threshold and float(high) < torch.inf and float(after.min()) > MIN_ORDINARY_NORM:
            return y.div_(after)
    return unit_rows(drop_rounding_residue(y, x, gain))


def rounding_threshold(y: Tensor, gain: float) -> float:
    """Return the ratio ‖y_i‖/‖x_i‖ up to which an output row counts as rounding error: 16·eps·gain.

    Args:
        y: outputs of a map, whose dtype gives eps.
        gain: largest factor by which the map scales a norm.
    """
    return 16 * EPSILONS[y.dtype] * gain


def norms_of(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the L2 norm of each row, `(n, 1)`, computed in `dtype`, by default the dtype of `x`."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    return norms


def _allows_fast_path(x: Tensor) -> bool:
    """Return whether the norms of rows may be read to choose a faster computation.

    They may if there is a row, rows are float32 or float64 on the CPU, and no gradient or graph of PyTorch is recorded.
    Reading norms makes a GPU wait, and breaks a gradient or a graph.
    """
    if torch.compiler.is_compiling():
        return False
    return x.is_cpu and not x.requires_grad and x.dtype in (torch.float32, torch.float64) and x.shape[0] > 0


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Return the Euclidean distances `(a, b)` between each of `rows` `(a, d)` and each of `others` `(b, d)`.

    Computed from dot products: center both on the same point, so that little cancels. Squared distances that rounding
    makes negative are clamped to 0.
    """
    # ‖a − b‖² = ‖a‖² + ‖b‖² − 2a·b takes one matrix product; differences would take a tensor `(a, b, d)`.
    squares = rows.square().sum(1, keepdim=True) + others.square().sum(1)
    return torch.addmm(squares, rows, others.T, alpha=-2).clamp_(min=0).sqrt_()
