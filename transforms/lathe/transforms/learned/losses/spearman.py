"""The soft Spearman loss of GeoPres, Appendix A.1.2, and the differentiable soft ranks that it is made of."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lathe.transforms.learned.losses.cosine_losses import (
    MAX_BLOCK_ENTRIES,
    AnchorLoss,
    AnchorLossAndGradient,
    mean_over_anchors,
    one_minus_pearson,
    standardize_rows,
)
from lathe.transforms.learned.losses.loss import LossAndGradient


def soft_ranks(values: Tensor, strength: float) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Compute soft ranks (a differentiable version of ranks) of the values in each row, centred at 0. Returns the ranks
    `(b, n)`, and a function that backpropagates a gradient through them.

    The ranks are the projection of values/strength on the permutahedron of (1, …, n) − (n+1)/2: Blondel, Teboul,
    Berthet and Djolonga, *Fast Differentiable Sorting and Ranking* (2020), Prop. 3, for all rows
    at once. Where sorted neighbours differ by more than `strength`, soft ranks equal centred ascending ranks, ties
    averaged. Where neighbours differ by less, their ranks are partly averaged. If all differ by less, soft ranks
    are an affine function of the values. Ranks are centred, because a float32 cosine added to ranks of thousands
    would lose digits.

    Args:
        values: `(b, n)`.
        strength: strength of the quadratic regularization, above 0.

    Returns:
        The soft ranks, `(b, n)`, and a function that maps the gradient with respect to the soft ranks, `(b, n)`, to the
        gradient with respect to the values, `(b, n)`.
    """
    n = values.shape[1]
    ordered, order = (values / strength).sort(dim=1, descending=True)
    ranks = torch.arange(n, 0, -1, dtype=values.dtype, device=values.device) - (n + 1) / 2
    groups, dual = non_increasing_regression(ordered - ranks)
    # Prop. 3: the projection is s − v, s the sorted values and v the isotonic regression of s minus the ranks.
    soft = torch.empty_like(values).scatter_(1, order, ordered - dual)

    def backward(gradient: Tensor) -> Tensor:
        """Return the gradient w.r.t. the values, given the gradient w.r.t. the soft ranks, both `(b, n)`."""
        sorted_gradient = gradient.gather(1, order)
        # The Jacobian is the identity minus averaging within groups: symmetric, so it is its own transpose.
        means = _group_means(sorted_gradient, groups)
        return torch.empty_like(values).scatter_(1, order, (sorted_gradient - means) / strength)

    return soft, backward


def non_increasing_regression(values: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a non-increasing sequence to each row by least squares. Returns the group of each entry and its fitted value,
    the mean of the group.

    Isotonic regression by pooling adjacent violators, for all rows at once. Neighbouring groups whose means increase
    end in one group whatever the order of pooling, so every round pools all such runs. One round is enough if
    every entry increases; slightly smoothed ranks of cosines take about a hundred rounds, n/2 at worst.

    Args:
        values: `(b, n)`.

    Returns:
        The group of each entry, `(b, n)`, counted from 0 along the row, and the mean of each entry's group, `(b, n)`,
        which is the fitted value.
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
    """Return, for each entry, the mean of its group within its row, `(b, n)`. It is summed in float64 and returned in
    the input dtype.
    """
    sums = torch.zeros_like(values, dtype=torch.float64).scatter_add_(1, groups, values.double())
    counts = torch.zeros_like(sums).scatter_add_(1, groups, torch.ones_like(sums))
    # A row with few groups has labels without entries, for which this would be 0/0.
    return (sums / counts.clamp_(min=1)).gather(1, groups).to(values.dtype)


def spearman(
    x: Tensor, outputs: Sequence[Tensor], strength: float = 1.0, block_entries: int = MAX_BLOCK_ENTRIES
) -> list[LossAndGradient]:
    """Compute, for each output, how badly it keeps the ranks of cosines: 1 − their soft Spearman correlation. The
    cosines of a row to the other rows are compared with those in `x`, and the mean over rows is taken. Returns the loss
    and its gradient for each output.

    GeoPres, Appendix A.1.2: the Pearson correlation of the soft ranks of an anchor's cosines to all other rows, in `x`
    and in the output. At the published strength of 1 soft ranks are an affine function of the cosines, and the loss is
    1 − the mean Pearson correlation of the cosines. Rows must have unit length.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        strength: regularization strength of `soft_ranks`, above 0; the smaller, the closer to ranks.
        block_entries: maximum number of cosines in memory at a time.
    """

    def prepare(original_cosines: Tensor) -> AnchorLoss:
        targets = standardize_rows(soft_ranks(original_cosines, strength)[0])

        def anchor_loss(_index: int, cosines: Tensor) -> AnchorLossAndGradient:
            ranks, backward = soft_ranks(cosines, strength)
            losses, rank_gradient = one_minus_pearson(targets, ranks)
            return losses, backward(rank_gradient)

        return anchor_loss

    return mean_over_anchors(x, outputs, prepare, block_entries)
