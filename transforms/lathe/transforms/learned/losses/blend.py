"""The default loss of GeoPres: a weighted sum of an angular, a correlation and a neighbour loss."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lathe.transforms.learned.losses.cosine_losses import (
    MAX_BLOCK_ENTRIES,
    AnchorLoss,
    AnchorLossAndGradient,
    angular,
    mean_over_anchors,
    one_minus_pearson,
    standardize_rows,
)
from lathe.transforms.learned.losses.loss import LossAndGradient

TEMPERATURE = 0.05
"""Softmax temperature of `neighbour_divergence`: a cosine smaller by this much has 1/e of the probability."""

SHARES = (0.1, 0.7, 0.2)
"""Weights of the angular, correlation and neighbour losses in `blend`; `GeoPres` lists results of other weights."""


def blend(
    x: Tensor, outputs: Sequence[Tensor], starts: Sequence[Sequence[float]], block_entries: int = MAX_BLOCK_ENTRIES
) -> list[LossAndGradient]:
    """Compute, for each output, a weighted sum of three losses of the cosines between rows, and its gradient. Each loss
    is divided by its value at the start.

    The losses are `angular`, `one_minus_pearson` and `neighbour_divergence`, weighted by `SHARES`. They measure the
    size of every cosine, the order of an anchor's cosines, and which rows are near. Rows must have unit length.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        starts: starting values of the three losses for each output, from `blend_starts`.
        block_entries: maximum number of cosines in memory at a time.
    """
    weights = [[share / max(loss, 1e-12) for share, loss in zip(SHARES, start, strict=True)] for start in starts]

    def prepare(original_cosines: Tensor) -> AnchorLoss:
        targets, probabilities = standardize_rows(original_cosines), _neighbour_probabilities(original_cosines)

        def anchor_loss(index: int, cosines: Tensor) -> AnchorLossAndGradient:
            """Return the weighted sum of both losses of each anchor `(b,)`, and its gradient w.r.t. `cosines`."""
            _, correlation_weight, neighbour_weight = weights[index]
            correlation_losses, gradient = one_minus_pearson(targets, cosines)
            neighbour_losses, neighbour_gradient = neighbour_divergence(probabilities, cosines)
            losses = correlation_weight * correlation_losses + neighbour_weight * neighbour_losses
            return losses, gradient.mul_(correlation_weight).add_(neighbour_gradient, alpha=neighbour_weight)

        return anchor_loss

    # The angular loss has a closed form over all pairs; the other two need each anchor's cosines.
    of_pairs, of_anchors = angular(x, outputs), mean_over_anchors(x, outputs, prepare, block_entries)
    return [
        (weight[0] * pair_loss + anchor_loss, weight[0] * pair_gradient + anchor_gradient)
        for weight, (pair_loss, pair_gradient), (anchor_loss, anchor_gradient) in zip(
            weights, of_pairs, of_anchors, strict=True
        )
    ]


def blend_starts(x: Tensor, outputs: Sequence[Tensor]) -> list[list[float]]:
    """Return, for each output, the values of the three losses that `blend` adds up. They are the angular, 1 − Pearson
    and neighbour loss, by which `blend` divides.
    """

    def correlation(original_cosines: Tensor) -> AnchorLoss:
        targets = standardize_rows(original_cosines)
        return lambda _index, cosines: one_minus_pearson(targets, cosines)

    def neighbours(original_cosines: Tensor) -> AnchorLoss:
        probabilities = _neighbour_probabilities(original_cosines)
        return lambda _index, cosines: neighbour_divergence(probabilities, cosines)

    results = [
        angular(x, outputs),
        mean_over_anchors(x, outputs, correlation),
        mean_over_anchors(x, outputs, neighbours),
    ]
    return [[result[index][0] for result in results] for index in range(len(outputs))]


def neighbour_divergence(target_probabilities: Tensor, cosines: Tensor) -> AnchorLossAndGradient:
    """Compute, for each row, the divergence KL(p‖q) from the target probabilities p to q, the softmax of the cosines.
    Returns it, `(b,)`, and its gradient with respect to the cosines, `(b, n)`.

    q = softmax(cosines/`TEMPERATURE`); both arguments are `(b, n)`. As in stochastic neighbour embedding (Hinton and
    Roweis, 2002), p is the softmax of the cosines in the original space: which rows are near matters, how far the far
    rows are matters little.
    """
    p = target_probabilities
    log_q = (cosines / TEMPERATURE).log_softmax(1)
    # xlogy is 0 at p = 0, where p·log p would be NaN.
    losses = torch.xlogy(p, p).sum(1) - torch.linalg.vecdot(p, log_q)
    # ∂KL(p‖q)/∂cosines = (q − p)/temperature, written over log q to save a block of memory.
    return losses, log_q.exp_().sub_(p).div_(TEMPERATURE)


def _neighbour_probabilities(cosines: Tensor) -> Tensor:
    """Return softmax(cosines/`TEMPERATURE`) of each row, `(b, n)`: how likely each other row is a neighbour."""
    return (cosines / TEMPERATURE).softmax(1)
