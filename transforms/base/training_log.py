"""How a transform is trained in steps, and how that went."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Recipe:
    """How to descend: AdamW, a linear warm-up, then a linear fall of the learning rate to 0.

    Attributes:
        steps: batches at most.
        batch: rows of each, drawn uniformly at random.
        learning_rate: at its highest.
        weight_decay: of AdamW.
        warmup: share of the steps.
        betas: of AdamW.
        heldout: rows never trained on, at most, that say when to stop; 0 for none.
        check_every: steps between two looks at them.
        patience: looks without a better loss before it stops.
    """

    steps: int
    batch: int
    learning_rate: float
    weight_decay: float = 0.0
    warmup: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    heldout: int = 0
    check_every: int = 0
    patience: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm = int(self.warmup * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * (self.steps - step) / max(1, self.steps - warm)


PAPER = Recipe(
    steps=0,  # so many as epochs have
    batch=20_000,
    learning_rate=1e-2,
    weight_decay=0.1,
    warmup=0.1,
    heldout=10_000,
    patience=3,
)
"""The GeoPres paper, section 4.2, for its map and its autoencoder; without what depends on the rows."""

PAPER_EPOCHS = 10
LEAST_BETWEEN_LOOKS = 20
"""Steps; on 10,000 rows, a look at every second one ends training after 18: a recall@10 of .37 instead of .58."""


def changed(recipe: Recipe, steps: int | None, batch: int | None, learning_rate: float | None) -> Recipe:
    """A recipe with what was asked for otherwise; None leaves it as it is."""
    asked: dict[str, Any] = {"steps": steps, "batch": batch, "learning_rate": learning_rate}
    return replace(recipe, **{name: value for name, value in asked.items() if value is not None})


def paper_recipe(rows: int, steps: int | None, batch: int | None, learning_rate: float | None) -> Recipe:
    """The paper's recipe for so many rows: ten epochs unless `steps` says else, a look after each.

    The paper's epochs have 500 steps. With few rows they have one or two, and the loss swings so
    much from one to the next that patience would end at the start; so looks are not closer than
    `LEAST_BETWEEN_LOOKS`.
    """
    recipe = changed(PAPER, steps, batch, learning_rate)
    epoch = max(1, rows // recipe.batch)
    steps = PAPER_EPOCHS * epoch if steps is None else steps
    return replace(recipe, steps=steps, check_every=max(epoch, LEAST_BETWEEN_LOOKS))


STILL_FALLING = 0.01


@dataclass
class Record:
    """What happened in training.

    Attributes:
        recipe: as it was followed.
        steps: taken.
        loss: of the last batch, in the transform's own units.
        heldout_losses: at every look, in order; the best one's parameters are those that are kept.
        stopped_early: whether patience ran out.
        diverged: whether a loss was not finite, and the best parameters before were kept.
    """

    recipe: Recipe
    steps: int = 0
    loss: float = float("nan")
    heldout_losses: list[float] = field(default_factory=list)
    stopped_early: bool = False
    diverged: bool = False

    @property
    def still_falling(self) -> bool:
        """Whether the last look at held-out rows gained more than a hundredth of what all before it did.

        Some gain there almost always is: the learning rate falls to 0.
        """
        if len(self.heldout_losses) < 3 or not np.isfinite(self.heldout_losses).all():
            return False
        first, *_, before, last = self.heldout_losses
        return before - last > STILL_FALLING * (first - before)

    def as_json(self) -> dict[str, Any]:
        """As a JSON object; what is not finite is null."""
        losses = [loss if np.isfinite(loss) else None for loss in (*self.heldout_losses, self.loss)]
        return asdict(self) | {"heldout_losses": losses[:-1], "loss": losses[-1]}
