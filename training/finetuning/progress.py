"""How a training is told of and taken up again: a line of losses every few steps, checkpoints that are whole."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.finetuning.loss import Components
from transforms.files import replace_synced
from transforms.progress import Progress

WHOLE = "whole.json"
"""A file that a checkpoint gets when everything of it is written: the losses since the last line, pairs of a step."""
PREFIX = "checkpoint-"


class Reporter(TrainerCallback):
    """Writes the losses down and tells of them, on the first process.

    Args:
        path: of the lines, JSON each.
        components: where the loss leaves its parts.
        on_progress: told the fraction and a sentence.
    """

    def __init__(self, path: Path, components: Components, on_progress: Progress) -> None:
        self.path = path
        self.components = components
        self.on_progress = on_progress
        self.begun = time.monotonic()
        self.first = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Forget what came after the checkpoint that is gone on from."""
        self.begun, self.first = time.monotonic(), state.global_step
        whole = self.path.parent / f"{PREFIX}{state.global_step}" / WHOLE
        if whole.is_file():
            self.components.restore(orjson.loads(whole.read_bytes()))
        if state.is_world_process_zero:
            kept = [line for line in read_lines(self.path) if line["step"] <= state.global_step]
            self.path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in kept))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """A line, where the trainer logs a loss."""
        if logs is None or "loss" not in logs:
            return
        self.components.share()
        losses = self.components.take()
        if not state.is_world_process_zero:
            return
        line: dict[str, Any] = {"step": state.global_step, "steps": state.max_steps} | losses
        line |= {name: logs.get(name) for name in ("epoch", "learning_rate", "grad_norm")}
        with self.path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")
        done = state.global_step - self.first
        left = (time.monotonic() - self.begun) / max(done, 1) * (state.max_steps - state.global_step)
        told = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        self.on_progress(
            state.global_step / state.max_steps,
            f"step {state.global_step:,} of {state.max_steps:,}, {told}, {left:.0f} s left",
        )


class Checkpoints(TrainerCallback):
    """Marks checkpoints whole once they are; sees to it that the model in them is sound.

    Args:
        components: of the loss, kept with the checkpoint.
        batch: pairs of a step in all processes, kept likewise.
        require_finite: raises if the model is not sound.
    """

    def __init__(self, components: Components, batch: int, require_finite: Callable[[], None]) -> None:
        self.components = components
        self.batch = batch
        self.require_finite = require_finite

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Before anything is saved."""
        if control.should_save:
            self.require_finite()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Everything of this step is on disk."""
        self.components.share()
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / f"{PREFIX}{state.global_step}"
            replace_synced(folder / WHOLE, orjson.dumps(self.components.state() | {"batch": self.batch}))


def batch_of(checkpoint: Path) -> int:
    """Pairs of a step in all processes that made a checkpoint."""
    return int(orjson.loads((checkpoint / WHOLE).read_bytes())["batch"])


def last_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint; later ones, which a kill left half written, are removed."""
    numbers = {path.name.removeprefix(PREFIX): path for path in folder.glob(f"{PREFIX}*")}
    for number in sorted((number for number in numbers if number.isdecimal()), key=int, reverse=True):
        path = numbers[number]
        if (path / WHOLE).is_file():
            return path
        shutil.rmtree(path, ignore_errors=True)
    return None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines written so far; one that a kill cut off is left out."""
    lines = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            lines.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            break
    return lines
