"""Soft ranks of rows of numbers, with their gradient."""

from collections.abc import Callable

import torch
from torch import Tensor


def soft_ranks(values: Tensor, strength: float) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Compute soft ranks of the entries of each row, centred, smoothed by a quadratic regularization.

    The projection of values/strength on the permutahedron of (1, …, n) − (n+1)/2: Blondel, Teboul,
    Berthet and Djolonga, *Fast Differentiable Sorting and Ranking* (2020), Prop. 3, for all rows
    at once. Where sorted neighbours differ by more than `strength`, these are the ranks, the
    largest value having the largest, ties averaged; where they differ by less they are averaged in part, and
    where all do the result is an affine function of the values. Centred, because a float32 cosine
    added to ranks of thousands would lose its digits.

    Args:
        values: `(b, n)`.
        strength: above 0.

    Returns:
        The ranks `(b, n)`, and the function that takes a gradient with respect to them, `(b, n)`,
        to one with respect to the values.
    """
    n = values.shape[1]
    ordered, order = (values / strength).sort(dim=1, descending=True)
    ranks = torch.arange(n, 0, -1, dtype=values.dtype, device=values.device) - (n + 1) / 2
    groups, dual = non_increasing_regression(ordered - ranks)
    soft = torch.empty_like(values).scatter_(1, order, ordered - dual)

    def backward(gradient: Tensor) -> Tensor:
        sorted_gradient = gradient.gather(1, order)
        means = _group_means(sorted_gradient, groups)
        return torch.empty_like(values).scatter_(1, order, (sorted_gradient - means) / strength)

    return soft, backward


def non_increasing_regression(values: Tensor) -> tuple[Tensor, Tensor]:
    """Find the closest non-increasing rows in squared error: isotonic regression by pooling, all rows at once.

    Neighbouring groups that increase belong together whatever the order of pooling, so every
    round pools all such runs. One round is enough if every entry increases; slightly smoothed ranks of
    cosines take about a hundred rounds, n/2 at worst.

    Args:
        values: `(b, n)`.

    Returns:
        The group of each entry `(b, n)`, numbered along the row, and the mean of its group `(b, n)`.
    """
    groups = torch.arange(values.shape[1], device=values.device).expand(values.shape)
    while True:
        means = _group_means(values, groups)
        starts = torch.ones_like(groups, dtype=torch.bool)
        starts[:, 1:] = (groups[:, 1:] != groups[:, :-1]) & (means[:, 1:] <= means[:, :-1])
        pooled = starts.cumsum(1) - 1
        if torch.equal(pooled, groups):
            return groups, means
        groups = pooled


def _group_means(values: Tensor, groups: Tensor) -> Tensor:
    """Return the mean of each entry's group within its row, `(b, n)`, computed in float64."""
    sums = torch.zeros_like(values, dtype=torch.float64).scatter_add_(1, groups, values.double())
    counts = torch.zeros_like(sums).scatter_add_(1, groups, torch.ones_like(sums))
    return (sums / counts.clamp_(min=1)).gather(1, groups).to(values.dtype)
