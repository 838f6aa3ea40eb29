"""Losses of the outputs of a linear map, carried on to the weight."""

from collections.abc import Sequence

import torch
from torch import Tensor

from transforms.learned.losses.loss import Loss

MIN_LENGTH = 1e-6
"""Shorter outputs have no gradient, because their direction is rounding error."""


def prefix_losses(
    loss: Loss,
    x: Tensor,
    weight: Tensor,
    sizes: Sequence[int],
    importance: Sequence[float],
    normalized: bool = True,
) -> tuple[list[float], Tensor]:
    """Return the loss of every prefix of a linear map's outputs, and the gradient of their weighted sum.

    Args:
        loss: of the outputs.
        x: a batch `(m, d)`.
        weight: W, `(k, d)`.
        sizes: dimensions of the prefixes, each at most k.
        importance: weight of each loss in the gradient.
        normalized: whether outputs are brought to unit length first.

    Returns:
        The losses, and Σ importance_p · ∂L_p/∂W, `(k, d)`.
    """
    y = x @ weight.T
    outputs = [y[:, :size] for size in sizes]
    lengths = [z.norm(dim=1, keepdim=True).clamp_(min=MIN_LENGTH) for z in outputs] if normalized else []
    if normalized:
        outputs = [z / length for z, length in zip(outputs, lengths, strict=True)]
    gradient = torch.zeros_like(weight)
    losses = []
    for index, (value, along) in enumerate(loss(x, outputs)):
        losses.append(value)
        if normalized:  # normalizing removes the part of a gradient that points along an output
            z = outputs[index]
            along = (along - (along * z).sum(1, keepdim=True) * z) / lengths[index]
            along = along.masked_fill_(lengths[index] <= MIN_LENGTH, 0)
        gradient[: sizes[index]] += importance[index] * (along.T @ x)
    return losses, gradient
