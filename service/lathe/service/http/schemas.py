"""Request schemas of the API."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from lathe.service.chains.output_dtype import OutputDtype
from lathe.service.chains.resolve import InputType
from lathe.service.codec import MAX_DIMENSIONS
from lathe.service.http.unknown_names import MAX_UNKNOWN, find_field
from lathe.service.index.spec import Metric, Originals
from lathe.training.advice.request import DEFAULT_KEEP, DEFAULT_RECALL, DEFAULT_ROWS, MAX_ROWS, PlaceName
from lathe.training.encoder.spec import LongText
from lathe.training.fitting.fit_request import MIN_DISTINCT_ROWS


def fail_fast(schema: Any) -> Any:
    """Return a copy of a pydantic core schema in which lists and dicts stop validating at their first wrong entry."""
    if isinstance(schema, list | tuple):
        return type(schema)(fail_fast(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    parts = {key: fail_fast(part) for key, part in schema.items()}
    return parts | {"fail_fast": True} if schema.get("type") in ("list", "dict") else parts


UNKNOWN_FIELD = "unknown_field"
"""Type of pydantic's error for a field that the schema does not have; `field` in its context is the name."""


class Body(BaseModel):
    """A JSON object that refuses unknown fields.

    Null means a field's default.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    known: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields, made once: every request is compared with them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Set `known`."""
        cls.known = frozenset(cls.model_fields)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema whose lists and dicts stop validating at the first wrong entry.

        With every error collected, pydantic takes half a kilobyte for each: 2 MB of `{"inputs": [0, 0, …]}` took 900 MB
        and 3 s.
        """
        checked: CoreSchema = fail_fast(handler(source))
        return checked

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, values: Any) -> Any:
        """Remove fields that are null, so that their defaults apply.

        Clients send null for fields they leave open.

        Raises:
            PydanticCustomError: for an unknown field, of type `UNKNOWN_FIELD`.
        """
        if not isinstance(values, dict):
            return values
        present = {k: v for k, v in values.items() if v is not None}
        if not present.keys() <= cls.known:
            cls.refuse_unknown(present.keys() - cls.known)
        return present

    @classmethod
    def refuse_unknown(cls, unknown: Collection[str]) -> None:
        """Raise `PydanticCustomError` for the first of the unknown fields, with the field that it seems to mean."""
        name = min(unknown)
        field = find_field(name, cls.known)
        advice = f"did you mean {field}?" if field else f"the fields are {', '.join(cls.model_fields)}"
        raise PydanticCustomError(UNKNOWN_FIELD, "unknown field; {advice}", {"field": name, "advice": advice})


class CompatibleBody(Body):
    """A request in the shape of another service, whose clients may send fields that only that service knows.

    Unknown fields are ignored, except those that seem to mean a known one. `ignored` has their names.
    """

    model_config = ConfigDict(extra="allow")

    @property
    def ignored(self) -> list[str]:
        """Names of the fields that were ignored, in alphabetical order."""
        return sorted(self.model_extra or ())

    @classmethod
    def refuse_unknown(cls, unknown: Collection[str]) -> None:
        """Raise `PydanticCustomError` for an unknown field that seems to mean a known one.

        The error is also raised if there are more unknown fields than any client sends: comparing each of them with the
        known ones takes time.
        """
        misspelt = unknown if len(unknown) > MAX_UNKNOWN else [name for name in unknown if find_field(name, cls.known)]
        if misspelt:
            super().refuse_unknown(misspelt)


EncodingFormat = Literal["float", "base64"]
Side = Annotated[
    Literal["left", "right"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),  # TEI writes "Right"
]
Dimensions = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)]


class TextsBody(CompatibleBody):
    """Texts to encode.

    `input_type` is that of `prompt_name` if left out, and `long_text` that of the encoder.
    """

    prompt_name: str | None = None
    input_type: InputType | None = None
    long_text: LongText | None = None

    @property
    def side(self) -> InputType:
        """The `input_type`, or if it was left out, `query` for a prompt of that name and else `document`."""
        return self.input_type or ("query" if self.prompt_name == "query" else "document")


class EmbedBody(TextsBody):
    """A request in text-embeddings-inference's shape, with a chain.

    `input_type` is that of `prompt_name` if left out.

    `model` is as in OpenAI's request; `chain` takes precedence over the one it names. `long_text` says more than
    `truncate`, which is its `error` if false; if true, the encoder's `long_text`, but never `error`.
    """

    inputs: str | list[str]
    normalize: bool = True
    truncate: bool | None = None
    truncation_direction: Side = "right"
    dimensions: Dimensions | None = None
    encoding_format: EncodingFormat = "float"
    output_dtype: OutputDtype | None = None
    model: str | None = None
    chain: str | None = None

    @model_validator(mode="after")
    def require_agreement(self) -> "EmbedBody":
        """Raise `ValueError` if `truncate` and `long_text` contradict one another."""
        if (self.truncate, self.long_text) in ((True, "error"), (False, "truncate")):
            raise ValueError(f"truncate {str(self.truncate).lower()} contradicts long_text {self.long_text}")
        return self

    def choose_long_text(self, default: LongText) -> LongText:
        """Return what to do with texts that are too long.

        Args:
            default: the encoder's `long_text`, for requests that name none.
        """
        if self.long_text is not None or self.truncate is None:
            return self.long_text or default
        if not self.truncate:
            return "error"
        return "truncate" if default == "error" else default


class OpenAIBody(TextsBody):
    """A request in OpenAI's shape.

    `model` is `ENCODER` or `ENCODER+CHAIN[@v]`, each with or without `:DIMENSIONS`. `input_type` is that of
    `prompt_name` if left out.
    """

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    dimensions: Dimensions | None = None
    encoding_format: EncodingFormat = "float"
    output_dtype: OutputDtype | None = None
    user: str | None = None


class ReduceBody(Body):
    """Vectors to transform by a chain."""

    vectors: Annotated[list[Any], Field(json_schema_extra={"items": {"type": "array", "items": {"type": "number"}}})]
    chain: str
    dimensions: Dimensions | None = None
    input_type: InputType = "document"
    output_dtype: OutputDtype | None = None


class SourceBody(Body):
    """Source of rows: exactly one of `texts`, `vectors` and `path`."""

    texts: list[str] | None = None
    vectors: Annotated[
        list[Any] | None, Field(json_schema_extra={"items": {"type": "array", "items": {"type": "number"}}})
    ] = None
    path: str | None = None

    @model_validator(mode="after")
    def require_exactly_one(self) -> "SourceBody":
        """Raise `ValueError` unless exactly one of the three sources is given."""
        names = [name for name in ("texts", "vectors", "path") if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(f"give exactly one of texts, vectors and path, got {', '.join(names) or 'none'}")
        return self


class PairBody(Body):
    """A query and a document that is relevant to it."""

    query: Annotated[str, Field(min_length=1)]
    document: Annotated[str, Field(min_length=1)]


class FitBody(Body):
    """A chain to fit: of new steps, or by adding rows to a version, `name@version`, that stores moments.

    `steps` is a list, or `{"query": […], "document": […]}` with other steps for queries than for documents. With
    `bytes`, codes of so many bytes follow the steps, of which there may be none; `queries` weights them. `pairs` are
    queries with a relevant document each, for steps that learn from them, and `test_pairs` those of other queries.
    With `personal_data`, nothing of the texts and vectors of queries and pairs outlives the fit. With
    `serve_dimensions`, requests for the chain's dimensions get it once it is live. `prompt_name` is the
    encoder's prompt for the texts of the source; by default that of documents.
    """

    name: str
    steps: list[dict[str, Any]] | dict[str, list[dict[str, Any]]] | None = None
    add_to: str | None = None
    source: SourceBody
    encoder: str | None = None
    normalize: bool = True
    gates: dict[str, float] = {}
    promote: bool | None = None
    transform: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    targets: SourceBody | None = None
    target_encoder: str | None = None
    keep_moments: bool = False
    bytes: Annotated[int | None, Field(ge=1, le=MAX_DIMENSIONS)] = None
    queries: SourceBody | None = None
    pairs: list[PairBody] | None = None
    test_pairs: list[PairBody] | None = None
    personal_data: bool = False
    serve_dimensions: bool = False
    prompt_name: str | None = None

    @model_validator(mode="after")
    def require_steps_or_version(self) -> "FitBody":
        """Raise `ValueError` unless new steps (or bytes) or `add_to` are given, and not both."""
        if (self.steps is None and self.bytes is None) == (self.add_to is None):
            raise ValueError("give steps, bytes or both, or add_to with the version to go on from")
        return self


class AdviseBody(Body):
    """A source of texts or vectors to advise on.

    If `fit` is given, the recommended chain is fitted under that name. The decision is for the `place` that is to store
    the vectors, for `rows` rows there, compared by `metric`. A search must find the share `recall` of the ten nearest.
    At most `sample_rows` rows of the source are measured.
    """

    source: SourceBody
    encoder: str | None = None
    keep: Annotated[float, Field(ge=0, le=1)] = DEFAULT_KEEP
    sample_rows: Annotated[int, Field(ge=MIN_DISTINCT_ROWS, le=MAX_ROWS)] = DEFAULT_ROWS
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    fit: str | None = None
    place: PlaceName = "lathe"
    rows: Annotated[int | None, Field(ge=1, le=10**12)] = None
    metric: Metric = "cosine"
    recall: Annotated[float, Field(gt=0, lt=1)] = DEFAULT_RECALL


class PromoteBody(Body):
    """A version to make live if it passes its gates, or with `force` even if it fails them."""

    version: int
    force: bool = False
    gates: dict[str, float] = {}


class SizeRouteBody(Body):
    """The chain of a size route."""

    chain: str


TextField = Annotated[str, Field(min_length=1, max_length=200)]
Links = Annotated[int, Field(ge=2, le=256)]
Candidates = Annotated[int, Field(ge=1, le=10_000)]
Rows = Annotated[
    list[Any] | None,
    Field(
        json_schema_extra={
            "items": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "format": "byte"}]}
        }
    ),
]


class IndexBody(Body):
    """An index to create.

    `width` is for vectors of an encoder that is not served here. `originals` is the dtype in which the original vectors
    are stored. `none` stores their codes alone, for a chain that ends in codes; rescoring, another chain or encoder,
    and vectors of items are then answered 409.
    """

    chain: str
    encoder: str | None = None
    width: Width | None = None
    dimensions: Dimensions | None = None
    metric: Metric = "cosine"
    m: Links = 16
    ef_construction: Candidates = 200
    originals: Originals = "float32"
    text_field: TextField | None = None


class ReindexBody(Body):
    """New settings of an index.

    Those left out stay.
    """

    chain: str | None = None
    encoder: str | None = None
    dimensions: Dimensions | None = None
    metric: Metric | None = None
    m: Links | None = None
    ef_construction: Candidates | None = None
    text_field: TextField | None = None
    texts: dict[str, str] | None = None


class TextsOrVectors(Body):
    """Either texts or vectors, and the space of the vectors."""

    texts: str | list[str] | None = None
    vectors: Rows = None
    space_id: str | None = None
    prompt_name: str | None = None
    long_text: LongText | None = None

    @model_validator(mode="after")
    def require_exactly_one(self) -> "TextsOrVectors":
        """Raise `ValueError` unless exactly one of `texts` and `vectors` is given."""
        if (self.texts is None) == (self.vectors is None):
            raise ValueError("give either texts or vectors")
        return self


class UpsertBody(TextsOrVectors):
    """Items to insert or replace."""

    ids: list[str]
    metadata: list[dict[str, Any] | None] | None = None


class SearchBody(TextsOrVectors):
    """Queries to search for.

    `encoder` names their encoder while the index moves to another one.
    """

    k: Annotated[int, Field(ge=1, le=10_000)] = 10
    ef: Candidates | None = None
    rescore: Annotated[float, Field(ge=1, le=1000)] | None = None
    filter: Any = None
    encoder: str | None = None


class IdsBody(Body):
    """Ids of items."""

    ids: list[str]


class GetBody(IdsBody):
    """Ids of items to return, with or without their original vectors."""

    vectors: bool = False
