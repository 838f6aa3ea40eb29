"""Callbacks of the trainer, which write the training log, mark complete checkpoints, and evaluate during training."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lathe.training.finetuning.evaluators import Encode, Evaluator
from lathe.training.finetuning.loss import LossComponents, NonFiniteLossError
from lathe.training.journal import Journal
from lathe.transforms.files import replace_synced
from lathe.transforms.progress import Progress

_COMPLETE = "whole.json"
"""File that marks a checkpoint as complete. It holds the loss sums since the last log line, and the step's number of
pairs."""
CHECKPOINT_PREFIX = "checkpoint-"
"""Prefix of the names of checkpoint folders, before the step; set by transformers."""
TrainingLog = Journal[dict[str, Any]]
"""Training log: an entry for each logged step, with its losses, and for each evaluation."""


class LossCallback(TrainerCallback):
    """Trainer callback that writes losses to the training log and reports progress.

    Under torchrun, only the first process writes and reports.

    Args:
        log: training log.
        components: running means of the parts of the loss.
        on_progress: called with progress in [0, 1] and a message.
    """

    def __init__(self, log: TrainingLog, components: LossComponents, on_progress: Progress) -> None:
        self.log = log
        self.components = components
        self.on_progress = on_progress
        self.begun = time.monotonic()
        self.first = 0
        self.losses = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock, and remove the training log's lines of steps that will be done again.

        If the training is resumed, the loss sums are restored from the checkpoint.
        """
        self.begun, self.first = time.monotonic(), state.global_step
        complete = Path(str(args.output_dir)) / f"{CHECKPOINT_PREFIX}{state.global_step}" / _COMPLETE
        if complete.is_file():
            self.components.restore(orjson.loads(complete.read_bytes()))
        if state.is_world_process_zero:
            # Steps after the checkpoint are done again, and would be in the log twice.
            self.log.replace([line for line in self.log.read() if line["step"] <= state.global_step])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Report the step, the number of steps and the last logged losses as progress, in the first process.

        Losses are logged only after several steps, and a step of a large model takes long.
        """
        if state.is_world_process_zero:
            message = f"step {state.global_step:,} of {state.max_steps:,}"
            self.on_progress(state.global_step / state.max_steps, message + self.losses)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Average losses over processes, reset the sums, and log a line in the first process, if `logs` has a loss.

        The line has the step, mean losses since the last line, epoch, learning rate and gradient norm. The loss sums
        are averaged over all processes and then reset.
        """
        if logs is None or "loss" not in logs:
            return

        # Averaging needs every process; only the first process writes and reports.
        self.components.average_over_processes()
        losses = self.components.pop_means()
        if not state.is_world_process_zero:
            return

        line: dict[str, Any] = {"step": state.global_step, "steps": state.max_steps} | losses
        line |= {name: logs.get(name) for name in ("epoch", "learning_rate", "grad_norm")}
        self.log.append([line])
        done = state.global_step - self.first
        seconds_left = (time.monotonic() - self.begun) / max(done, 1) * (state.max_steps - state.global_step)
        self.losses = "".join(f", {name} {loss:.3f}" for name, loss in losses.items()) + f", {seconds_left:.0f} s left"
        self.on_progress(
            state.global_step / state.max_steps, f"step {state.global_step:,} of {state.max_steps:,}{self.losses}"
        )


class CheckpointCallback(TrainerCallback):
    """Trainer callback that checks the model before each checkpoint is saved, and marks checkpoints as complete.

    Args:
        components: running means of the parts of the loss, stored with the checkpoint.
        batch: number of pairs of a step over all processes, stored with the checkpoint.
        check_finite: function that raises if a weight or embedding of the model is not finite.
    """

    def __init__(self, components: LossComponents, batch: int, check_finite: Callable[[], None]) -> None:
        self.components = components
        self.batch = batch
        self.check_finite = check_finite

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Raise `NonFiniteLossError` if a checkpoint is to be saved at this step and the model is not finite.

        Raises:
            NonFiniteLossError: if a weight or an embedding is not finite.
        """
        if control.should_save:
            self.check_finite()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the file that marks the checkpoint of this step as complete.

        The file holds the loss sums, which are averaged over all processes first, and the number of pairs of a step.
        """
        self.components.average_over_processes()
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / f"{CHECKPOINT_PREFIX}{state.global_step}"
            replace_synced(folder / _COMPLETE, orjson.dumps(self.components.state() | {"batch": self.batch}))


