"""Settings of the optional parts of a training: hard negatives, LoRA, evaluation during the training.

negatives: {model: all-MiniLM-L6-v2, num_negatives: 3, relative_margin: 0.05}
evaluate: {every: 20, patience: 3}
training: {lora: {rank: 8, target_modules: [query, value]}}
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lathe.training.settings import Cosine, Count, Fraction, NotNegative, Positive, Prompts, StrictSettings

HeldOutMetric = Literal["mrr", "accuracy"]
HELD_OUT_METRICS: tuple[HeldOutMetric, ...] = ("mrr", "accuracy")
"""Metrics of held-out pairs: mean reciprocal rank, and the share of anchors that retrieve a positive first."""


class NegativeSettings(StrictSettings):
    """Settings of hard-negative mining: documents near a query that do not answer it (FinMTEB, Section 4).

    Scores are cosines by the auxiliary encoder. Ranks count only documents that are not known positives of the query.

    Attributes:
        model: name of the auxiliary encoder, as in `encoder`; None for the default encoder.
        num_negatives: negatives to mine for each query.
        range_min: number of nearest documents to skip, because they may be unjudged answers.
        range_max: rank at which the search ends; by default ten documents for each negative.
        max_score: maximum score of a negative.
        absolute_margin: minimum difference between the lowest score of the query's positives and the score of a
            negative.
        relative_margin: the same difference as a share of the positive's score; by default NV-Retriever's 5 %.
        sampling: `top` takes the nearest remaining documents, `random` takes random documents.
        prompts: prompts put before queries and documents for the auxiliary encoder.
        allow_fewer: whether a source with too few documents gets fewer negatives instead of an error.
    """

    model: str | None = None
    num_negatives: Annotated[int, Field(ge=1, le=100)] = 3
    range_min: Annotated[int, Field(ge=0)] = 0
    range_max: Count | None = None
    max_score: Cosine | None = None
    absolute_margin: NotNegative | None = None
    relative_margin: Fraction | None = 0.05
    sampling: Literal["top", "random"] = "top"
    prompts: Prompts = Prompts()
    allow_fewer: bool = False

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.range_max is not None and self.range_max - self.range_min < self.num_negatives:
            raise ValueError(
                f"range_max {self.range_max} minus range_min {self.range_min} must be at least num_negatives, "
                f"{self.num_negatives}"
            )
        return self


class LoraSettings(StrictSettings):
    """Settings of low-rank adapters (Hu et al. 2021), which are merged into the weights after the training.

    Attributes:
        rank: rank of the adapter of each weight matrix.
        alpha: scale; the adapter's output is multiplied by alpha / rank.
        dropout: dropout rate of the adapter's input.
        target_modules: names of the layers that get adapters; None for peft's default for the architecture.
        keep_adapter: whether to write the adapters in addition to the merged model.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    keep_adapter: bool = False


class EvaluatorSettings(StrictSettings):
    """Settings of the evaluation during training. After the training, the model of the best step is kept.

    Attributes:
        every: evaluation interval in steps.
        patience: number of evaluations without a new best after which the training stops; None for never.
        metric: `mrr` or `accuracy` for held-out pairs, any of mteb's metrics for a data set; None for the default
            metric.
        rows: number of pairs to hold out of each source, at most a fifth of its pairs.
        folder: data set to evaluate on instead of held-out pairs; not the target.
        prompts: prompts put before the data set's texts.
        limit: maximum number of rows, queries or documents of the data set; None for all.
    """

    every: Count
    patience: Count | None = None
    metric: str | None = None
    rows: Count = 50
    folder: Path | None = None
    prompts: Prompts = Prompts()
    limit: Annotated[int, Field(ge=10)] | None = 500

    @model_validator(mode="after")
    def _check_metric(self) -> Self:
        if self.folder is None and self.metric not in (None, *HELD_OUT_METRICS):
            raise ValueError(f"metric of held-out pairs must be {' or '.join(HELD_OUT_METRICS)}, not {self.metric!r}")
        return self
