"""The settings of what a training may have beside pairs: hard negatives, LoRA, a measure on the way, one afterwards.

negatives: {model: all-MiniLM-L6-v2, num_negatives: 3, relative_margin: 0.05}
evaluate: {every: 20, patience: 3}
evaluate_after: {domain: data/finance, general: data/general}
training: {lora: {rank: 8, target_modules: [query, value]}}
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from training.finetuning.values import Cosine, Count, Fraction, NotNegative, Positive, Prompts, Settings

HeldOutMetric = Literal["mrr", "accuracy"]
HELD_OUT_METRICS: tuple[HeldOutMetric, ...] = ("mrr", "accuracy")


class NegativeSettings(Settings):
    """How hard negatives are mined: documents near a query that do not answer it (FinMTEB, Section 4).

    Scores are cosines by the auxiliary encoder. Ranks count documents that are no known positive of the query.

    Attributes:
        model: the auxiliary encoder, as `encoder`; the default encoder unless given.
        num_negatives: of each query.
        range_min: of the nearest documents that are passed over: they may answer the query unjudged.
        range_max: where the looking ends; ten documents for each negative unless given.
        max_score: nearer documents are passed over.
        absolute_margin: a negative must score so much less than the query's worst positive.
        relative_margin: likewise, as a share of the positive's score; NV-Retriever's 5 % unless given.
        sampling: the nearest of those that are left, or `random` ones.
        prompts: put before queries and documents for the auxiliary encoder.
        allow_fewer: take what a source has whose documents are fewer than the negatives asked for.
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
    def some_range(self) -> Self:
        """Refuse a range that cannot hold the negatives."""
        if self.range_max is not None and self.range_max - self.range_min < self.num_negatives:
            raise ValueError(
                f"between range_min {self.range_min} and range_max {self.range_max} there is no room for "
                f"{self.num_negatives} negatives"
            )
        return self


class LoraSettings(Settings):
    """Low-rank adapters (Hu et al. 2021), merged into the weights when the training is done.

    Attributes:
        rank: of the two matrices that are trained beside each one that is not.
        alpha: what they add counts alpha / rank.
        dropout: before them.
        target_modules: names of the layers that get them; peft's choice for the architecture unless given.
        keep_adapter: write them beside the merged model too.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    keep_adapter: bool = False


class DevelopmentSettings(Settings):
    """What the model is measured on while it is trained; the best step is kept.

    Attributes:
        every: steps between two measures.
        patience: measures without a new best one after which the training ends; None for no end.
        metric: of held-out pairs `mrr` or `accuracy`, of a data set any metric of mteb; the main one unless given.
        rows: of each source that are held out, a fifth of it at most.
        folder: a data set measured in place of held-out pairs. Not the target.
        prompts: put before its texts.
        limit: rows, queries or documents of it.
    """

    every: Count
    patience: Count | None = None
    metric: str | None = None
    rows: Count = 50
    folder: Path | None = None
    prompts: Prompts = Prompts()
    limit: Annotated[int, Field(ge=10)] | None = 500

    @model_validator(mode="after")
    def known_metric(self) -> Self:
        """Refuse a metric that held-out pairs do not have."""
        if self.folder is None and self.metric not in (None, *HELD_OUT_METRICS):
            raise ValueError(f"held-out pairs are measured by {' or '.join(HELD_OUT_METRICS)}, not by {self.metric!r}")
        return self


class SuiteSettings(Settings):
    """What the model is compared with its base on: suites as `lathe evaluate` takes them, either or both.

    Attributes:
        domain: what was trained for.
        general: what must not be forgotten.
        limit: rows, queries or documents of each data set.
    """

    domain: str | None = None
    general: str | None = None
    limit: Annotated[int, Field(ge=10)] | None = 1000

    @model_validator(mode="after")
    def some_suite(self) -> Self:
        """Refuse none."""
        if self.domain is None and self.general is None:
            raise ValueError("name a suite: domain, general or both")
        return self
