"""Settings of an index."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from lathe.service.errors import ConflictError

Metric = Literal["cosine", "ip", "l2"]
"""Similarity measure: cosine, inner product or Euclidean distance."""
Originals = Literal["float32", "float16", "none"]
"""Dtype in which the record stores the original vectors; with `none` it stores only their codes."""

MAX_WIDTH = 65_536
"""Maximum number of dimensions, equal to that of vector sources, whose module is not imported to list indexes."""
MAX_TEXT = 4096
"""Maximum number of characters of a setting."""


@dataclass(frozen=True)
class IndexSpec:
    """Settings of an index as its record stores them.

    Attributes:
        encoder: name of the encoder of its texts; None if the index takes vectors only.
        encoder_fingerprint: fingerprint of that encoder, or of the one that the chain was fitted for.
        width: number of dimensions of the original vectors.
        raw_space_id: id of the space in which the original vectors are comparable.
        chain: `name@version`, or `none`.
        dimensions: number of dimensions of the vectors in the graph.
        space_id: id of the space in which the vectors in the graph are comparable.
        m: number of links per node of the graph (hnswlib's M).
        ef_construction: size of the candidate list when a node is linked.
        text_field: metadata field in which the texts of items are stored; None if they are not.
        originals: dtype in which the record stores the original vectors; `none` if it stores only their codes.
        generation: suffix of the `graph-…` folder that serves.
        vectors: number of the record's table of original vectors; re-embedding uses the next one.
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
    originals: Originals = "float32"
    generation: str = "1"
    vectors: int = 1

    @property
    def has_originals(self) -> bool:
        """Whether the original vectors are stored, and not codes alone."""
        return self.originals != "none"

    @property
    def stored_dtype(self) -> str:
        """Dtype of what the record stores for an item: of its original vector, or of its code."""
        return self.originals if self.has_originals else "uint8"

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a dict, as the record stores them."""
        return asdict(self)

    def describe(self, name: str, count: int, state: str) -> dict[str, Any]:
        """Return name, number of items, state and settings of an index as a dict that all backends share."""
        return {
            "name": name,
            "count": count,
            "chain": self.chain,
            "space_id": self.space_id,
            "dimensions": self.dimensions,
            "state": state,
            "encoder": self.encoder,
            "raw_space_id": self.raw_space_id,
            "width": self.width,
            "metric": self.metric,
            "m": self.m,
            "ef_construction": self.ef_construction,
            "originals": self.originals,
            "text_field": self.text_field,
        }


def parse_spec(content: Mapping[str, Any]) -> IndexSpec:
    """Build the settings of an index from a dict as `IndexSpec.to_json` returns it, and validate them.

    They are validated because a backup's record may come from someone else: settings become names of folders and
    tables, and decide how much space rows take.

    Raises:
        ValueError: if a setting is unknown, missing, or has a value that no index can have.
    """
    try:
        spec = IndexSpec(**content)
    except TypeError:
        raise ValueError("the settings of the index are not those of this version of Lathe") from None
    for name, is_valid in VALIDATORS.items():
        if not is_valid(value := getattr(spec, name)):
            raise ValueError(f"the settings of the index cannot be used: {name} is {value!r:.80}")
    return spec


def require_same_settings(name: str, spec: IndexSpec, requested: Mapping[str, Any]) -> None:
    """Raise `ConflictError` if an existing index differs from the requested settings, naming these.

    Args:
        name: name of the index, for the message.
        spec: its settings.
        requested: requested settings by name; settings that are left out may differ.
    """
    stored = spec.to_json()
    differing = [
        f"{key} {stored[key]} (requested: {value})" for key, value in requested.items() if stored[key] != value
    ]
    if differing:
        raise ConflictError(
            f"the index {name} exists with {', '.join(differing)}: reindex it, or delete it first", param="name"
        )


def require_originals(spec: IndexSpec, purpose: str, param: str | None = None) -> None:
    """Raise `ConflictError` if the index does not store its original vectors, which `purpose` needs.

    Args:
        spec: settings of the index.
        purpose: what needs them, for the message.
        param: parameter of the request that asks for it.
    """
    if not spec.has_originals:
        raise ConflictError(
            f"{purpose} needs the original vectors, which this index does not store (originals: none)",
            param=param,
            code="no_originals",
        )


def _build_choice_check(*kinds: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in kinds


def _build_range_check(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_folder_suffix(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9A-Za-z]{1,64}", value) is not None


VALIDATORS: dict[str, Callable[[Any], bool]] = {
    "encoder": _is_text_or_none,
    "encoder_fingerprint": _is_text_or_none,
    "width": _build_range_check(1, MAX_WIDTH),
    "raw_space_id": _is_text,
    "chain": _is_text,
    "dimensions": _build_range_check(1, MAX_WIDTH),
    "space_id": _is_text,
    "metric": _build_choice_check(*get_args(Metric)),
    "m": _build_range_check(2, 1024),
    "ef_construction": _build_range_check(1, 100_000),
    "text_field": _is_text_or_none,
    "originals": _build_choice_check(*get_args(Originals)),
    "generation": _is_folder_suffix,
    "vectors": _build_range_check(1, 10**9),
}
"""Function that tells whether a value is valid, for each setting."""
