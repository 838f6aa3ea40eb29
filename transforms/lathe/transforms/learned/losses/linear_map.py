"""Losses of the outputs of a linear map, with the gradient backpropagated to the weight."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lathe.transforms.learned.losses.loss import Loss

MIN_LENGTH = 1e-6
"""L2 norm up to which an output gets zero gradient if outputs are normalized: its direction is rounding error."""


def prefix_losses(
    loss: Loss,
    x: Tensor,
    weight: Tensor,
    sizes: Sequence[int],
    importance: Sequence[float],
    normalized: bool = True,
) -> tuple[list[float], Tensor]:
    """Return the loss of the first p outputs x Wᵀ for each p in `sizes`, and the gradient of their weighted sum.

    Args:
        loss: computes the loss of each output, and its gradient with respect to the output.
        x: batch of rows, `(m, d)`.
        weight: W, `(k, d)`.
        sizes: numbers p of leading outputs, each at most k.
        importance: weight of each loss in the gradient.
        normalized: whether the p outputs of each row are normalized to L2 norm 1 before the loss.

    Returns:
        The losses, not weighted, and Σ importance_p · ∂L_p/∂W, `(k, d)`.
    """
    # The first p outputs are the first p columns, so one product serves all sizes.
    y = x @ weight.T
    outputs = [y[:, :size] for size in sizes]
    lengths = [z.norm(dim=1, keepdim=True).clamp_(min=MIN_LENGTH) for z in outputs] if normalized else []
    if normalized:
        outputs = [z / length for z, length in zip(outputs, lengths, strict=True)]
    gradient = torch.zeros_like(weight)
    losses = []
    for index, (value, output_gradient) in enumerate(loss(x, outputs)):
        losses.append(value)
        if normalized:  # normalizing removes the part of a gradient that points along an output
            z = outputs[index]
            output_gradient = (output_gradient - (output_gradient * z).sum(1, keepdim=True) * z) / lengths[index]
            output_gradient = output_gradient.masked_fill_(lengths[index] <= MIN_LENGTH, 0)
        gradient[: sizes[index]] += importance[index] * (output_gradient.T @ x)
    return losses, gradient
