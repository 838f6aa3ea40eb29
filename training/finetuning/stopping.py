"""Measures on the way: the best step is remembered, and a training that gets no better ends."""

from pathlib import Path
from typing import Any

import orjson
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.finetuning.development import Development, Encode
from training.finetuning.loss import NonFiniteLossError
from training.finetuning.progress import PREFIX
from transforms.progress import Progress


class Measures(TrainerCallback):
    """Measures the model every few steps, and sees to it that the best step has a checkpoint that stays.

    What the trainer keeps of its state with a checkpoint holds the best step, so that a run that is taken up again
    knows it.

    Args:
        path: of the lines, JSON each; those of losses stand there too.
        development: what is measured, how often, and when to stop; the first process of torchrun measures for all.
        encode: texts by the model as it is.
        on_progress: told the fraction and a sentence.
    """

    def __init__(self, path: Path, development: Development, encode: Encode, on_progress: Progress) -> None:
        self.path, self.development, self.encode = path, development, encode
        self.settings, self.metric, self.on_progress = development.settings, development.metric, on_progress

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """What the base model gives, to compare with; it is no step."""
        if state.global_step == 0:
            self.measured(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure where it is due."""
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
        """The value, the same in all processes, written down by the first.

        Raises:
            NonFiniteLossError: if it is not a number.
        """
        found = [self.development.measure(self.encode) if state.is_world_process_zero else 0.0]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(found)
        value = found[0]
        if value != value:
            raise NonFiniteLossError(f"{self.metric} is not a number")
        if state.is_world_process_zero:
            line = {"step": state.global_step, "steps": state.max_steps, "metric": self.metric, "measured": value}
            with self.path.open("ab") as file:
                file.write(orjson.dumps(line) + b"\n")
            told = f"step {state.global_step:,} of {state.max_steps:,}, {self.metric} {value:.4f}"
            self.on_progress(state.global_step / max(state.max_steps, 1), told)
        return value
