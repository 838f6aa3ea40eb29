"""Requests of decisions. A request is the arguments of a command, the body of a route and a job.

No numerical library is imported here, because the command line reads this module for its help.
"""

from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from lathe.training.errors import FitError
from lathe.training.fitting.requests import MAX_BYTES, MIN_DISTINCT_ROWS, Pairs, RowSource, SourcedRequest
from lathe.training.settings import MAX_ENTRIES, ChainName, Metric

DEFAULT_ADVICE_ROWS = 20_000
"""Default maximum number of sampled rows: enough to fit 1,024 dimensions."""
MAX_ADVICE_ROWS = 1_000_000
"""Largest sample that a user may request, since its vectors are held in memory."""

PlaceName = Literal[
    "lathe",
    "pgvector",
    "vectorchord",
    "qdrant",
    "elasticsearch",
    "opensearch",
    "milvus",
    "lancedb",
    "weaviate",
    "redis",
    "faiss",
    "memory",
]
"""Database or library that is to store the vectors. `memory` means arrays in a program's memory."""
DEFAULT_RECALL = 0.95
"""Default share of the ten nearest rows that a search in the place must find."""

MODULES = ("jinja2", "matplotlib", "pandas", "scipy")
"""Modules of the extra `evaluation` that advice imports."""
HELD_OUT_SHARE = 0.2
"""Share of the queries to choose by, and share of the queries to report on."""
MIN_SAMPLE = 100
"""Minimum number of sampled rows: a bridge is fitted on some rows and measured on others."""


def find_missing_module() -> str | None:
    """Find the first module of `MODULES` that is not installed. Returns None if all are installed."""
    return next((module for module in MODULES if find_spec(module) is None), None)


class AdviceRequest(SourcedRequest):
    """A source of texts or vectors to advise on.

    Attributes:
        source: rows to measure: an object with `texts`, `vectors` or `path`, or the path alone.
        encoder: name of the encoder of the texts; None for the default, and for vectors without an encoder.
        place: database that is to store the vectors; `memory` is an array in a program.
        rows: number of rows that the place is to store; None for the number of rows of the source.
        metric: how the place compares vectors: by cosine, inner product or Euclidean distance.
        recall: share of the ten nearest rows that a search in the place must find.
        fit: name of the chain to fit from the advice; None for advice alone.
        evidence: whether the mean direction, debiasing and fewer dimensions are measured too.
        verify: whether the place's own engine, if it is installed, stores the sampled rows as decided and is searched.
        sample_rows: maximum number of rows of the source that are measured.
        seed: seed of the sample.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "source": "articles.parquet#body",
                    "encoder": "all-MiniLM-L6-v2",
                    "sample_rows": 10_000,
                    "seed": 1,
                    "fit": "articles",
                    "place": "qdrant",
                    "rows": 1_000_000,
                    "metric": "ip",
                    "recall": 0.9,
                    "evidence": True,
                    "verify": True,
                }
            ]
        },
    )

    source: RowSource
    encoder: str | None = None
    place: PlaceName = "lathe"
    rows: Annotated[int | None, Field(ge=1, le=10**12)] = None
    metric: Metric = "cosine"
    recall: Annotated[float, Field(gt=0, lt=1)] = DEFAULT_RECALL
    fit: ChainName | None = None
    evidence: bool = False
    verify: bool = False
    sample_rows: Annotated[int, Field(ge=MIN_DISTINCT_ROWS, le=MAX_ADVICE_ROWS)] = DEFAULT_ADVICE_ROWS
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class AdaptRequest(SourcedRequest):
    """An adaptation of stored vectors or of their encoder to judged searches.

    Attributes:
        source: texts of the documents that are searched.
        pairs: judged searches: pairs of a query and a relevant document, as a list of objects with `query` and
            `document`, or as the path of a file.
        name: name under which the recommended chain or encoder is published; None publishes nothing.
        folders: folders of labelled data sets, as for `lathe train`, to pre-finetune the encoder on before the judged
            searches.
        test_pairs: other judged searches to report the gain on; None takes two fifths of the queries of
            `pairs`.
        encoder: name of the encoder; None for the default.
        bytes: bytes of a stored vector, as byte codes after the change; None keeps the floats.
        train: whether the encoder may be trained, which changes the vectors of all documents.
        budget: approximate seconds that the adaptation may take: trainings get fewer queries, or are left out; None for
            no limit.
        promote: whether the published version becomes live; None promotes it only if no version is live.
        seed: seed of the division of the queries, and of the training.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "source": "documents.jsonl",
                    "pairs": "judged.jsonl",
                    "name": "support",
                    "folders": ["support"],
                    "test_pairs": [{"query": "What is a lathe?", "document": "A lathe turns a workpiece."}],
                    "encoder": "all-MiniLM-L6-v2",
                    "bytes": 48,
                    "train": True,
                    "budget": 3600,
                    "promote": True,
                    "seed": 1,
                }
            ]
        },
    )

    source: RowSource
    pairs: Pairs
    name: ChainName | None = None
    folders: Annotated[list[str], Field(max_length=MAX_ENTRIES)] = []
    test_pairs: Pairs | None = None
    encoder: str | None = None
    bytes: Annotated[int | None, Field(ge=1, le=MAX_BYTES)] = None
    train: bool = True
    budget: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    promote: bool | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def check(self) -> None:
        """Raise `FitError` for documents as vectors, promote without name, folders without training, or equal pairs.

        The last are test pairs that equal the pairs.
        """
        if self.source.vectors is not None:
            raise FitError("the documents are vectors, and an adaptation encodes texts: give a source of texts")
        if self.name is None and self.promote is not None:
            raise FitError("promote is set, but nothing is published without a name: give a name")
        if self.folders and not self.train:
            raise FitError("folders are for training the encoder, and train is false: leave out folders or train")
        if self.pairs == self.test_pairs:
            raise FitError(
                "the test pairs are the pairs to learn from: their scores would measure memorization (data leakage)"
            )


class MigrateRequest(SourcedRequest):
    """A comparison of the present encoder of a source's rows with another encoder.

    Attributes:
        to: name of the new encoder.
        source: texts of the rows that are stored now.
        encoder: name of the present encoder; None for the default.
        pairs: judged searches: pairs of a query and a relevant document, as a list of objects with `query` and
            `document`, or as the path of a file; None compares only the nearest rows, which decides nothing.
        queries: texts of queries without judgements, whose nearest rows are compared; None uses held-out rows as
            queries.
        place: where the rows are stored.
        bytes: bytes of a stored vector, if vectors are stored as byte codes; None for floats.
        price: price of a million tokens of the new encoder; None takes the price in the settings of an embeddings API.
        sample_rows: maximum number of rows to compare on, in addition to the relevant documents.
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
        if self.pairs is not None and self.queries is not None:
            raise ValueError("give either pairs (judged) or queries (not judged), not both")
        return self
