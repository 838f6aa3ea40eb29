"""Evaluation during training: the best step is kept, and training stops early if the metric no longer improves."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.finetuning.callbacks import PREFIX, TrainingLog
from training.finetuning.evaluators import Development, Encode
from training.finetuning.loss import NonFiniteLossError
from transforms.progress import Progress


class Measures(TrainerCallback):
    """Trainer callback that evaluates the model at intervals, and has the best step saved as a checkpoint that is kept.

    The best step is part of the trainer's state, which is stored with each checkpoint, so a resumed run knows it.

    Args:
        log: training log, which also holds the losses.
        development: what to evaluate on, how often, and when to stop; the first process of torchrun evaluates for all.
        encode: encodes texts with the model being trained.
        on_progress: called with progress in [0, 1] and a message.
    """

    def __init__(self, log: TrainingLog, development: Development, encode: Encode, on_progress: Progress) -> None:
        self.log, self.development, self.encode = log, development, encode
        self.settings, self.metric, self.on_progress = development.settings, development.metric, on_progress

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluate the base model, to compare with, unless the training resumes; step 0 is never kept as the best."""
        if state.global_step == 0:
            self.measured(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Evaluate at the interval and after the last step; have a new best saved, and stop when patience runs out."""
        if state.global_step % self.settings.every and state.global_step < state.max_steps:
            return
        value = self.measured(state)
        if state.best_metric is None or value > state.best_metric:
            state.best_metric, state.best_global_step = value, state.global_step
            state.best_model_checkpoint = str(Path(str(args.output_dir)) / f"{PREFIX}{state.global_step}")
            control.should_save = True
        patience = self.settings.patience
        waited = (state.global_step - (state.best_global_step or 0)) / self.settings.every
        if patience is not None and waited >= patience:
            control.should_training_stop = True

    def measured(self, state: TrainerState) -> float:
        """Evaluate the model and return the metric, the same in all processes; log the metric and report progress.

        Raises:
            NonFiniteLossError: if the metric is NaN.
        """
        found = [self.development.measure(self.encode) if state.is_world_process_zero else 0.0]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(found)
        value = found[0]
        if value != value:
            raise NonFiniteLossError(f"{self.metric} is not a number")
        if state.is_world_process_zero:
            line = {"step": state.global_step, "steps": state.max_steps, "metric": self.metric, "measured": value}
            self.log.append([line])
            told = f"step {state.global_step:,} of {state.max_steps:,}, {self.metric} {value:.4f}"
            self.on_progress(state.global_step / max(state.max_steps, 1), told)
        return value
