"""Settings of an index: as a request asks for them, and as the index's record stores them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from lathe.service.errors import ConflictError
from lathe.training.fitting.requests import Pairs, RowSource, SourcedRequest
from lathe.training.json_object import JsonObject
from lathe.training.settings import Metric

Originals = Literal["float32", "float16", "none"]
"""Dtype in which the record stores the original vectors; with `none` it stores only their codes."""

MAX_SENT_WIDTH = 16_384
"""Maximum number of dimensions of vectors that are sent, equal to that of `lathe.service.codec`, which takes NumPy."""
MAX_WIDTH = 65_536
"""Maximum number of dimensions, equal to that of vector sources, whose module is not imported to list indexes."""

MAX_TEXT = 4096
"""Maximum number of characters of a stored setting."""

Dimensions = Annotated[int, Field(ge=1)]
Candidates = Annotated[int, Field(ge=1, le=10_000)]
Links = Annotated[int, Field(ge=2, le=256)]
TextField = Annotated[str, Field(min_length=1, max_length=200)]

StoredText = Annotated[str, Field(max_length=MAX_TEXT)]
StoredWidth = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class IndexRequest(JsonObject):
    """An index to create.

    Attributes:
        chain: chain that reduces the vectors to search, NAME or NAME@VERSION, or `none` for full vectors.
        encoder: name of the encoder of texts and vectors; None for the one that the chain was fitted for.
        width: number of dimensions of the original vectors, for an encoder that is not served here.
        dimensions: fewer dimensions than the chain's own, if it is nested; None for its own.
        metric: how vectors are compared: by cosine, inner product or Euclidean distance.
        m: number of links of a node of the graph; more find more and take more memory.
        ef_construction: number of candidates for a node's links while the graph is built; more find more and take more
            time.
        originals: dtype in which the original vectors are stored; `none` stores the codes alone, for a chain that ends
            in codes, and refuses rescoring, another chain or encoder, and vectors of items with a 409.
        text_field: field of the metadata in which texts of items are stored, so that another encoder can encode them.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "chain": "compact",
                    "encoder": "all-MiniLM-L6-v2",
                    "dimensions": 64,
                    "metric": "ip",
                    "m": 32,
                    "ef_construction": 400,
                    "originals": "float16",
                    "text_field": "body",
                },
                {"chain": "mine", "width": 1024},
            ]
        },
    )

    chain: str
    encoder: str | None = None
    width: Annotated[int, Field(ge=1, le=MAX_SENT_WIDTH)] | None = None
    dimensions: Dimensions | None = None
    metric: Metric = "cosine"
    m: Links = 16
    ef_construction: Candidates = 200
    originals: Originals = "float32"
    text_field: TextField | None = None


class ReindexRequest(JsonObject):
    """New settings of an index.

    Those left out stay. Without any, rows of deleted and replaced items are removed.

    Attributes:
        chain: chain that reduces the vectors to search, NAME or NAME@VERSION, or `none` for full vectors.
        encoder: name of another encoder, which encodes the stored texts again.
        dimensions: fewer dimensions than the chain's own, if it is nested.
        metric: how vectors are compared: by cosine, inner product or Euclidean distance.
        m: number of links of a node of the graph; more find more and take more memory.
        ef_construction: number of candidates for a node's links while the graph is built.
        text_field: field of the metadata that holds the texts for another encoder.
        texts: texts for another encoder by item id, for items whose metadata hold none.
        encode: whether the encoder that the index has encodes the texts again, for vectors that are not their texts'.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "chain": "compact@2",
                    "encoder": "bge-small-en-v1.5",
                    "dimensions": 64,
                    "metric": "ip",
                    "m": 32,
                    "ef_construction": 400,
                    "text_field": "body",
                    "texts": {"item-1": "What is a lathe?"},
                    "encode": False,
                }
            ]
        },
    )

    chain: str | None = None
    encoder: str | None = None
    dimensions: Dimensions | None = None
    metric: Metric | None = None
    m: Links | None = None
    ef_construction: Candidates | None = None
    text_field: TextField | None = None
    texts: dict[str, str] | None = None
    encode: bool = False


class CalibrateRequest(SourcedRequest):
    """What an index is calibrated with. Without queries, its rows search for its rows.

    Attributes:
        queries: source of at least 130 unjudged queries, texts or original vectors.
        pairs: at least 60 judged queries with the id or the text of a relevant item each; half of them fit the weights,
            and the others are reported on.
        base_rate: assumed share of queries that have an answer; pairs measure it.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={"examples": [{"queries": "queries.jsonl", "pairs": "judged.jsonl", "base_rate": 0.5}, {}]},
    )

    queries: RowSource | None = None
    pairs: Pairs | None = None
    base_rate: Annotated[float, Field(gt=0, lt=1)] = 0.5


