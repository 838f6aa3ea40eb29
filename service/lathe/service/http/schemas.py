"""Request schemas of the API."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from lathe.service.chains.resolve import InputType, OutputDtype
from lathe.service.codec import EncodingFormat
from lathe.service.http.routing import MAX_UNKNOWN
from lathe.service.index.spec import Candidates, Dimensions
from lathe.training.encoder.spec import LongText
from lathe.training.json_object import JsonObject


class _CompatibleBody(JsonObject):
    """A request in the shape of another service, whose clients may send fields that only that service knows.

    Unknown fields are ignored, except those that seem to mean a known one. `ignored` has their names.
    """

    model_config = ConfigDict(extra="allow")

    @property
    def ignored(self) -> list[str]:
        return sorted(self.model_extra or ())

    @classmethod
    def refuse_unknown(cls, unknown: Collection[str]) -> None:
        """Raise `PydanticCustomError` if an unknown field looks like a misspelt known one.

        Other unknown fields are accepted, unless there are more than any client sends: comparing each of them with the
        known ones takes time.
        """
        misspelt = unknown if len(unknown) > MAX_UNKNOWN else [name for name in unknown if cls.find_field(name)]
        if misspelt:
            super().refuse_unknown(misspelt)


TruncationSide = Annotated[
    Literal["left", "right"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),  # TEI writes "Right"
]


class TextsBody(_CompatibleBody):
    """Texts to encode.

    Attributes:
        prompt_name: name of the encoder's prompt to put before each text, as `/info` lists them; null for the
            prompt for documents, if the encoder has one.
        input_type: whether the texts are queries or documents, which some chains map differently; null for `query` if
            the prompt is of that name, else `document`.
        long_text: what becomes of a text with more tokens than the model reads: truncated, refused with a 413, or
            encoded in chunks whose vectors are averaged; null for the encoder's setting.
    """

    prompt_name: str | None = None
    input_type: InputType | None = None
    long_text: LongText | None = None

    @property
    def resolved_input_type(self) -> InputType:
        """The `input_type`. If it was left out, `query` for a prompt of that name, else `document`."""
        return self.input_type or ("query" if self.prompt_name == "query" else "document")


class EmbedBody(TextsBody):
    """A request in text-embeddings-inference's shape, with a chain.

    Attributes:
        inputs: the text, or the texts, each of which gets a vector.
        normalize: whether the encoder's vectors are scaled to norm 1; chains normalize for themselves.
        truncate: text-embeddings-inference's name for `long_text`: false is `error`, true what the encoder does, but
            never `error`.
        truncation_direction: end of a text at which tokens are cut off; `Left` and `Right` are accepted too.
        dimensions: number of dimensions of the answered vectors, which selects a chain by the encoder's size routes, or
            cuts the vectors of a nested chain.
        encoding_format: how the JSON answer writes a vector: as a list of numbers, or as base64 of its bytes.
        output_dtype: numbers that the answer holds; null for floats, or for a chain's codes in a .npy answer.
        model: encoder, or encoder and chain, as the `model` of `/v1/embeddings`; null for the default encoder.
        chain: chain that reduces the vectors, NAME or NAME@VERSION, or `none`; it takes precedence over the one in
            `model`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": ["What is a lathe?"],
                    "model": "all-MiniLM-L6-v2",
                    "chain": "compact",
                    "dimensions": 64,
                    "prompt_name": "query",
                    "input_type": "query",
                    "long_text": "mean",
                    "output_dtype": "int8",
                    "encoding_format": "base64",
                },
                {"inputs": "What is a lathe?", "normalize": True, "truncate": True, "truncation_direction": "left"},
            ]
        }
    )

    inputs: str | list[str]
    normalize: bool = True
    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"
    dimensions: Dimensions | None = None
    encoding_format: EncodingFormat = "float"
    output_dtype: OutputDtype | None = None
    model: str | None = None
    chain: str | None = None

    @model_validator(mode="after")
    def _require_agreement(self) -> "EmbedBody":
        if (self.truncate, self.long_text) in ((True, "error"), (False, "truncate")):
            raise ValueError(f"truncate {str(self.truncate).lower()} contradicts long_text {self.long_text}")
        return self

    def choose_long_text(self, default: LongText) -> LongText:
        """Return what to do with texts that are too long, as `long_text`, else `truncate`, else `default` says.

        Args:
            default: the encoder's `long_text`, for requests that name none.
        """
        if self.long_text is not None or self.truncate is None:
            return self.long_text or default
        if not self.truncate:
            return "error"
        return "truncate" if default == "error" else default