class EvaluationCallback(TrainerCallback):
    """Trainer callback that evaluates the model at intervals, and requests a checkpoint of each new best step.

    The best step is part of the trainer's state, which is stored with each checkpoint, so a resumed run knows it.

    Args:
        log: training log, which also holds the losses.
        evaluator: data, interval and patience of the evaluation; under torchrun the first process evaluates for all.
        encode: encodes texts with the model being trained.
        on_progress: called with progress in [0, 1] and a message.
    """

    def __init__(self, log: TrainingLog, evaluator: Evaluator, encode: Encode, on_progress: Progress) -> None:
        self.log, self.evaluator, self.encode = log, evaluator, encode
        self.settings, self.metric, self.on_progress = evaluator.settings, evaluator.metric, on_progress

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluate the base model before the first step, and log the metric for comparison.

        A resumed training skips this. The base model is never the best step.
        """
        if state.global_step == 0:
            self._evaluate_and_log(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluate the model at each evaluation interval and at the last step, and stop training without improvement.

        If the metric is the best so far, a checkpoint is requested. The training stops if no evaluation was better for
        `patience` intervals.
        """
        if state.global_step % self.settings.every and state.global_step < state.max_steps:
            return

        metric = self._evaluate_and_log(state)
        if state.best_metric is None or metric > state.best_metric:
            state.best_metric, state.best_global_step = metric, state.global_step
            # transformers deletes old checkpoints over `save_total_limit`, but not this one.
            state.best_model_checkpoint = str(Path(str(args.output_dir)) / f"{CHECKPOINT_PREFIX}{state.global_step}")
            control.should_save = True

        patience = self.settings.patience
        waited = (state.global_step - (state.best_global_step or 0)) / self.settings.every
        if patience is not None and waited >= patience:
            control.should_training_stop = True

    def _evaluate_and_log(self, state: TrainerState) -> float:
        """Evaluate the model in the first process, log and report the metric, and return it everywhere. NaN raises.

        Raises:
            NonFiniteLossError: if the metric is NaN.
        """
        # Only the first process evaluates; the others receive its metric, so that all stop at the same step.
        metrics = [self.evaluator.measure(self.encode) if state.is_world_process_zero else 0.0]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(metrics)

        value = metrics[0]
        if value != value:
            raise NonFiniteLossError(f"the metric {self.metric} became NaN")

        if state.is_world_process_zero:
            line = {"step": state.global_step, "steps": state.max_steps, "metric": self.metric, "measured": value}
            self.log.append([line])
            message = f"step {state.global_step:,} of {state.max_steps:,}, {self.metric} {value:.4f}"
            self.on_progress(state.global_step / max(state.max_steps, 1), message)

        return value


def read_batch_size(checkpoint: Path) -> int:
    """Read the number of pairs of a step, over all processes, from a complete checkpoint."""
    return int(orjson.loads((checkpoint / _COMPLETE).read_bytes())["batch"])


def find_last_checkpoint(folder: Path) -> Path | None:
    """Find the last complete checkpoint in a folder, or None, and delete incomplete checkpoints after it.

    A killed run leaves an incomplete checkpoint.
    """
    numbers = {path.name.removeprefix(CHECKPOINT_PREFIX): path for path in folder.glob(f"{CHECKPOINT_PREFIX}*")}
    for number in sorted((number for number in numbers if number.isdecimal()), key=int, reverse=True):
        path = numbers[number]
        if (path / _COMPLETE).is_file():
            return path
        shutil.rmtree(path, ignore_errors=True)
    return None
