"""Settings of an experiment, as a user writes them in YAML.

sources: [{folder: data/finance}]
targets: []              # chosen by the paper's protocol
rows: [100, 500]
seeds: [0, 1, 2]
learning_rates: [2e-5, 1e-4]
loss_weights: [0.5, 2]   # of REZE, besides its default: Figure 2
centers: [mean]          # besides the default: Table 3
training: {max_length: 128}
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from lathe.training.finetuning.job import DataSettings, Overlap, TargetSettings
from lathe.training.finetuning.regularizers.registry import REGULARIZED
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.settings import Count, NotNegative, Positive, Seed

METHODS = ("none", "ft", "pft", "pft_whitening", "pft_flow", *REGULARIZED)
"""Names of all methods that can be compared, which is the default selection."""
if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[METHODS]  # which pydantic checks, and mypy cannot read


class ExperimentSettings(DataSettings):
    """Settings of an experiment: what is compared, and on which data.

    Attributes:
        overlap: what to do with pairs that share a text with the target's test, as in a job; dropped by default.
        targets: data sets that are held out, one at a time; chosen by the protocol if empty.
        min_rows: number of rows that a target's training or test split must exceed (Section 4.1.1: 1,000).
        targets_per_task: maximum number of targets per task that the protocol chooses.
        methods: methods to compare.
        rows: numbers n of the target's training rows for fine-tuning.
        seeds: seeds of the order of the pairs, of dropout and of the sample of the target's rows.
        learning_rates: learning rates, each used for both stages.
        loss_weights: additional loss weights, for REZE and for distillation.
        centers: additional centres, for REZE.
        variants: additional conditions by name; each starts from the paper's defaults, not from `regularizer`.
        limit: maximum number of rows, queries or documents of the target's test, always the same ones; None for all.
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
    def require_distinct(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values unchanged if they are distinct.

        Raises:
            ValueError: if a value occurs twice, because its results would count twice.
        """
        if len(set(value)) < len(value):
            raise ValueError("each value may stand once")
        return value

    @field_validator("variants")
    @classmethod
    def require_usable_names(cls, value: dict[str, RegularizerSettings]) -> dict[str, RegularizerSettings]:
        """Return the variants unchanged if no name is that of a method or sweep, and each can be part of a file name.

        Raises:
            ValueError: if a name is that of a method or a sweep, or contains "weight" or "/".
        """
        for name in value:
            if name in METHODS or "weight" in name or name in ("reze, median", "reze, mean") or "/" in name:
                raise ValueError(f"a variant cannot be called {name!r}")
        return value