class SimilarityInputs(JsonObject):
    """Sentences to compare.

    Attributes:
        source_sentence: the sentence that each of the others is compared with.
        sentences: the others, each of which gets a cosine.
    """

    source_sentence: str
    sentences: Annotated[list[str], Field(min_length=1)]


class SimilarityParameters(_CompatibleBody):
    """How sentences are read.

    Attributes:
        prompt_name: name of the encoder's prompt to put before each sentence; null for the prompt for documents.
        truncate: false refuses a sentence with more tokens than the model reads; true and null do what the encoder
            does.
        truncation_direction: end of a sentence at which tokens are cut off.
    """

    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: TruncationSide = "right"


class SimilarityBody(_CompatibleBody):
    """A request of cosines in text-embeddings-inference's shape, with a chain.

    Attributes:
        inputs: the sentences.
        parameters: how they are read.
        model: encoder, or encoder and chain, as the `model` of `/v1/embeddings`; null for the default encoder.
        chain: chain that reduces the vectors before they are compared, NAME or NAME@VERSION, or `none`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": {"source_sentence": "What is a lathe?", "sentences": ["A machine.", "It rains."]},
                    "parameters": {"truncate": True, "prompt_name": "query", "truncation_direction": "left"},
                    "model": "all-MiniLM-L6-v2",
                    "chain": "compact",
                }
            ]
        }
    )

    inputs: SimilarityInputs
    parameters: SimilarityParameters = SimilarityParameters()
    model: str | None = None
    chain: str | None = None


class OpenAIBody(TextsBody):
    """A request in OpenAI's shape.

    Attributes:
        input: the text, or the texts, each of which gets a vector; token ids, as some clients send them, get a 400.
        model: `ENCODER`, `ENCODER+CHAIN` or `ENCODER+CHAIN@VERSION`, each with or without `:DIMENSIONS`; null for the
            default encoder.
        dimensions: number of dimensions of the answered vectors, which selects a chain by the encoder's size routes, or
            cuts the vectors of a nested chain.
        encoding_format: how the answer writes a vector: as a list of numbers, or as base64 of its bytes.
        output_dtype: numbers that the answer holds; null for floats.
        user: name that OpenAI's clients may send for the caller; it is ignored.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "input": ["What is a lathe?"],
                    "model": "all-MiniLM-L6-v2+compact",
                    "dimensions": 64,
                    "prompt_name": "query",
                    "input_type": "query",
                    "long_text": "mean",
                    "output_dtype": "int8",
                    "encoding_format": "float",
                    "user": "somebody",
                }
            ]
        }
    )

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    dimensions: Dimensions | None = None
    encoding_format: EncodingFormat = "float"
    output_dtype: OutputDtype | None = None
    user: str | None = None


class ReduceBody(JsonObject):
    """Vectors to transform by a chain.

    Attributes:
        vectors: the vectors, one list of numbers each, with as many dimensions as the chain takes.
        chain: chain, NAME or NAME@VERSION.
        dimensions: fewer dimensions than the chain's own, if it is nested; null for its own.
        input_type: whether the vectors are of queries or of documents, which some chains map differently.
        output_dtype: numbers that the answer holds; null for floats, or for a chain's codes in a .npy answer.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "vectors": [[0.1, 0.2, 0.3]],
                    "chain": "compact@1",
                    "dimensions": 64,
                    "input_type": "query",
                    "output_dtype": "int8",
                }
            ]
        }
    )

    vectors: Annotated[list[Any], Field(json_schema_extra={"items": {"type": "array", "items": {"type": "number"}}})]
    chain: str
    dimensions: Dimensions | None = None
    input_type: InputType = "document"
    output_dtype: OutputDtype | None = None


class PromoteBody(JsonObject):
    """A version to make live.

    Attributes:
        version: number of the version.
        force: whether the version becomes live even if it fails a gate.
        gates: further gates: minimum value by certificate key, which is a maximum for keys where less is better.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"version": 2, "force": False, "gates": {"recall_at_10": 0.8}}]}
    )

    version: int
    force: bool = False
    gates: dict[str, float] = {}


class EncoderPromoteBody(PromoteBody):
    """Body of `POST /encoders/{name}/promote`.

    Attributes:
        reindex: whether the indexes of other versions are encoded again by this one.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "version": 2,
                    "force": False,
                    "gates": {"relevance.articles.ndcg_at_10.gain": 0.01},
                    "reindex": True,
                }
            ]
        }
    )

    reindex: bool = False


class SizeRouteBody(JsonObject):
    """The chain of a size route.

    Attributes:
        chain: chain that answers requests for these dimensions, NAME or NAME@VERSION.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"chain": "compact@1"}]})

    chain: str


