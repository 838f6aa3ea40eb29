"""An experiment as a user writes it.

sources: [{folder: data/finance}]
targets: []              # chosen by the paper's protocol
rows: [100, 500]
seeds: [0, 1, 2]
learning_rates: [2e-5, 1e-4]
loss_weights: [0.5, 2]   # of REZE, beside its own: Figure 2
centers: [mean]          # beside its own: Table 3
training: {max_length: 128}
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from training.finetuning.job import DataSettings, Overlap, RegularizerSettings, TargetSettings
from training.finetuning.values import Count, NotNegative, Positive, Seed

MethodName = Literal["none", "ft", "pft", "pft_whitening", "pft_flow", "distill", "reze"]
METHODS: tuple[MethodName, ...] = ("none", "ft", "pft", "pft_whitening", "pft_flow", "distill", "reze")


class ExperimentSettings(DataSettings):
    """What is compared on what.

    Attributes:
        overlap: as in a job; here pairs that share a text with the target's test are dropped unless it says otherwise.
        targets: data sets left out in turn; chosen by the protocol where none is named.
        min_rows: of a target's training or test split, more than so many (Section 4.1.1: 1,000).
        targets_per_task: at most, of those that the protocol chooses.
        methods: that are compared.
        rows: n, of the target's training rows that the fine-tuning gets.
        seeds: of the order of pairs, of dropout and of the target's rows.
        learning_rates: of both stages.
        loss_weights: further ones, of REZE and of distillation.
        centers: further ones of REZE.
        variants: further arms by name, each from the paper's defaults and not from `regularizer`.
        limit: rows, queries or documents of the target's test, the same each time.
    """

    overlap: Overlap = "drop"
    targets: tuple[TargetSettings, ...] = ()
    min_rows: Annotated[int, Field(ge=0)] = 1000
    targets_per_task: Count = 3
    methods: Annotated[tuple[MethodName, ...], Field(min_length=1)] = METHODS
    rows: tuple[Count, ...] = (100, 500, 1000)
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    learning_rates: Annotated[tuple[Positive, ...], Field(min_length=1)] = (2e-5, 1e-4)
    loss_weights: tuple[NotNegative, ...] = ()
    centers: tuple[Literal["median", "mean"], ...] = ()
    variants: dict[str, RegularizerSettings] = {}
    limit: Annotated[int, Field(ge=10)] | None = 1000

    @field_validator("methods", "rows", "seeds", "learning_rates", "loss_weights", "centers")
    @classmethod
    def each_once(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Refuse a value that stands twice: its results would count twice."""
        if len(set(value)) < len(value):
            raise ValueError("each value may stand once")
        return value

    @field_validator("variants")
    @classmethod
    def names_of_their_own(cls, value: dict[str, RegularizerSettings]) -> dict[str, RegularizerSettings]:
        """Refuse variants that are called as another arm, or as no file can be."""
        for name in value:
            if name in METHODS or "weight" in name or name in ("reze, median", "reze, mean") or "/" in name:
                raise ValueError(f"a variant cannot be called {name!r}")
        return value
