"""Euclidean distances between rows."""

import torch
from torch import Tensor


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Return the Euclidean distance between each row of `rows` `(a, d)` and each of `others` `(b, d)`, as `(a, b)`.

    Computed from dot products: center both on the same point, so that little cancels. Squared distances that rounding
    makes negative are clamped to 0.
    """
    # ‖a − b‖² = ‖a‖² + ‖b‖² − 2a·b takes one matrix product; differences would take a tensor `(a, b, d)`.
    squares = rows.square().sum(1, keepdim=True) + others.square().sum(1)
    return torch.addmm(squares, rows, others.T, alpha=-2).clamp_(min=0).sqrt_()
