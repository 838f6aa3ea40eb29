"""Progress of a training: a log line every few steps, and checkpoints that are marked when complete."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.finetuning.loss import Components
from training.journal import Journal
from transforms.files import replace_synced
from transforms.progress import Progress

WHOLE = "whole.json"
"""File that marks a checkpoint as complete; it holds the loss sums since the last log line, and the pairs of a step."""
PREFIX = "checkpoint-"
"""Prefix of the names of checkpoint folders, before the step; set by transformers."""
TrainingLog = Journal[dict[str, Any]]
"""Training log: an entry for each logged step, with its losses, and for each evaluation."""


class Reporter(TrainerCallback):
    """Trainer callback that writes losses to the training log and reports progress, in the first process of torchrun.

    Args:
        log: training log.
        components: running means of the parts of the loss.
        on_progress: called with progress in [0, 1] and a message.
    """

    def __init__(self, log: TrainingLog, components: Components, on_progress: Progress) -> None:
        self.log = log
        self.components = components
        self.on_progress = on_progress
        self.begun = time.monotonic()
        self.first = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Restore the loss sums of the checkpoint resumed from, and remove later lines from the training log."""
        self.begun, self.first = time.monotonic(), state.global_step
        whole = Path(str(args.output_dir)) / f"{PREFIX}{state.global_step}" / WHOLE
        if whole.is_file():
            self.components.restore(orjson.loads(whole.read_bytes()))
        if state.is_world_process_zero:
            self.log.replace([line for line in self.log.read() if line["step"] <= state.global_step])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Append step, mean losses and learning rate to the log, and report progress; do nothing without a loss."""
        if logs is None or "loss" not in logs:
            return
        self.components.share()
        losses = self.components.take()
        if not state.is_world_process_zero:
            return
        line: dict[str, Any] = {"step": state.global_step, "steps": state.max_steps} | losses
        line |= {name: logs.get(name) for name in ("epoch", "learning_rate", "grad_norm")}
        self.log.append([line])
        done = state.global_step - self.first
        left = (time.monotonic() - self.begun) / max(done, 1) * (state.max_steps - state.global_step)
        told = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        self.on_progress(
            state.global_step / state.max_steps,
            f"step {state.global_step:,} of {state.max_steps:,}, {told}, {left:.0f} s left",
        )


class Checkpoints(TrainerCallback):
    """Trainer callback that marks checkpoints as complete, and checks the model before each is saved.

    Args:
        components: running means of the parts of the loss, stored with the checkpoint.
        batch: number of pairs of a step over all processes, stored with the checkpoint.
        require_finite: function that raises if a weight or embedding of the model is not finite.
    """

    def __init__(self, components: Components, batch: int, require_finite: Callable[[], None]) -> None:
        self.components = components
        self.batch = batch
        self.require_finite = require_finite

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Check that the model is finite if a checkpoint is about to be saved."""
        if control.should_save:
            self.require_finite()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the file that marks the checkpoint of this step as complete."""
        self.components.share()
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / f"{PREFIX}{state.global_step}"
            replace_synced(folder / WHOLE, orjson.dumps(self.components.state() | {"batch": self.batch}))


def batch_of(checkpoint: Path) -> int:
    """Return the number of pairs of a step, over all processes, of the run that wrote a checkpoint."""
    return int(orjson.loads((checkpoint / WHOLE).read_bytes())["batch"])


def last_checkpoint(folder: Path) -> Path | None:
    """Return the folder of the last complete checkpoint, or None; delete later, incomplete ones of a killed run."""
    numbers = {path.name.removeprefix(PREFIX): path for path in folder.glob(f"{PREFIX}*")}
    for number in sorted((number for number in numbers if number.isdecimal()), key=int, reverse=True):
        path = numbers[number]
        if (path / WHOLE).is_file():
            return path
        shutil.rmtree(path, ignore_errors=True)
    return None
