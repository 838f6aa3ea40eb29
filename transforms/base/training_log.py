"""How a transform is trained in steps, and how a training went."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

MIN_IMPROVEMENT = 0.01
"""Share of all earlier improvement that the last evaluation must add for a training to count as unfinished."""


@dataclass(frozen=True)
class TrainingConfig:
    """How to train: AdamW, a linear warm-up, then a linear decay of the learning rate to 0.

    Attributes:
        steps: maximum number of batches.
        batch: rows of a batch, drawn uniformly at random.
        learning_rate: the highest.
        weight_decay: of AdamW.
        warmup: share of the steps.
        betas: of AdamW.
        heldout: maximum number of rows that are never trained on and decide when to stop; 0 for none.
        check_every: steps between two evaluations on those rows.
        patience: evaluations without a lower loss before the training stops.
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

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warm = int(self.warmup * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * (self.steps - step) / max(1, self.steps - warm)

    def override(self, steps: int | None, batch: int | None, learning_rate: float | None) -> "TrainingConfig":
        """Return the config with the given values; None keeps a value."""
        given: dict[str, Any] = {"steps": steps, "batch": batch, "learning_rate": learning_rate}
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass
class TrainingLog:
    """What happened in a training.

    Attributes:
        config: as it was followed.
        steps: number of steps taken.
        loss: of the last batch, in the transform's own units.
        heldout_losses: at every evaluation, in order; the parameters of the lowest are the ones that are kept.
        stopped_early: whether patience ran out.
        diverged: whether a loss was not finite, and the best parameters before it were kept.
    """

    config: TrainingConfig
    steps: int = 0
    loss: float = float("nan")
    heldout_losses: list[float] = field(default_factory=list)
    stopped_early: bool = False
    diverged: bool = False

    @property
    def still_falling(self) -> bool:
        """Whether the last evaluation improved the loss by over a hundredth of what all evaluations before it did.

        Some improvement there almost always is, because the learning rate decays to 0.
        """
        if len(self.heldout_losses) < 3 or not np.isfinite(self.heldout_losses).all():
            return False
        first, *_, before, last = self.heldout_losses
        return before - last > MIN_IMPROVEMENT * (first - before)

    def warnings(self, kind: str) -> list[str]:
        """Return what makes the trained transform of a kind less reliable, as sentences."""
        if self.diverged:
            return [f"the training of {kind} diverged after {self.steps} steps; the best map before that is kept"]
        if self.still_falling:
            return [f"the held-out loss of {kind} was still falling after {self.steps} steps; train it for longer"]
        return []

    def as_json(self) -> dict[str, Any]:
        """Return the log as a JSON object, with null for numbers that are not finite."""
        losses = [loss if np.isfinite(loss) else None for loss in (*self.heldout_losses, self.loss)]
        fields = asdict(self)
        config = fields.pop("config")
        return {"recipe": config} | fields | {"heldout_losses": losses[:-1], "loss": losses[-1]}
