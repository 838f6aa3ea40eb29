"""Losses of GeoPres, with gradients in closed form.

To add a loss, write it in a new file and add a line to `LOSSES`.
"""

from functools import partial

from lathe.transforms.learned.losses.cosine_losses import angular, blend, blend_starts, spearman
from lathe.transforms.learned.losses.loss import Loss, LossAndGradient, LossKind, LossSetup, prefix_losses
from lathe.transforms.learned.losses.positional import positional

__all__ = [
    "LOSSES",
    "Loss",
    "LossAndGradient",
    "LossKind",
    "LossSetup",
    "angular",
    "blend",
    "blend_starts",
    "positional",
    "prefix_losses",
    "spearman",
]

LOSSES = {
    "blend": LossKind(
        lambda setup: partial(blend, starts=blend_starts(setup.batch, setup.unit_outputs())), relative=True
    ),
    # Unit outputs lose the scale of the map, so the best one is found; outputs as they come have c = 1.
    "positional": LossKind(lambda setup: partial(positional, scaled=setup.normalized), of_unit_rows=False),
    "angular": LossKind(lambda _: angular),
    "spearman": LossKind(lambda setup: partial(spearman, strength=setup.rank_strength)),
}
"""Losses of GeoPres by name; `set_up` of each builds the loss from a `LossSetup`."""
