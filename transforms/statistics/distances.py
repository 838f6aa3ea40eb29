"""Euclidean distances between rows."""

import torch
from torch import Tensor


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Return the Euclidean distances `(a, b)` between `rows` `(a, d)` and `others` `(b, d)`.

    Computed from the Gram matrix: both should be centred on the same point, so that little cancels; squares
    that rounding makes negative are clamped.
    """
    squares = rows.square().sum(1, keepdim=True) + others.square().sum(1)
    return torch.addmm(squares, rows, others.T, alpha=-2).clamp_(min=0).sqrt_()