Rows = Annotated[
    list[Any] | None,
    Field(
        json_schema_extra={
            "items": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string", "format": "byte"}]}
        }
    ),
]


class TextsOrVectors(JsonObject):
    """Either texts or vectors, and the embedding space of the vectors.

    Attributes:
        texts: the text, or the texts; give these or `vectors`.
        vectors: vectors as lists of numbers, or each as base64 of its float32 numbers; give these or `texts`.
        space_id: space of the vectors, as the header `x-space-id` named it; null for that header of this request, or
            for the space of the index's encoder.
        prompt_name: name of the encoder's prompt to put before each text; null for the prompt for queries or documents.
        long_text: what becomes of a text with more tokens than the model reads: truncated, refused with a 413, or
            encoded in chunks whose vectors are averaged; null for the encoder's setting.
    """

    texts: str | list[str] | None = None
    vectors: Rows = None
    space_id: str | None = None
    prompt_name: str | None = None
    long_text: LongText | None = None

    @model_validator(mode="after")
    def _require_exactly_one(self) -> "TextsOrVectors":
        if (self.texts is None) == (self.vectors is None):
            raise ValueError("give either texts or vectors")
        return self


class UpsertBody(TextsOrVectors):
    """Items to insert or replace.

    Attributes:
        ids: id of each item, of 1 to 512 characters.
        metadata: fields of each item, which searches filter by; null for an item without any.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "ids": ["item-1"],
                    "texts": ["What is a lathe?"],
                    "metadata": [{"lang": "en", "year": 2024}],
                    "prompt_name": "document",
                    "long_text": "mean",
                },
                {"ids": ["item-1"], "vectors": [[0.1, 0.2, 0.3]], "space_id": "13fd0dcb6dbf"},
            ]
        }
    )

    ids: list[str]
    metadata: list[dict[str, Any] | None] | None = None


class SearchBody(TextsOrVectors):
    """Queries to search for.

    Attributes:
        k: number of items to return for each query.
        ef: number of candidates that the search of the graph keeps, at least `k`; more find more and take more time.
        rescore: factor of `k` for the number of candidates that are ranked by their original vectors; null ranks by the
            searched vectors.
        filter: condition on the items' metadata, with `and`, `or`, `not`, and the operators `eq`, `ne`, `in`, `nin`,
            `exists`, `gt`, `gte`, `lt` and `lte` on fields.
        encoder: name of the encoder of the queries, while the index moves to another one; null for the index's.
        min_probability: hits with a lower probability, or none, are left out, all of them if nothing answers the query;
            needs a calibrated index.
        exact: whether all items are compared in place of a search of the graph, which shows what the graph loses.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "texts": ["What is a lathe?"],
                    "k": 5,
                    "ef": 100,
                    "rescore": 4,
                    "filter": {"lang": "en", "year": {"gte": 2000}},
                    "prompt_name": "query",
                    "long_text": "mean",
                    "encoder": "all-MiniLM-L6-v2",
                    "min_probability": 0.5,
                    "exact": False,
                },
                {"vectors": [[0.1, 0.2, 0.3]], "space_id": "13fd0dcb6dbf"},
            ]
        }
    )

    k: Annotated[int, Field(ge=1, le=10_000)] = 10
    ef: Candidates | None = None
    rescore: Annotated[float, Field(ge=1, le=1000)] | None = None
    filter: Any = None
    encoder: str | None = None
    min_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    exact: bool = False


class DeleteBody(JsonObject):
    """Which items to delete.

    Attributes:
        ids: ids of the items; give these or `filter`.
        filter: condition on the items' metadata, as for a search; give this or `ids`. An empty one is refused.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ids": ["item-1", "item-2"]}, {"filter": {"source": "old.pdf"}}]}
    )

    ids: list[str] | None = None
    filter: Any = None

    @model_validator(mode="after")
    def _require_exactly_one(self) -> "DeleteBody":
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give either ids or filter")
        if self.filter == {}:
            raise ValueError("an empty filter would delete every item: delete the index instead")
        return self


class GetBody(JsonObject):
    """Ids of items to return, with or without their original vectors.

    Attributes:
        ids: ids of the items.
        vectors: whether each item is returned with its original vector.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": ["item-1", "item-2"], "vectors": True}]})

    ids: list[str]
    vectors: bool = False
