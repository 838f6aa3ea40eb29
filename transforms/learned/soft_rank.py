"""Soft ranks of rows of numbers, with the way back for gradients."""

from collections.abc import Callable

import torch
from torch import Tensor


def soft_ranks(values: Tensor, strength: float) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Ranks of each row's entries less their mean, smoothed by a quadratic regularisation.

    The projection of values/strength on the permutahedron of (1, …, n) − (n+1)/2: Blondel, Teboul,
    Berthet and Djolonga, *Fast Differentiable Sorting and Ranking* (2020), Prop. 3, for all rows
    at once. Where neighbours in order differ by more than `strength`, these are the ranks, the
    largest value's the largest, ties averaged; where they differ by less they flow together, and
    where all do the result is an affine function of the values. Centred, because added to ranks
    of thousands a float32 cosine would lose its digits.

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
    groups, dual = falling_regression(ordered - ranks)
    soft = torch.empty_like(values).scatter_(1, order, ordered - dual)

    def pull_back(gradient: Tensor) -> Tensor:
        sorted_gradient = gradient.gather(1, order)
        means = group_means(sorted_gradient, groups)
        return torch.empty_like(values).scatter_(1, order, (sorted_gradient - means) / strength)

    return soft, pull_back


def falling_regression(values: Tensor) -> tuple[Tensor, Tensor]:
    """The closest rows that never rise, in squares: isotonic regression by pooling, all rows at once.

    Neighbouring groups that rise belong together whatever the order they are met in, so that every
    round pools all such runs. One round does where every entry rises; ranks that are smoothed a
    little take about a hundred on cosines, and n/2 at worst.

    Args:
        values: `(b, n)`.

    Returns:
        For each entry the number of its group `(b, n)`, counted along the row, and the means of
        the groups `(b, n)`.
    """
    groups = torch.arange(values.shape[1], device=values.device).expand(values.shape)
    while True:
        means = group_means(values, groups)
        starts = torch.ones_like(groups, dtype=torch.bool)
        starts[:, 1:] = (groups[:, 1:] != groups[:, :-1]) & (means[:, 1:] <= means[:, :-1])
        pooled = starts.cumsum(1) - 1
        if torch.equal(pooled, groups):
            return groups, means
        groups = pooled


def group_means(values: Tensor, groups: Tensor) -> Tensor:
    """For each entry the mean of its group within its row, `(b, n)`; in float64 on the way."""
    sums = torch.zeros_like(values, dtype=torch.float64).scatter_add_(1, groups, values.double())
    counts = torch.zeros_like(sums).scatter_add_(1, groups, torch.ones_like(sums))
    return (sums / counts.clamp_(min=1)).gather(1, groups).to(values.dtype)
