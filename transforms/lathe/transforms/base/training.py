"""What a training by gradient descent has next to its map: hyperparameters, a training log, and checkpoints.

Checkpoints are training states saved on disk, from which a killed fit is resumed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lathe.transforms.files import replace_synced

MIN_IMPROVEMENT = 0.01
"""If the last evaluation lowers the loss by more than this share of the decrease before it, training was too short."""


@dataclass(frozen=True)
class TrainingConfig:
    """Hyperparameters of a training with AdamW: linear warm-up, then linear decay of the learning rate to 0.

    Attributes:
        steps: maximum number of training steps, one batch each.
        batch: batch size; rows are drawn uniformly at random.
        learning_rate: peak learning rate.
        weight_decay: AdamW's weight decay.
        warmup: fraction of the steps spent on warm-up.
        betas: AdamW's betas.
        heldout: maximum number of rows held out from training to decide when to stop; 0 for none.
        check_every: number of steps between two evaluations on the held-out rows.
        patience: number of evaluations without a lower loss after which the training stops.
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
        """Return the learning rate of a training step, counted from 0.

        The rate rises linearly to its peak during the warm-up, then falls linearly to 0.
        """
        warm = int(self.warmup * self.steps)
        if step < warm:
            # `step + 1`, because a first step at rate 0 would change nothing.
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * (self.steps - step) / max(1, self.steps - warm)

    def override(self, steps: int | None, batch: int | None, learning_rate: float | None) -> "TrainingConfig":
        """Return a copy of the config in which the arguments that are not None replace the values of these names."""
        overrides: dict[str, Any] = {"steps": steps, "batch": batch, "learning_rate": learning_rate}
        return replace(self, **{name: value for name, value in overrides.items() if value is not None})


@dataclass
class TrainingLog:
    """How a training went: steps taken, losses, and why it stopped.

    Attributes:
        config: hyperparameters that were used.
        steps: number of steps taken.
        loss: training loss of the last batch, in the transform's own units.
        heldout_losses: held-out loss at every evaluation, in order; the fit ends with the parameters of the lowest.
        stopped_early: whether patience ran out.
        diverged: whether a loss became NaN or inf; the fit then ends with the best parameters before.
    """

    config: TrainingConfig
    steps: int = 0
    loss: float = float("nan")
    heldout_losses: list[float] = field(default_factory=list)
    stopped_early: bool = False
    diverged: bool = False

    @property
    def still_falling(self) -> bool:
        """Whether the last evaluation lowered the held-out loss by more than 1% of the total decrease before it.

        False with fewer than three evaluations, or if a loss is NaN or inf. Some decrease is normal even at the end,
        because the learning rate decays to 0.
        """
        if len(self.heldout_losses) < 3 or not np.isfinite(self.heldout_losses).all():
            return False
        # Relative to the decrease so far, because every transform has its own units of loss.
        first, *_, before, last = self.heldout_losses
        return before - last > MIN_IMPROVEMENT * (first - before)

    def warnings(self, kind: str) -> list[str]:
        """Return a list with one warning if the training diverged or the held-out loss was still falling, else [].

        Args:
            kind: kind of the trained transform, for the sentence.
        """
        if self.diverged:
            return [f"the training of {kind} diverged after {self.steps} steps; the best map before that is kept"]
        if self.still_falling:
            return [f"the held-out loss of {kind} was still falling after {self.steps} steps; train it for longer"]
        return []

    def as_json(self) -> dict[str, Any]:
        """Return the training log as a dict that can be serialized as JSON.

        The config is under `recipe`, and losses that are NaN or inf are None.
        """
        # JSON has no NaN and inf; `json.dumps` writes words for them that other parsers reject.
        losses = [loss if np.isfinite(loss) else None for loss in (*self.heldout_losses, self.loss)]
        fields = asdict(self)
        config = fields.pop("config")
        return {"recipe": config} | fields | {"heldout_losses": losses[:-1], "loss": losses[-1]}


WRITE_INTERVAL = 10.0
"""Default minimum number of seconds between two writes of a checkpoint, and so the work that a kill can lose."""

MAX_WRITING_SHARE = 0.1
"""Default maximum fraction of the training time spent on writing checkpoints; lengthens the pauses on slow disks."""


@dataclass(frozen=True)
class Checkpoint:
    """The file of a training state (named tensors), the key of the fit that wrote it, and how often it is written.

    Attributes:
        path: path of the file; its folder must exist.
        key: identifies the fit: `load` ignores a file with another key. Each fit sets its own.
        seconds: minimum number of seconds between two writes.
        share: maximum fraction of the training time spent on writing.
    """

    path: Path
    key: str = ""
    seconds: float = WRITE_INTERVAL
    share: float = MAX_WRITING_SHARE

    @classmethod
    def at(cls, place: "CheckpointPath") -> "Checkpoint":
        """Return `place` itself if it is a `Checkpoint`, else a checkpoint at this path with default settings."""
        return place if isinstance(place, Checkpoint) else cls(Path(place))

    def load(self) -> dict[str, Tensor] | None:
        """Return the tensors of the checkpoint's file by name, None if it is missing, damaged or of another key."""
        try:
            with safe_open(self.path, "pt") as file:
                if (file.metadata() or {}).get("key") != self.key:
                    return None
                return {name: file.get_tensor(name) for name in file.keys()}
        # A file that cannot be read costs only the work it held: the fit starts over, as without a checkpoint.
        except (OSError, SafetensorError):
            return None

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors and the key to the checkpoint's file, atomically.

        They replace what was saved before.

        Raises:
            OSError: if the file cannot be written.
        """
        # safetensors rejects tensors that are not contiguous.
        payload = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, {"key": self.key})
        replace_synced(self.path, payload)


CheckpointPath = str | PathLike[str] | Checkpoint
"""Where to save a training state: a path, or a `Checkpoint` that also sets how often the state is written."""
