"""What an index is made of."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Metric = Literal["cosine", "ip", "l2"]
OriginalsDtype = Literal["float32", "float16"]

WIDTH_MOST = 65_536
"""As of the vectors of a source: what reads those is not imported to list indexes."""


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
    """The spec that `IndexSpec.json` wrote.

    A backup's record is somebody else's: its settings stand in the names of folders and tables, and say how much room
    rows take.

    Raises:
        ValueError: for settings that no index can have.
    """
    try:
        spec = IndexSpec(**content)
    except TypeError:
        raise ValueError("the settings of the index are not those that this Lathe knows") from None
    for name, can_be in POSSIBLE.items():
        if not can_be(value := getattr(spec, name)):
            raise ValueError(f"the settings of the index cannot be used: {name} is {value!r:.80}")
    return spec


def _one_of(*kinds: Any) -> Callable[[Any], bool]:
    """Return what tells whether a value is one of those of a `Literal`."""
    return lambda value: isinstance(value, str) and value in kinds


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    """Return what tells whether a value is a whole number in a range."""
    return lambda value: type(value) is int and least <= value <= most


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _names_a_folder(value: Any) -> bool:
    """Return whether a value can stand in the name of a generation's folder."""
    return isinstance(value, str) and re.fullmatch("[0-9A-Za-z]{1,64}", value) is not None


POSSIBLE: dict[str, Callable[[Any], bool]] = {
    "encoder": _is_text_or_none,
    "encoder_fingerprint": _is_text_or_none,
    "width": _whole(1, WIDTH_MOST),
    "raw_space_id": _is_text,
    "chain": _is_text,
    "dimensions": _whole(1, WIDTH_MOST),
    "space_id": _is_text,
    "metric": _one_of(*get_args(Metric)),
    "m": _whole(2, 1024),
    "ef_construction": _whole(1, 100_000),
    "text_field": _is_text_or_none,
    "originals": _one_of(*get_args(OriginalsDtype)),
    "generation": _names_a_folder,
    "vectors": _whole(1, 10**9),
}
"""What each setting can be."""
