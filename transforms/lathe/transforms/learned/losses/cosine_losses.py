"""Losses that average, over anchors, a function of an anchor's cosines to all other rows.

An anchor is a row of the batch whose cosines are compared. Every row is an anchor once.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lathe.transforms.learned.losses.loss import LossAndGradient

AnchorLossAndGradient = tuple[Tensor, Tensor]
"""Losses of b anchors `(b,)`, and the gradient of their sum with respect to the anchors' cosines `(b, n)`."""

AnchorLoss = Callable[[int, Tensor], AnchorLossAndGradient]
"""Function of the index of an output and the cosines `(b, n)` in that output from b anchors to all other rows."""

MAX_BLOCK_ENTRIES = 2**19
"""Default maximum number of cosines between a block of anchors and the whole batch in memory at a time."""

MIN_SPREAD = 8
"""Factor on eps·√n: n centred cosines whose L2 norm is smaller are rounding error, and their correlation is about 0."""


def mean_over_anchors(
    x: Tensor,
    outputs: Sequence[Tensor],
    prepare: Callable[[Tensor], AnchorLoss],
    block_entries: int = MAX_BLOCK_ENTRIES,
) -> list[LossAndGradient]:
    """Compute, for each output, a loss on the cosines of each row to the others, averaged over the rows. Returns the
    loss and its gradient with respect to the output, for each.

    Anchors are processed in blocks, so that memory does not hold all m × m cosines. Rows must have unit length.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        prepare: takes the cosines in `x` from a block of anchors to the other rows, `(b, m−1)`, and returns the
            loss of the same cosines in an output.
        block_entries: maximum number of cosines in memory at a time.
    """
    m = x.shape[0]
    totals = [0.0] * len(outputs)
    gradients = [torch.zeros_like(z) for z in outputs]
    step = max(1, block_entries // m)

    for start in range(0, m, step):
        rows = slice(start, min(start + step, m))
        anchor_loss = prepare(_cosines_to_others(x, rows))
        for index, z in enumerate(outputs):
            losses, gradient = anchor_loss(index, _cosines_to_others(z, rows))
            full_gradient = _expand_to_all_columns(gradient, rows)
            totals[index] += float(losses.sum(dtype=torch.float64))
            # A cosine z_i·z_j has a gradient for both of its rows: G Z for the anchors, Gᵀ Z[rows] for the others.
            gradients[index][rows].addmm_(full_gradient, z)
            gradients[index].addmm_(full_gradient.T, z[rows])

    return [(total / m, gradient.div_(m)) for total, gradient in zip(totals, gradients, strict=True)]


def standardize_rows(values: Tensor) -> Tensor:
    """Subtract each row's mean and divide by its L2 norm, `(b, n)`.

    A norm smaller than `_min_length` is replaced by that.
    """
    return torch.nn.functional.normalize(values - values.mean(1, keepdim=True), eps=_min_length(values))


def one_minus_pearson(standardized_targets: Tensor, values: Tensor) -> AnchorLossAndGradient:
    """Compute 1 − the Pearson correlation of each row of `values` with its target. Returns it, `(b,)`, and its gradient
    with respect to `values`, `(b, n)`.

    Targets are rows that `standardize_rows` returned.
    """
    centred = values - values.mean(1, keepdim=True)
    lengths = centred.norm(dim=1, keepdim=True).clamp_(min=_min_length(values))
    correlation = torch.linalg.vecdot(standardized_targets, centred).unsqueeze(1).div_(lengths)
    # With v the centred values, t the target and r = t·v/‖v‖: ∂(1 − r)/∂v = (r v/‖v‖ − t)/‖v‖. v and t sum
    # to 0, so the gradient does too, and centring adds nothing to the chain rule.
    gradient = centred.mul_(correlation / lengths).sub_(standardized_targets).div_(lengths)
    return 1 - correlation.squeeze(1), gradient


def _cosines_to_others(z: Tensor, rows: slice) -> Tensor:
    """Return the cosines of the unit rows `z[rows]` to the m−1 other rows, `(b, m−1)`. The order of the columns is
    changed.

    The last column of the `(b, m)` cosines moves to the place of each row's cosine with itself.
    """
    cosines = z[rows] @ z.T
    itself = torch.arange(rows.start, rows.stop, device=z.device).unsqueeze(1)
    # No loss depends on the order of columns, which is the same in both spaces. The copy is needed because the
    # source and the target of `scatter_` may not share memory.
    return cosines.scatter_(1, itself, cosines[:, -1:].clone())[:, :-1]


def _expand_to_all_columns(gradient: Tensor, rows: slice) -> Tensor:
    """Expand a gradient with respect to the result of `_cosines_to_others`, `(b, m−1)`, to all m rows, `(b, m)`. The
    gradient of a row with itself is 0.

    The order of the m columns is that of the rows.
    """
    itself = torch.arange(rows.start, rows.stop, device=gradient.device).unsqueeze(1)
    expanded = torch.nn.functional.pad(gradient, (0, 1))
    expanded[:, -1:] = expanded.gather(1, itself)
    return expanded.scatter_(1, itself, 0.0)


def _min_length(values: Tensor) -> float:
    """Return the L2 norm below which a centred row of `values` `(b, n)` counts as rounding error, 8·eps·√n."""
    return MIN_SPREAD * torch.finfo(values.dtype).eps * math.sqrt(values.shape[1])


def angular(x: Tensor, outputs: Sequence[Tensor]) -> list[LossAndGradient]:
    """Compute, for each output, the mean squared difference between the cosines of two rows in the output and in `x`.
    Returns the loss and its gradient with respect to the output, for each.

    GeoPres, Eq. 3. With unit rows X `(m, d)` and Z `(m, p)`,
    L = ‖ZZᵀ − XXᵀ‖²_F/(m(m−1)) = (‖ZᵀZ‖² − 2‖XᵀZ‖² + ‖XᵀX‖²)/(m(m−1)) and
    ∂L/∂Z = 4/(m(m−1)) (Z ZᵀZ − X XᵀZ): no m × m matrix is needed, only a few products of size
    d × p. Rows must have unit length.
    """
    pairs = x.shape[0] * (x.shape[0] - 1)
    among_x = (x.T @ x).double().square().sum()
    results = []

    for z in outputs:
        among_z, across = z.T @ z, x.T @ z
        # The three terms nearly cancel where cosines are kept, so they are summed in float64 and clamped at 0.
        loss = among_x - 2 * across.double().square().sum() + among_z.double().square().sum()
        results.append((max(0.0, float(loss)) / pairs, (4 / pairs) * (z @ among_z - x @ across)))

    return results