class CheckupRequest(SourcedRequest):
    """What an index is checked with.

    Attributes:
        queries: source of queries to ask, texts or original vectors; None asks halves of stored texts, or rows with
            noise where no text is stored.
    """

    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [{"queries": "queries.jsonl"}, {}]})

    queries: RowSource | None = None


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
        moves: number of times that the index has moved to another encoder.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    encoder: StoredText | None
    encoder_fingerprint: StoredText | None
    width: StoredWidth
    raw_space_id: StoredText
    chain: StoredText
    dimensions: StoredWidth
    space_id: StoredText
    metric: Metric = "cosine"
    m: Annotated[int, Field(ge=2, le=1024)] = 16
    ef_construction: Annotated[int, Field(ge=1, le=100_000)] = 200
    text_field: StoredText | None = None
    originals: Originals = "float32"
    generation: Annotated[str, Field(pattern="^[0-9A-Za-z]{1,64}$")] = "1"
    vectors: Annotated[int, Field(ge=1, le=10**9)] = 1
    moves: Annotated[int, Field(ge=0, le=10**9)] = 0

    @property
    def has_originals(self) -> bool:
        """Whether the original vectors are stored, and not byte codes alone."""
        return self.originals != "none"

    @property
    def stored_dtype(self) -> str:
        """Dtype of what the record stores for an item: of its original vector, or of its byte code."""
        return self.originals if self.has_originals else "uint8"

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a dict, as the record stores them."""
        return asdict(self)

    def describe(self, name: str, count: int, state: str) -> dict[str, Any]:
        """Return a dict of an index's name, number of items, state and settings, for the responses of all backends."""
        internal = ("encoder_fingerprint", "generation", "vectors")
        settings = {field: value for field, value in asdict(self).items() if field not in internal}
        return {"name": name, "count": count, "state": state} | settings


_STORED_SPEC = TypeAdapter(IndexSpec)


def parse_spec(content: Mapping[str, Any]) -> IndexSpec:
    """Build the settings of an index from a dict that `IndexSpec.to_json` returned, validate them, and return them.

    They are validated because a backup's record may come from someone else: settings become names of folders and
    tables, and decide how much space rows take.

    Raises:
        ValueError: if a setting is unknown, missing, or has a value that no index can have.
    """
    try:
        return _STORED_SPEC.validate_json(orjson.dumps(content))  # of Python's objects it would take only an instance
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if problem["type"] in ("missing", "unexpected_keyword_argument", "dataclass_type"):
            raise ValueError("the settings of the index are not those of this version of Lathe") from None
        name, value = problem["loc"][0], problem["input"]
        raise ValueError(f"the settings of the index cannot be used: {name} is {value!r:.80}") from None


def require_same_settings(name: str, spec: IndexSpec, requested: Mapping[str, Any]) -> None:
    """Raise `ConflictError`, which names the settings, if requested settings differ from an existing index's.

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
    """Raise `ConflictError` if an index stores no original vectors. The message says that `purpose` needs them.

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
