"""Variants by name, and how they pre-finetune the encoder before the fine-tuning that all methods share."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lathe.training.finetuning.job import TrainingSettings
from lathe.training.finetuning.regularizers.reze import Reze
from lathe.training.finetuning.run import save_model
from lathe.training.finetuning.trainer import TrainingResult
from research.reze_experiment.conditions import Condition
from research.reze_experiment.settings import ExperimentSettings
from research.reze_experiment.unit import Work
from research.reze_variants.regularizers import Fading, ShrunkDirections, WithinSources, WithinSourcesDistillation

LARGE_BATCH = 64
"""Pairs of a step in which nearly every pair has others of its source beside it."""


@dataclass(frozen=True)
class Variant(Condition):
    """Way of pre-finetuning that Lathe does not have.

    The fine-tuning is that of all conditions.

    Attributes:
        slower: number by which the learning rate is divided.
        epochs: passes over the mixture.
        batch_size: pairs of a step, without copies of the same label; None for the experiment's.
        share: share of the pre-finetuned weights in the mean with the base model's; 1 takes them as they are.
    """

    slower: float = 1.0
    epochs: float = 1.0
    batch_size: int | None = None
    share: float = 1.0

    def change_training(self, settings: TrainingSettings) -> TrainingSettings:
        """Return the settings of the pre-finetuning, given those of the fine-tuning."""
        changed: dict[str, Any] = {"learning_rate": settings.learning_rate / self.slower, "epochs": self.epochs}
        if self.batch_size is not None:
            changed |= {"batch_size": self.batch_size, "mask_identical": True}
        return settings.model_copy(update=changed)


def build_variants(settings: ExperimentSettings) -> list[Variant]:
    """Build all variants, at the loss weight of the settings, ten times that, or without the regularizer."""
    base = settings.regularizer
    strong, weak = (base.model_copy(update={"loss_weight": factor * base.loss_weight}) for factor in (10, 0))
    return [
        Variant("shrunk directions", True, ShrunkDirections(base)),
        Variant("shrunk directions, strong", True, ShrunkDirections(strong)),
        Variant("fading", True, Fading(strong, settings.training.batch_size)),
        Variant("slow", True, Reze(base), slower=5, epochs=2),
        Variant("averaged", True, Reze(base), share=0.5),
        Variant("large batches", True, Reze(base), batch_size=LARGE_BATCH),
        Variant("within sources", True, WithinSources(base), batch_size=LARGE_BATCH),
        Variant("within sources, distillation", True, WithinSourcesDistillation(base), batch_size=LARGE_BATCH),
        Variant("within sources, plain", True, WithinSources(weak), batch_size=LARGE_BATCH),
        Variant("within sources, longer", True, WithinSources(base), batch_size=LARGE_BATCH, epochs=4),
        Variant("within sources, longer, plain", True, WithinSources(weak), batch_size=LARGE_BATCH, epochs=4),
    ]


class VariantWork(Work):
    """Execution of one unit, whose condition may be a variant."""

    def pretrain(self) -> tuple[Path | None, TrainingResult | None]:
        """Pre-finetune with the variant's training settings, and average the weights with the base model's."""
        unit, condition = self.unit, self.unit.condition
        if not isinstance(condition, Variant):
            return super().pretrain()
        self.unit = replace(unit, training=condition.change_training(unit.training))
        path, trained = super().pretrain()
        self.unit = unit
        if condition.share < 1:
            model = self.load_for_training(path)
            average_weights(model, self.load_for_training(None), condition.share)
            path = self.folder / "averaged"
            save_model(model, path)
        return path, trained


@torch.no_grad()
def average_weights(model: torch.nn.Module, base: torch.nn.Module, share: float) -> None:
    """Move the weights of a model towards its base's, in place.

    `share` of them stays.
    """
    for weights, others in zip(model.parameters(), base.parameters(), strict=True):
        weights.lerp_(others, 1 - share)
