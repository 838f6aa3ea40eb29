"""What is done to the encoder before the fine-tuning that all methods share."""

from dataclasses import dataclass
from typing import Any

from training.finetuning.job import RegularizerSettings, distillation
from training.research.reze_experiment.settings import ExperimentSettings

POSTPROCESSED = ("pft_whitening", "pft_flow")
"""Methods fitted afterwards, on the target's rows through the final encoder of plain pre-finetuning."""


@dataclass(frozen=True)
class Arm:
    """A pre-finetuning.

    Attributes:
        method: what its results are called.
        pretrains: whether there is any.
        regularizer: None for plain InfoNCE.
        postprocessing: methods that are fitted on top.
    """

    method: str
    pretrains: bool
    regularizer: RegularizerSettings | None = None
    postprocessing: tuple[str, ...] = ()

    def cells(self, rows: tuple[int, ...], untrained: bool) -> list[tuple[str, int]]:
        """The results it gives, as methods with the rows of the fine-tuning; 0 is before it."""
        if not self.pretrains:
            return [("none", 0)] * untrained + [(self.method, n) for n in rows if self.method != "none"]
        return [(self.method, 0)] + [(method, n) for n in rows for method in (self.method, *self.postprocessing)]


def arms(settings: ExperimentSettings) -> list[Arm]:
    """Those of the methods asked for; sweeps leave out what the first arm has already."""
    methods, base = settings.methods, settings.regularizer
    found = [Arm("ft" if "ft" in methods else "none", False)] if {"none", "ft"} & set(methods) else []
    after = tuple(method for method in POSTPROCESSED if method in methods)
    weights = [weight for weight in settings.loss_weights if weight != base.loss_weight]
    if "pft" in methods or after:
        found.append(Arm("pft", True, None, after))
    if "distill" in methods:
        found.append(Arm("distill", True, distillation(base)))
        found += [Arm(f"distill, weight {w:g}", True, distillation(changed(base, loss_weight=w))) for w in weights]
    if "reze" in methods:
        found.append(Arm("reze", True, base))
        found += [Arm(f"reze, weight {w:g}", True, changed(base, loss_weight=w)) for w in weights]
        centers = [center for center in settings.centers if center != base.center]
        found += [Arm(f"reze, {center}", True, changed(base, center=center)) for center in centers]
        found += [Arm(name, True, regularizer) for name, regularizer in settings.variants.items()]
    return found


def changed(settings: RegularizerSettings, **values: Any) -> RegularizerSettings:
    """Settings with some values in place of others."""
    return settings.model_copy(update=values)
