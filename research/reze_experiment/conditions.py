"""Conditions of the experiment: what is done to the encoder before the fine-tuning that all methods share."""

from dataclasses import dataclass, field
from typing import Any

from lathe.training.finetuning.regularizers.registry import REGULARIZED, create_regularizer
from lathe.training.finetuning.regularizers.regularizer import NoRegularizer, Regularizer, RegularizerSettings
from research.reze_experiment.settings import ExperimentSettings

POSTPROCESSED = ("pft_whitening", "pft_flow")
"""Methods fitted after the fine-tuning, on the target's rows through the final encoder of plain pre-finetuning."""


@dataclass(frozen=True)
class Condition:
    """Condition of the experiment: one way of pre-finetuning, or none.

    Attributes:
        method: name of the condition in the results.
        pretrains: whether the encoder is pre-finetuned at all.
        regularizer: regularizer of the pre-finetuning, not prepared yet.
        postprocessing: methods that are also fitted on the fine-tuned encoder.
    """

    method: str
    pretrains: bool
    regularizer: Regularizer = field(default_factory=NoRegularizer)
    postprocessing: tuple[str, ...] = ()

    def cells(self, rows: tuple[int, ...], untrained: bool) -> list[tuple[str, int]]:
        """Return the results that this condition yields, as (method, fine-tuning rows).

        0 rows is before fine-tuning.

        Args:
            rows: numbers of fine-tuning rows.
            untrained: whether the base model itself is scored too, as ("none", 0); only for a condition without
                pre-finetuning.
        """
        if not self.pretrains:
            return [("none", 0)] * untrained + [(self.method, n) for n in rows if self.method != "none"]
        return [(self.method, 0)] + [(method, n) for n in rows for method in (self.method, *self.postprocessing)]


def build_conditions(settings: ExperimentSettings) -> list[Condition]:
    """Build the conditions for the requested methods.

    A condition is one way of pre-finetuning the encoder, or none. `none` and `ft` share a condition, as do `pft` and
    all methods that post-process it. Each regularized method is followed by its sweep over loss weights, `reze` by
    those over centres and variants; values that equal the main condition's are skipped.
    """
    methods, base = settings.methods, settings.regularizer
    found = [Condition("ft" if "ft" in methods else "none", False)] if {"none", "ft"} & set(methods) else []
    after = tuple(method for method in POSTPROCESSED if method in methods)
    weights = [weight for weight in settings.loss_weights if weight != base.loss_weight]
    if "pft" in methods or after:
        found.append(Condition("pft", True, postprocessing=after))
    for method in (method for method in REGULARIZED if method in methods):
        found.append(Condition(method, True, create_regularizer(method, base)))
        found += [
            Condition(
                f"{method}, weight {weight:g}",
                True,
                create_regularizer(method, _replace_settings(base, loss_weight=weight)),
            )
            for weight in weights
        ]
    if "reze" in methods:
        centers = {f"reze, {center}": _replace_settings(base, center=center) for center in settings.centers}
        varied = {name: one for name, one in centers.items() if one.center != base.center} | settings.variants
        found += [Condition(name, True, create_regularizer("reze", one)) for name, one in varied.items()]
    return found


def _replace_settings(settings: RegularizerSettings, **values: Any) -> RegularizerSettings:
    """Return a copy of the settings with some values replaced.

    The new values are not validated.
    """
    return settings.model_copy(update=values)
