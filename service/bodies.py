"""Request schemas of the API, and functions that read a body within limits, parse it, and declare it in OpenAPI."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from service.codec import JSON, MAX_WIDTH, parse_json
from service.errors import (
    BadValueError,
    ClientGoneError,
    ServiceError,
    TooLargeError,
    UnsupportedTypeError,
    WrongShapeError,
)
from service.http.body_memory import HeldBody
from service.http.parse_queue import ParseTurn
from service.live.plan import ROWS_READY
from service.settings import Settings
from training.advice.request import DEFAULT_KEEP, DEFAULT_ROWS, MAX_ROWS
from training.fitting.fit_request import MIN_DISTINCT_ROWS

DRAINED_BODIES = 8
"""Multiple of the size limit up to which an oversized body is read and discarded: a client that is still sending would
otherwise see its connection cut instead of the 413."""


def fail_fast(schema: Any) -> Any:
    """Return a copy of pydantic's core schema in which each list and dict stops validating at its first wrong entry."""
    if isinstance(schema, list | tuple):
        return type(schema)(fail_fast(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    parts = {key: fail_fast(part) for key, part in schema.items()}
    return parts | {"fail_fast": True} if schema.get("type") in ("list", "dict") else parts


class Body(BaseModel):
    """A JSON object; unknown fields are ignored, null means the default."""

    model_config = ConfigDict(strict=True, extra="ignore")

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
        """Remove fields that are null, so that their defaults apply: clients send null for fields they leave open."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values


AnyBody = TypeVar("AnyBody", bound=Body)

EncodingFormat = Literal["float", "base64"]
Side = Annotated[
    Literal["left", "right"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),  # TEI writes "Right"
]
Dimensions = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class EmbedBody(Body):
    """text-embeddings-inference's request, with a chain."""

    inputs: str | list[str]
    normalize: bool = True
    truncate: bool = True
    truncation_direction: Side = "right"
    prompt_name: str | None = None
    dimensions: Dimensions | None = None
    encoding_format: EncodingFormat = "float"
    model: str | None = None
    chain: str | None = None


class OpenAIBody(Body):
    """OpenAI's request; `model` is `ENCODER` or `ENCODER+CHAIN[@v]`."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    dimensions: Dimensions | None = None
    encoding_format: EncodingFormat = "float"
    user: str | None = None


class ReduceBody(Body):
    """Vectors for a chain; their numbers are checked as an array, not one by one."""

    vectors: Annotated[list[Any], Field(json_schema_extra={"items": {"type": "array", "items": {"type": "number"}}})]
    chain: str
    dimensions: Dimensions | None = None


class SourceBody(Body):
    """What to fit on: exactly one of the three."""

    texts: list[str] | None = None
    vectors: Annotated[
        list[Any] | None, Field(json_schema_extra={"items": {"type": "array", "items": {"type": "number"}}})
    ] = None
    path: str | None = None

    @model_validator(mode="after")
    def exactly_one(self) -> "SourceBody":
        """Raise `ValueError` unless exactly one of the three sources is given."""
        given = [name for name in ("texts", "vectors", "path") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of texts, vectors and path, got {', '.join(given) or 'none'}")
        return self


class FitBody(Body):
    """A chain to fit: of new steps, or by adding rows to a version, `name@version`, that carries moments."""

    name: str
    steps: list[dict[str, Any]] | None = None
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

    @model_validator(mode="after")
    def steps_or_version(self) -> "FitBody":
        """Raise `ValueError` unless exactly one of `steps` and `add_to` is given."""
        if (self.steps is None) == (self.add_to is None):
            raise ValueError("give steps, or add_to with the version whose steps and rows to go on from")
        return self


class AdviseBody(Body):
    """What to advise on; `fit` names the chain to make of the advice."""

    source: SourceBody
    encoder: str | None = None
    keep: Annotated[float, Field(ge=0, le=1)] = DEFAULT_KEEP
    rows: Annotated[int, Field(ge=MIN_DISTINCT_ROWS, le=MAX_ROWS)] = DEFAULT_ROWS
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    fit: str | None = None


class PromoteBody(Body):
    """A version to make live, if it passes its gates; `force` makes it so nevertheless."""

    version: int
    force: bool = False
    gates: dict[str, float] = {}


class ShadowBody(Body):
    """A version to try beside the live one, on a share of the rows; it holds as many in memory as `rows` says."""

    version: Annotated[int, Field(ge=1)]
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    k: Annotated[int, Field(ge=1, le=100)] = 10
    rows: Annotated[int, Field(ge=ROWS_READY, le=5000)] = 2000
    gates: dict[str, float] = {}


class PlaceBody(Body):
    """The chain for a size."""

    chain: str


Metric = Literal["cosine", "ip", "l2"]
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
    """An index to make; `width` is for vectors of no encoder that is served here."""

    chain: str
    encoder: str | None = None
    width: Width | None = None
    dimensions: Dimensions | None = None
    metric: Metric = "cosine"
    m: Links = 16
    ef_construction: Candidates = 200
    originals: Literal["float32", "float16"] = "float32"
    text_field: TextField | None = None


class ReindexBody(Body):
    """What an index should be like from then on; what is not given stays."""

    chain: str | None = None
    encoder: str | None = None
    dimensions: Dimensions | None = None
    metric: Metric | None = None
    m: Links | None = None
    ef_construction: Candidates | None = None
    text_field: TextField | None = None
    texts: dict[str, str] | None = None


class TextsOrVectors(Body):
    """Exactly one of the two, and where it belongs."""

    texts: str | list[str] | None = None
    vectors: Rows = None
    space_id: str | None = None
    prompt_name: str | None = None

    @model_validator(mode="after")
    def exactly_one(self) -> "TextsOrVectors":
        """Raise `ValueError` unless exactly one of `texts` and `vectors` is given."""
        if (self.texts is None) == (self.vectors is None):
            raise ValueError("give either texts or vectors")
        return self


class UpsertBody(TextsOrVectors):
    """Items to put."""

    ids: list[str]
    metadata: list[dict[str, Any] | None] | None = None


class SearchBody(TextsOrVectors):
    """Queries; `encoder` says whose they are while the index moves to another one."""

    k: Annotated[int, Field(ge=1, le=10_000)] = 10
    ef: Candidates | None = None
    rescore: Annotated[float, Field(ge=1, le=1000)] | None = None
    filter: Any = None
    encoder: str | None = None


class IdsBody(Body):
    """Items by their ids."""

    ids: list[str]


class GetBody(IdsBody):
    """Items to show, with their original vectors or without."""

    vectors: bool = False


async def read_body(request: Request, settings: Settings) -> bytes:
    """Read the whole request body and return its bytes, counting them against the memory for all bodies.

    Raises:
        TooLargeError: if the body is over the size limit; up to `DRAINED_BODIES` times the limit is read and discarded.
        OverloadedError: if the bodies of all requests together would exceed their memory limit.
        ClientGoneError: if the client disconnected before the body was complete.
    """
    limit = settings.max_body_bytes
    held: HeldBody = request.scope["held_body"]
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                held.grow(size)
                chunks.append(chunk)
            elif size > limit * DRAINED_BODIES:
                break
            else:
                chunks.clear()
                held.grow(0)
    except ClientDisconnect:
        raise ClientGoneError from None
    if size > limit:
        raise TooLargeError(f"the body is larger than {limit} bytes")
    return b"".join(chunks)


async def read_unparsed(request: Request, settings: Settings) -> bytes:
    """Read a JSON body, wait until there is memory to parse it, and return its bytes; raises as `read_body`.

    The memory is released when the response begins, or by `finish_parsing`.
    """
    body = await read_body(request, settings)
    turn: ParseTurn = request.scope["parse_turn"]
    await turn.wait(body)
    return body


def finish_parsing(request: Request) -> None:
    """Release the memory reserved for parsing the request's body; other limits bound what is left of the body."""
    turn: ParseTurn = request.scope["parse_turn"]
    turn.finish()


async def read_json(request: Request, settings: Settings, model: type[AnyBody]) -> AnyBody:
    """Read the JSON body of a request that changes state and return it as a validated model, parsed off the event loop.

    Raises:
        ServiceError: 400 for invalid JSON and wrong values, 413 if too large, 415 for another content type, 422 for
            wrong types.
    """
    require_json_type(request)
    body = await read_unparsed(request, settings)
    return await run_in_threadpool(parse, body, model)


def require_json_type(request: Request) -> None:
    """Raise `UnsupportedTypeError` unless the request's content type is JSON.

    A web page can make a browser send text, forms and bodies without a content type to any server, without a preflight
    request, but not JSON.
    """
    said = request.headers.get("content-type", "")
    if said.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedTypeError(f"send this with the header content-type: {JSON}, not {said[:80] or 'without one'}")


def parse(body: bytes, model: type[AnyBody]) -> AnyBody:
    """Parse a JSON object and validate it as the model; raise a `ServiceError` for malformed JSON or a wrong field."""
    content = parse_json(body)
    if not isinstance(content, dict):
        raise WrongShapeError(f"the body must be a JSON object, got {type(content).__name__}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise first_problem(error) from None


def first_problem(error: ValidationError) -> ServiceError:
    """Convert a pydantic error to a `ServiceError` on one field: 400 for a wrong value, 422 for a wrong type."""
    details = error.errors(include_url=False, include_input=False)
    # Of a union's alternatives the value error says most; else the first.
    detail = next((d for d in details if not is_type_problem(d["type"])), details[0])
    field = ".".join(str(part) for part in detail["loc"] if not is_branch(part)) or None
    message = f"{field or 'the body'}: {detail['msg'].removeprefix('Value error, ')}"
    kind = WrongShapeError if is_type_problem(detail["type"]) else BadValueError
    return kind(message, param=field)


def is_branch(part: int | str) -> bool:
    """Return whether a part of a pydantic error location names a branch of a union instead of a field."""
    return isinstance(part, str) and ("[" in part or part in {"str", "int"})


def is_type_problem(kind: str) -> bool:
    """Return whether a pydantic error type is about a wrong type or a missing field, not about a value."""
    return kind.endswith(("_type", "_parsing")) or kind in {"missing", "int_from_float"}


def declared(model: type[Body], **more: Any) -> dict[str, Any]:
    """Return the OpenAPI `requestBody` of a route that reads its body itself; `more` adds media types."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": inlined(schema, schema.pop("$defs", {}))}} | more
    return {"requestBody": {"required": True, "content": content}}


def inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return the JSON schema with each `$ref` replaced by its definition.

    FastAPI collects only the definitions of models that it reads itself.
    """
    if isinstance(schema, list):
        return [inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: inlined(value, definitions) for key, value in schema.items()}
