"""What an index is made of."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Metric = Literal["cosine", "ip", "l2"]
OriginalsDtype = Literal["float32", "float16"]


@dataclass(frozen=True)
class IndexSpec:
    """The settings of an index as they stand in its record.

    Attributes:
        encoder: whose texts it takes, by name; None if it takes vectors only.
        encoder_fingerprint: of that encoder, or of the one its chain was fitted for.
        width: of the original vectors.
        raw_space_id: where the originals are comparable.
        chain: `name@version`, or `none`.
        dimensions: of the vectors the graph holds.
        space_id: where those are comparable.
        metric: cosine, inner product or Euclidean distance.
        m: links of a node of the graph (hnswlib's M).
        ef_construction: candidates looked at when a node is linked.
        text_field: of the metadata, where the texts of items are kept; None if they are not.
        originals: dtype in which the record keeps the original vectors.
        generation: which `graph-…` folder serves.
        vectors: which of the record's tables holds the originals; re-embedding moves on to the next.
    """

    encoder: str | None
    encoder_fingerprint: str | None
    width: int
    raw_space_id: str
    chain: str
    dimensions: int
    space_id: str
    metric: Metric = "cosine"
    m: int = 16
    ef_construction: int = 200
    text_field: str | None = None
    originals: OriginalsDtype = "float32"
    generation: str = "1"
    vectors: int = 1

    def json(self) -> dict[str, Any]:
        """As it stands in the record."""
        return asdict(self)


def spec_of(content: Mapping[str, Any]) -> IndexSpec:
    """The spec that `IndexSpec.json` wrote."""
    return IndexSpec(**content)
