"""Request of advice: the command `lathe advise`, the body of `POST /advise` and the job are the same object.

No numerical library is imported here, because the command line reads this module for its help.
"""

from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from lathe.training.fitting.requests import MIN_DISTINCT_ROWS, RowSource, SourcedRequest
from lathe.training.names import ChainName

DEFAULT_ROWS = 20_000
"""Default maximum number of sampled rows: enough to fit 1,024 dimensions."""
MAX_ROWS = 1_000_000
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
"""Place that is to store the vectors. `memory` are arrays in a program's memory."""
Metric = Literal["cosine", "ip", "l2"]
"""How a place compares vectors: by cosine, inner product or Euclidean distance."""
DEFAULT_RECALL = 0.95
"""Default share of the ten nearest rows that a search in the place must find."""

MODULES = ("jinja2", "matplotlib", "pandas", "scipy")
"""Modules of the extra `evaluation` that advice imports."""


def find_missing_module() -> str | None:
    """Return the first module that advice needs and that is not installed, or None if all are."""
    return next((module for module in MODULES if find_spec(module) is None), None)


class AdviceRequest(SourcedRequest):
    """A source of texts or vectors to advise on.

    Attributes:
        source: rows to measure: an object with `texts`, `vectors` or `path`, or the path alone.
        encoder: name of the encoder of the texts; None for the default, and for vectors without an encoder.
        place: database that is to store the vectors; `memory` is an array in a program.
        rows: number of rows that the place is to store; None for those of the source.
        metric: how the place compares vectors: by cosine, inner product or Euclidean distance.
        recall: share of the ten nearest rows that a search in the place must find.
        fit: name of the chain to fit from the advice; None for advice alone.
        evidence: whether the mean direction, debiasing and fewer dimensions are measured besides.
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
    sample_rows: Annotated[int, Field(ge=MIN_DISTINCT_ROWS, le=MAX_ROWS)] = DEFAULT_ROWS
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
