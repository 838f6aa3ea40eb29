"""The default loss of GeoPres: angular loss, correlation and neighbours together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from transforms.learned.losses.angular import angular
from transforms.learned.losses.cosine_losses import (
    MAX_BLOCK_ENTRIES,
    AnchorLoss,
    AnchorLossAndGradient,
    mean_over_anchors,
    one_minus_pearson,
    standardize_rows,
)
from transforms.learned.losses.loss import LossAndGradient

TEMPERATURE = 0.05
"""Of `neighbour_divergence`: a cosine smaller by this much has 1/e of the weight."""

SHARES = (0.1, 0.7, 0.2)
"""Weights of the three losses; see `GeoPres` for what others cost."""


def blend(
    x: Tensor, outputs: Sequence[Tensor], starts: Sequence[Sequence[float]], block_entries: int = MAX_BLOCK_ENTRIES
) -> list[LossAndGradient]:
    """Add three losses, each relative to its start, weighted by `SHARES`: `angular`, 1 − Pearson, and neighbours.

    They measure different things: the size of every cosine, the order of an anchor's cosines, and
    which rows are near. Rows must have unit length.

    Args:
        x: `(m, d)`.
        outputs: each `(m, p)`.
        starts: for each output the three losses at the start, from `blend_starts`.
        block_entries: maximum number of similarities in memory at a time.
    """
    weights = [[share / max(loss, 1e-12) for share, loss in zip(SHARES, start, strict=True)] for start in starts]

    def prepare(before: Tensor) -> AnchorLoss:
        wanted, nearness = standardize_rows(before), (before / TEMPERATURE).softmax(1)

        def anchor_loss(index: int, after: Tensor) -> AnchorLossAndGradient:
            _, for_correlation, for_neighbours = weights[index]
            one, along = one_minus_pearson(wanted, after)
            other, across = neighbour_divergence(nearness, after)
            return for_correlation * one + for_neighbours * other, along.mul_(for_correlation).add_(
                across, alpha=for_neighbours
            )

        return anchor_loss

    of_pairs, of_anchors = angular(x, outputs), mean_over_anchors(x, outputs, prepare, block_entries)
    return [
        (weight[0] * first + second, weight[0] * along + across)
        for weight, (first, along), (second, across) in zip(weights, of_pairs, of_anchors, strict=True)
    ]


def blend_starts(x: Tensor, outputs: Sequence[Tensor]) -> list[list[float]]:
    """Return for each output the three losses at the start, which `blend` divides by."""

    def correlation(before: Tensor) -> AnchorLoss:
        wanted = standardize_rows(before)
        return lambda _index, after: one_minus_pearson(wanted, after)

    def neighbours(before: Tensor) -> AnchorLoss:
        nearness = (before / TEMPERATURE).softmax(1)
        return lambda _index, after: neighbour_divergence(nearness, after)

    losses = [
        angular(x, outputs),
        mean_over_anchors(x, outputs, correlation),
        mean_over_anchors(x, outputs, neighbours),
    ]
    return [[of_one[index][0] for of_one in losses] for index in range(len(outputs))]


def neighbour_divergence(nearness: Tensor, after: Tensor) -> AnchorLossAndGradient:
    """Compute KL(p‖q) of rows `(b, n)`, q the softmax of the cosines after/`TEMPERATURE`, and its gradient.

    As in stochastic neighbour embedding (Hinton and Roweis, 2002), with p the same of the cosines
    before: which rows are near matters, how far the far rows are matters little.
    """
    log_q = (after / TEMPERATURE).log_softmax(1)
    losses = torch.xlogy(nearness, nearness).sum(1) - torch.linalg.vecdot(nearness, log_q)
    return losses, log_q.exp_().sub_(nearness).div_(TEMPERATURE)
