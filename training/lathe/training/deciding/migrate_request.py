"""Request of a migration's decision. The options of the command `lathe migrate` are made from it.

No numerical library is imported here, because the command line reads this module for its help.
"""

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from lathe.training.deciding.advise_request import PlaceName
from lathe.training.fitting.requests import MAX_BYTES, Pairs, RowSource, SourcedRequest

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
        queries: texts of searches that nobody judged, from which the nearest rows are compared; None searches from
            rows.
        place: where the rows are stored.
        bytes: bytes of a stored vector, if vectors are stored as codes; None for floats.
        price: price of a million tokens of the new encoder; None takes the price in the settings of an embeddings API.
        sample_rows: maximum number of rows to compare on, besides the judged documents.
        seed: seed of the sample.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "to": "e5-base",
                    "source": "articles.parquet#body",
                    "encoder": "all-MiniLM-L6-v2",
                    "pairs": "judged.jsonl",
                    "place": "pgvector",
                    "price": 0.02,
                },
                {
                    "to": "e5-base",
                    "source": {"path": "articles.parquet#body"},
                    "queries": "searches.txt",
                    "bytes": 48,
                    "sample_rows": 10_000,
                    "seed": 1,
                },
            ]
        },
    )

    to: Annotated[str, Field(min_length=1)]
    source: RowSource
    encoder: str | None = None
    pairs: Pairs | None = None
    queries: RowSource | None = None
    place: PlaceName = "lathe"
    bytes: Annotated[int | None, Field(ge=1, le=MAX_BYTES)] = None
    price: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    sample_rows: Annotated[int, Field(ge=MIN_SAMPLE, le=20_000)] = 2_000
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    @model_validator(mode="after")
    def _check_queries(self) -> "MigrateRequest":
        """Check that queries are judged or not, and return the request. Raises `ValueError` if both are given."""
        if self.pairs is not None and self.queries is not None:
            raise ValueError("give pairs, which are judged, or queries, which are not")
        return self
