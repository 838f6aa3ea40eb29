"""Advice request, in a module of its own so that it imports no numerical library."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

DEFAULT_ROWS = 20_000
"""Default maximum number of sampled rows: enough to fit 1,024 dimensions."""
MAX_ROWS = 1_000_000
"""Largest sample that a user may request, since its vectors are held in memory."""

PlaceName = Literal["lathe", "pgvector", "qdrant", "elasticsearch", "milvus", "lancedb", "faiss", "memory"]
"""Place that is to store the vectors. `memory` are arrays in a program's memory."""
Metric = Literal["cosine", "ip", "l2"]
"""How a place compares vectors: by cosine, inner product or Euclidean distance."""
DEFAULT_RECALL = 0.95
"""Default share of the ten nearest rows that a search in the place must find."""

MODULES = ("jinja2", "matplotlib", "pandas", "scipy")
"""Modules of the extra `evaluation` that advice imports."""


def find_missing_module() -> str | None:
    """Return the first of `MODULES` that is not installed, or None if all are."""
    return next((module for module in MODULES if find_spec(module) is None), None)


@dataclass(frozen=True)
class AdviceRequest:
    """Advice request: a source, and where its vectors will be stored.

    Attributes:
        source: name or path of the source, as `open_source` reads it.
        sample_rows: maximum number of sampled rows.
        seed: seed of the sample.
        place: place that is to store the vectors.
        rows: number of rows that it will have; None for those of the source.
        metric: how it compares vectors.
        recall: share in (0, 1) of the ten nearest rows that a search in it must find.
        encoder: encoder of the texts, as the decision's commands name it; None for the default one.
        chain: name under which the decision's chain will be fitted; None for none.
        evidence: whether the mean direction, debiasing and fewer dimensions are measured too.
    """

    source: str
    sample_rows: int = DEFAULT_ROWS
    seed: int = 0
    place: PlaceName = "lathe"
    rows: int | None = None
    metric: Metric = "cosine"
    recall: float = DEFAULT_RECALL
    encoder: str | None = None
    chain: str | None = None
    evidence: bool = False
