"""Request of a migration's decision. The options of the command `lathe migrate` are made from it.

No numerical library is imported here, because the command line reads this module for its help.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

from lathe.training.fitting.requests import Pairs, RowSource, SourcedRequest

MIN_SAMPLE = 100
"""Minimum number of sampled rows, of which some are needed to fit a bridge and others to measure it."""


class MigrateRequest(SourcedRequest):
    """Another encoder for the rows of a source, and what to compare both encoders on.

    Attributes:
        to: name of the new encoder.
        source: texts of the rows that are stored now.
        encoder: name of the present encoder; None for the default.
        pairs: judged searches: queries with a relevant document each, as a list of objects with `query` and `document`,
            or the path of a file of them; None compares the nearest rows alone, which decides nothing.
        price: price of a million tokens of the new encoder; None takes the price in the settings of an embeddings API.
        sample_rows: maximum number of rows to compare on, besides the judged documents.
        seed: seed of the sample.
    """

    model_config = ConfigDict(frozen=True)

    to: Annotated[str, Field(min_length=1)]
    source: RowSource
    encoder: str | None = None
    pairs: Pairs | None = None
    price: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    sample_rows: Annotated[int, Field(ge=MIN_SAMPLE, le=20_000)] = 2_000
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
