"""Losses that are means over anchors of a function of their cosines to all other rows."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transforms.learned.losses.loss import LossAndGradient

AnchorLossAndGradient = tuple[Tensor, Tensor]
"""The losses of some anchors `(b,)`, and their gradients with respect to their outputs' cosines `(b, n)`."""

AnchorLoss = Callable[[int, Tensor], AnchorLossAndGradient]
"""Computes these from the position of an output and the cosines `(b, n)` of some anchors in it to all others."""

MAX_BLOCK_ENTRIES = 2**19
"""Similarities of some anchors to the whole batch in memory at a time, by default."""

MIN_SPREAD = 8
"""Times eps√n: n cosines whose length about their mean is less are all the same, and correlate with nothing."""


def mean_over_anchors(
    x: Tensor,
    outputs: Sequence[Tensor],
    prepare: Callable[[Tensor], AnchorLoss],
    block_entries: int = MAX_BLOCK_ENTRIES,
) -> list[LossAndGradient]:
    """Average a loss over anchors, given their cosines to all other rows, in blocks of anchors.

    Args:
        x: `(m, d)`.
        outputs: each `(m, p)`.
        prepare: returns, for the cosines of some anchors in `x`, the loss of their cosines in an output.
        block_entries: maximum number of similarities in memory at a time.
    """
    m = x.shape[0]
    totals = [0.0] * len(outputs)
    gradients = [torch.zeros_like(z) for z in outputs]
    step = max(1, block_entries // m)
    for start in range(0, m, step):
        rows = slice(start, min(start + step, m))
        anchor_loss = prepare(_cosines_to_others(x, rows))
        for index, z in enumerate(outputs):
            losses, along = anchor_loss(index, _cosines_to_others(z, rows))
            pull = _insert_zero_for_itself(along, rows)
            totals[index] += float(losses.sum(dtype=torch.float64))
            gradients[index][rows].addmm_(pull, z)
            gradients[index].addmm_(pull.T, z[rows])
    return [(total / m, gradient.div_(m)) for total, gradient in zip(totals, gradients, strict=True)]


def standardize_rows(values: Tensor) -> Tensor:
    """Subtract the mean of each row `(b, n)` and bring it to unit length; a row that does not vary becomes zero."""
    return torch.nn.functional.normalize(values - values.mean(1, keepdim=True), eps=_min_length(values))


def one_minus_pearson(wanted: Tensor, found: Tensor) -> AnchorLossAndGradient:
    """Compute 1 − the correlation of standardized rows `wanted` with `found` `(b, n)`, and its gradient for `found`."""
    b = found - found.mean(1, keepdim=True)
    lengths = b.norm(dim=1, keepdim=True).clamp_(min=_min_length(found))
    correlation = torch.linalg.vecdot(wanted, b).unsqueeze(1).div_(lengths)
    return 1 - correlation.squeeze(1), b.mul_(correlation / lengths).sub_(wanted).div_(lengths)


def _cosines_to_others(z: Tensor, rows: slice) -> Tensor:
    """Return the cosines of some rows to all others `(b, m−1)`, the last column in place of a row with itself."""
    cosines = z[rows] @ z.T
    itself = torch.arange(rows.start, rows.stop, device=z.device).unsqueeze(1)
    return cosines.scatter_(1, itself, cosines[:, -1:].clone())[:, :-1]


def _insert_zero_for_itself(along: Tensor, rows: slice) -> Tensor:
    """Undo the order of `_cosines_to_others`, `(b, m−1)` to `(b, m)`, with zero for a row with itself."""
    itself = torch.arange(rows.start, rows.stop, device=along.device).unsqueeze(1)
    whole = torch.nn.functional.pad(along, (0, 1))
    whole[:, -1:] = whole.gather(1, itself)
    return whole.scatter_(1, itself, 0.0)


def _min_length(values: Tensor) -> float:
    """Return the length about the mean below which a row `(b, n)` is rounding error."""
    return MIN_SPREAD * torch.finfo(values.dtype).eps * math.sqrt(values.shape[1])
