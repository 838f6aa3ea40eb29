"""Types of GeoPres losses, the registry's entry, and the losses of all prefixes of a linear map."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lathe.transforms.statistics import unit_rows

LossAndGradient = tuple[float, Tensor]
"""Value of a loss, and its gradient with respect to the outputs `(m, p)`."""

Loss = Callable[[Tensor, Sequence[Tensor]], list[LossAndGradient]]
"""Function of a batch `(m, d)` and a list of its outputs, `(m, p)` each, that returns loss and gradient of each."""


@dataclass(frozen=True)
class LossSetup:
    """Data and settings from which a loss is built before the first training step.

    Attributes:
        batch: first batch, `(m, d)`.
        weight: starting weight W, `(k, d)`.
        sizes: numbers p of leading outputs for which the map is trained.
        normalized: whether outputs are normalized to L2 norm 1 before the loss.
        rank_strength: regularization strength of soft ranks.
    """

    batch: Tensor
    weight: Tensor
    sizes: Sequence[int]
    normalized: bool
    rank_strength: float

    def unit_outputs(self) -> list[Tensor]:
        """Return the L2-normalized outputs x Wᵀ of the starting weight, cut to each of `sizes`, as tensors `(m, p)`."""
        y = self.batch @ self.weight.T
        return [unit_rows(y[:, :size]) for size in self.sizes]


@dataclass(frozen=True)
class LossKind:
    """Entry of the loss registry: a factory of the loss, and two properties of the loss.

    Attributes:
        set_up: builds the loss from a `LossSetup`.
        of_unit_rows: whether the loss is defined for unit vectors only.
        relative: whether the loss is already divided by its value at the start.
    """

    set_up: Callable[[LossSetup], Loss]
    of_unit_rows: bool = True
    relative: bool = False


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
    """Compute losses of the first p outputs of x Wᵀ, for each p in `sizes`, and the weighted gradient in W.

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
    for index, (loss_of_prefix, output_gradient) in enumerate(loss(x, outputs)):
        losses.append(loss_of_prefix)
        if normalized:  # normalizing removes the part of a gradient that points along an output
            z = outputs[index]
            output_gradient = (output_gradient - (output_gradient * z).sum(1, keepdim=True) * z) / lengths[index]
            output_gradient = output_gradient.masked_fill_(lengths[index] <= MIN_LENGTH, 0)
        gradient[: sizes[index]] += importance[index] * (output_gradient.T @ x)

    return losses, gradient
