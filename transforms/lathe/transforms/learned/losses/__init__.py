"""Losses of GeoPres, with gradients in closed form.

To add a loss, write it in a new file and add a line to `LOSSES`.
"""

from functools import partial

from lathe.transforms.learned.losses.cosine_losses import (
    angular_loss,
    blended_loss,
    compute_starting_losses,
    spearman_loss,
)
from lathe.transforms.learned.losses.loss import Loss, LossAndGradient, LossKind, LossSetup, prefix_losses
from lathe.transforms.learned.losses.positional import positional_loss

__all__ = [
    "LOSSES",
    "Loss",
    "LossAndGradient",
    "LossKind",
    "LossSetup",
    "angular_loss",
    "blended_loss",
    "compute_starting_losses",
    "positional_loss",
    "prefix_losses",
    "spearman_loss",
]

LOSSES = {
    "blend": LossKind(
        lambda setup: partial(blended_loss, starts=compute_starting_losses(setup.batch, setup.unit_outputs())),
        relative=True,
    ),
    # Unit outputs lose the scale of the map, so the best one is found; outputs as they come have c = 1.
    "positional": LossKind(lambda setup: partial(positional_loss, scaled=setup.normalized), of_unit_rows=False),
    "angular": LossKind(lambda _: angular_loss),
    "spearman": LossKind(lambda setup: partial(spearman_loss, strength=setup.rank_strength)),
}
"""Losses of GeoPres by name; `set_up` of each builds the loss from a `LossSetup`."""
