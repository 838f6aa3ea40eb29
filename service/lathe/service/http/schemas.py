"""Request schemas of the API."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from lathe.service.chains.output_dtype import OutputDtype
from lathe.service.chains.resolve import InputType
from lathe.service.codec import MAX_DIMENSIONS, EncodingFormat
from lathe.service.http.unknown_names import MAX_UNKNOWN, find_field
from lathe.service.index.spec import Metric, Originals
from lathe.training.advice.request import DEFAULT_KEEP, DEFAULT_RECALL, DEFAULT_ROWS, MAX_ROWS, PlaceName
from lathe.training.encoder.spec import LongText
from lathe.training.fitting.requests import MIN_DISTINCT_ROWS, RowSource
from lathe.training.json_object import JsonObject


class Body(JsonObject):
    """A JSON object that refuses unknown fields.

    Null means a field's default.
    """

    @classmethod
    def find_field(cls, unknown: str) -> str | None:
        """Return the field that an unknown one seems to mean, perhaps by another service's name of it, or None."""
        return find_field(unknown, cls.known)


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
        """Raise `PydanticCustomError` if an unknown field looks like a misspelt known one. Others are accepted.

        The error is also raised if there are more unknown fields than any client sends: comparing each of them with the
        known ones takes time.
        """
        misspelt = unknown if len(unknown) > MAX_UNKNOWN else [name for name in unknown if cls.find_field(name)]
        if misspelt:
            super().refuse_unknown(misspelt)


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
        """Raise `ValueError` if `truncate` and `long_text` contradict one another, else return the body."""
        if (self.truncate, self.long_text) in ((True, "error"), (False, "truncate")):
            raise ValueError(f"truncate {str(self.truncate).lower()} contradicts long_text {self.long_text}")
        return self

    def choose_long_text(self, default: LongText) -> LongText:
        """Return what to do with texts that are too long: as `long_text` or `truncate` says, else `default`.

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


class AdviseBody(Body):
    """A source of texts or vectors to advise on.

    If `fit` is given, the recommended chain is fitted under that name. The decision is for the `place` that is to store
    the vectors, for `rows` rows there, compared by `metric`. A search must find the share `recall` of the ten nearest.
    At most `sample_rows` rows of the source are measured.
    """

    source: RowSource
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


class EncoderPromoteBody(PromoteBody):
    """Body of `POST /encoders/{name}/promote`.

    With `reindex`, the indexes of other versions are encoded again.
    """

    reindex: bool = False


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
        """Raise `ValueError` unless exactly one of `texts` and `vectors` is given, else return the body."""
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
