"""Embedding of texts: text-embeddings-inference's `/embed` and OpenAI's `/v1/embeddings`."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson
from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.codec import NPY, EncodingFormat
from lathe.service.encoders.embedder import Answer, NotAtOnceError, Pending
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.work import EncodeOptions
from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.service.http.answers import answer_json, build_json_response, build_npy_response, encode_answer, wants_npy
from lathe.service.http.encoding import list_texts, wait_for_encoding
from lathe.service.http.json_body import read_json, release_parse_memory, validate_json
from lathe.service.http.openapi import BINARY, ERRORS, ModelName, describe_body, describe_vectors_response
from lathe.service.http.schemas import EmbedBody, OpenAIBody, SimilarityBody, TextsBody
from lathe.service.http.unknown_names import StrictRoute, list_ignored_parameters, name_ignored
from lathe.service.services import USE, Services, ServicesDep


class DirectRoute(APIRoute):
    """Route whose endpoint is called with the request and the services, once the request's key was checked for use.

    FastAPI's solving of the same two dependencies takes a fifth of the time of a request whose text is cached.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the coroutine function that handles a request: it checks the API key, then calls the endpoint.

        Raises:
            ValueError: if the route has dependencies, which would not be called.
        """
        if self.dependencies:
            raise ValueError(f"{self.path} is a DirectRoute: it calls no dependencies")

        async def handle(request: Request) -> Response:
            services: Services = request.app.state.services
            services.keys.require_use(request)
            response: Response = await self.endpoint(request, services)
            return response

        return handle


router = APIRouter(route_class=DirectRoute, tags=["vectors"])
models_router = APIRouter(route_class=StrictRoute, dependencies=USE, tags=["vectors"])

MAX_INLINE_TEXTS = 4
"""Maximum texts of a request that is handled on the event loop, body and response: a change of threads costs 0.1 ms, a
vector 0.02."""

MAX_INLINE_BYTES = 16_384
"""Maximum bytes of a body that is parsed and looked up on the event loop."""

MATRIX = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
QUERY_PARAMETERS = [
    {
        "name": name,
        "in": "query",
        "schema": {"type": "string", "examples": [example]},
        "description": f"As the field `{name}`, for clients that cannot put it in the body.",
    }
    for name, example in (("model", "all-MiniLM-L6-v2+compact"), ("chain", "compact"))
]
BASE64_ROWS = {"type": "array", "items": {"type": "string", "format": "byte"}}


@router.post(
    "/embed",
    openapi_extra=describe_body(EmbedBody) | {"parameters": QUERY_PARAMETERS},
    responses=describe_vectors_response({"anyOf": [MATRIX, BASE64_ROWS]}, **{NPY: BINARY}),
    summary="Embed texts (text-embeddings-inference's shape)",
)
@router.post("/", include_in_schema=False)
async def embed(request: Request, services: ServicesDep) -> Response:
    """Return one vector for each input, as JSON, or as a .npy file if `Accept` asks for it."""
    # Neither the body nor its texts have a name here: they are freed while the encoder works on what it reads of them.
    begun = await _begin(
        partial(_begin_embed, request, services), await read_json(request, services.settings, any_content_type=True)
    )
    release_parse_memory(request)
    await wait_for_encoding(request, begun.pending.work)
    return await _respond(begun, partial(_build_embed_response, begun.encoding_format, wants_npy(request)))


class BegunRequest(NamedTuple):
    """A request whose texts are queued for encoding, without its body.

    Attributes:
        encoding_format: encoding format of the response.
        model: model name of the response.
        ignored: names of fields and query parameters that were ignored.
        pending: the pending vectors.
    """

    encoding_format: EncodingFormat
    model: str
    ignored: list[str]
    pending: Pending


async def _begin(begin: Callable[..., BegunRequest], json_body: bytes) -> BegunRequest:
    """Call `begin` with a JSON body, in a thread unless it is fast, and return the request that it queued.

    It is called on the event loop if the body is small and `begin` raises no `NotAtOnceError`.
    """
    if len(json_body) <= MAX_INLINE_BYTES:
        with suppress(NotAtOnceError):
            return begin(json_body, at_once=True)
    return await run_in_threadpool(begin, json_body)


async def _respond(begun: BegunRequest, build: Callable[[Answer], Response]) -> Response:
    """Wait for a request's vectors, and return the response that `build` makes of them.

    That is done in a thread unless there are at most `MAX_INLINE_TEXTS` vectors. Ignored fields are named in a header.
    """
    pending = begun.pending
    if len(pending.found) <= MAX_INLINE_TEXTS:
        response = build(pending.wait_for_answer())
    else:
        response = await run_in_threadpool(lambda: build(pending.wait_for_answer()))
    return name_ignored(response, begun.ignored)


def _begin_embed(request: Request, services: Services, json_body: bytes, at_once: bool = False) -> BegunRequest:
    """Parse the body of a text-embeddings-inference request, queue its texts, and return the pending request.

    Model and chain may also be in the query: TEI's clients have no field for them.

    Raises:
        NotAtOnceError: with `at_once`, if that would take long, or wait for files or Redis.
        ServiceError: as `validate_json` and `Embedder.begin` do.
    """
    body = validate_json(json_body, EmbedBody)
    texts = list_texts(body.inputs, services.settings.max_texts, "inputs")
    _require_few(texts, at_once)
    query = request.query_params
    ignored = list_ignored_parameters(request, ("model", "chain"), EmbedBody.known)

    choice = services.embedder.parse_model(body.model or query.get("model"))
    long_text = body.choose_long_text(choice.engine.spec.long_text)
    options = EncodeOptions(_choose_prompt(body, choice.engine), long_text, body.truncation_direction, body.normalize)
    pending = services.embedder.begin(
        texts,
        choice.engine,
        body.chain or query.get("chain") or choice.chain,
        choice.choose_dimensions(body.dimensions),
        options,
        body.side,
        body.output_dtype,
        at_once,
    )
    return BegunRequest(body.encoding_format, choice.engine.spec.name, [*body.ignored, *ignored], pending)


def _choose_prompt(body: TextsBody, engine: Engine) -> str | None:
    """Return the name of the prompt for a body's texts, or None for the encoder's default.

    It is the one that the body names, else that of its `input_type`, see `EncoderInfo.choose_prompt`.
    """
    return body.prompt_name if engine.info is None else engine.info.choose_prompt(body.prompt_name, body.input_type)


def _require_few(texts: list[str], at_once: bool) -> None:
    if at_once and len(texts) > MAX_INLINE_TEXTS:
        raise NotAtOnceError


def _build_embed_response(encoding_format: EncodingFormat, npy: bool, answer: Answer) -> Response:
    if npy:
        return build_npy_response(answer)
    return build_json_response(encode_answer(answer, encoding_format), answer.build_headers())


@router.post(
    "/similarity",
    openapi_extra=describe_body(SimilarityBody),
    responses=describe_vectors_response({"type": "array", "items": {"type": "number"}}),
    summary="Compare sentences (text-embeddings-inference's shape)",
)
async def similarity(request: Request, services: ServicesDep) -> Response:
    """Return the cosine of each sentence to the source sentence."""
    read = await read_json(request, services.settings, any_content_type=True)
    body = validate_json(read, SimilarityBody)
    fields = body.parameters.model_dump() | {"model": body.model, "chain": body.chain}
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    begun = await _begin(partial(_begin_embed, request, services), orjson.dumps({"inputs": texts, **fields}))
    release_parse_memory(request)
    await wait_for_encoding(request, begun.pending.work)
    return await _respond(begun, _build_similarity_response)


def _build_similarity_response(answer: Answer) -> Response:
    floats = answer.target.encode(answer.vectors, as_codes=False)
    lengths = np.maximum(np.linalg.norm(floats, axis=1), np.finfo(np.float32).tiny)  # a zero vector has the cosine 0
    cosines = floats[1:] @ floats[0] / lengths[1:] / lengths[0]
    return build_json_response(np.clip(cosines, -1, 1), answer.build_headers())


@router.post(
    "/v1/embeddings",
    openapi_extra=describe_body(OpenAIBody),
    responses=describe_vectors_response({"type": "object"}),
    summary="Embed texts (OpenAI's shape)",
)
async def embeddings(request: Request, services: ServicesDep) -> Response:
    """Return one vector for each input as `{"object": "list", "data": […], "model", "usage"}`."""
    begun = await _begin(
        partial(_begin_embeddings, request, services),
        await read_json(request, services.settings, any_content_type=True),
    )
    release_parse_memory(request)
    await wait_for_encoding(request, begun.pending.work)
    return await _respond(begun, partial(_build_openai_response, begun.encoding_format, begun.model))


def _begin_embeddings(request: Request, services: Services, json_body: bytes, at_once: bool = False) -> BegunRequest:
    """Parse the body of an OpenAI embeddings request, queue its texts, and return the pending request.

    Raises:
        NotAtOnceError: with `at_once`, if that would take long, or wait for files or Redis.
        ServiceError: as `validate_json` and `Embedder.begin` do.
    """
    body = validate_json(json_body, OpenAIBody)
    texts = list_texts(body.input, services.settings.max_texts, "input")
    _require_few(texts, at_once)
    ignored = list_ignored_parameters(request, (), OpenAIBody.known)
    choice = services.embedder.parse_model(body.model)
    pending = services.embedder.begin(
        texts,
        choice.engine,
        choice.chain,
        choice.choose_dimensions(body.dimensions),
        EncodeOptions(_choose_prompt(body, choice.engine), body.long_text),
        body.side,
        body.output_dtype,
        at_once,
    )
    model = body.model or choice.engine.spec.name
    return BegunRequest(body.encoding_format, model, [*body.ignored, *ignored], pending)


def _build_openai_response(encoding_format: EncodingFormat, model: str, answer: Answer) -> Response:
    rows = encode_answer(answer, encoding_format)
    content = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": model,
        "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
    }
    return build_json_response(content, answer.build_headers())


@models_router.get("/v1/models", responses=ERRORS, summary="List the values of `model`")
async def list_models(services: ServicesDep) -> Response:
    """List the values of `model`: encoders, encoders with a live chain, and both with a size that they serve.

    Of the sizes that a nested chain can be cut to, only halves are listed; requests may name any.
    """
    names = await run_in_threadpool(services.embedder.list_models)
    return await answer_json({"object": "list", "data": [_describe_model(name) for name in names]})


@models_router.get("/v1/models/{name:path}", responses=ERRORS, summary="Show one of them")
async def show_model(name: ModelName, services: ServicesDep) -> Response:
    """Show the encoder, chain and size that a value of `model` names."""
    if not name:
        return await list_models(services)
    try:
        await run_in_threadpool(services.embedder.require_model, name)
    except (BadValueError, ConflictError, UnknownNameError) as error:
        reason = error.message.removeprefix(f"there is no model {name!r}; ")
        raise UnknownNameError(
            f"there is no model {name[:200]!r}: {reason}", param="model", code="model_not_found"
        ) from None
    return await answer_json(_describe_model(name))


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "lathe"}
