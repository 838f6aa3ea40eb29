"""Embedding of texts: text-embeddings-inference's `/embed` and OpenAI's `/v1/embeddings`."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.codec import NPY
from lathe.service.encoders.embedder import Answer, NotAtOnceError, Pending
from lathe.service.encoders.engine.work import EncodeOptions
from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.service.http.answers import answer_json, build_json_response, build_npy_response, encode_answer, wants_npy
from lathe.service.http.disconnect import wait_for_encoding
from lathe.service.http.json_body import read_json, release_parse_memory, validate_json
from lathe.service.http.openapi import BINARY, ERRORS, describe_body, describe_vectors_response
from lathe.service.http.schemas import EmbedBody, EncodingFormat, OpenAIBody
from lathe.service.http.texts import list_texts
from lathe.service.services import USE, Services, ServicesDep


class DirectRoute(APIRoute):
    """Route whose endpoint takes the request and the services, after the request's key was checked for use.

    FastAPI's solving of the same two dependencies takes a fifth of the time of a request whose text is cached.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the coroutine function that checks the key of a request and calls the endpoint."""

        async def handle(request: Request) -> Response:
            services: Services = request.app.state.services
            services.keys.require_use(request)
            response: Response = await self.endpoint(request, services)
            return response

        return handle


router = APIRouter(route_class=DirectRoute, tags=["vectors"])
models_router = APIRouter(dependencies=USE, tags=["vectors"])

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
        "schema": {"type": "string"},
        "description": "for clients that cannot put it in the body",
    }
    for name in ("model", "chain")
]
BASE64_ROWS = {"type": "array", "items": {"type": "string", "format": "byte"}}

Begun = TypeVar("Begun")


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
    encoding_format, pending = await _begin(
        partial(_begin_embed, request, services), await read_json(request, services.settings, any_content_type=True)
    )
    release_parse_memory(request)
    await wait_for_encoding(request, pending.work)
    return await _respond(pending, partial(_build_embed_response, encoding_format, wants_npy(request)))


async def _begin(begin: Callable[..., Begun], json_body: bytes) -> Begun:
    """Call `begin` with a body: on the event loop if the body is small; in a thread if not, or on `NotAtOnceError`."""
    if len(json_body) <= MAX_INLINE_BYTES:
        with suppress(NotAtOnceError):
            return begin(json_body, at_once=True)
    return await run_in_threadpool(begin, json_body)


async def _respond(pending: Pending, build: Callable[[Answer], Response]) -> Response:
    """Wait for the vectors and build the response, in a thread unless there are at most `MAX_INLINE_TEXTS`."""
    if len(pending.found) <= MAX_INLINE_TEXTS:
        return build(pending.wait_for_answer())
    return await run_in_threadpool(lambda: build(pending.wait_for_answer()))


def _begin_embed(
    request: Request, services: Services, json_body: bytes, at_once: bool = False
) -> tuple[EncodingFormat, Pending]:
    """Parse a body and queue its texts for encoding; return the response's encoding format and the pending vectors.

    Model and chain may also be in the query: TEI's clients have no field for them.

    Raises:
        NotAtOnceError: with `at_once`, if that would take long, or wait for files or Redis.
        ServiceError: as `validate_json` and `Embedder.begin` do.
    """
    body = validate_json(json_body, EmbedBody)
    texts = list_texts(body.inputs, services.settings.max_texts, "inputs")
    _require_few(texts, at_once)
    query = request.query_params
    choice = services.embedder.parse_model(body.model or query.get("model"))
    long_text = body.choose_long_text(choice.engine.spec.long_text)
    options = EncodeOptions(body.prompt_name, long_text, body.truncation_direction, body.normalize)
    return body.encoding_format, services.embedder.begin(
        texts,
        choice.engine,
        body.chain or query.get("chain") or choice.chain,
        choice.choose_dimensions(body.dimensions),
        options,
        body.side,
        body.output_dtype,
        at_once,
    )


def _require_few(texts: list[str], at_once: bool) -> None:
    if at_once and len(texts) > MAX_INLINE_TEXTS:
        raise NotAtOnceError


def _build_embed_response(encoding_format: EncodingFormat, npy: bool, answer: Answer) -> Response:
    if npy:
        return build_npy_response(answer)
    return build_json_response(encode_answer(answer, encoding_format), answer.build_headers())


@router.post(
    "/v1/embeddings",
    openapi_extra=describe_body(OpenAIBody),
    responses=describe_vectors_response({"type": "object"}),
    summary="Embed texts (OpenAI's shape)",
)
async def embeddings(request: Request, services: ServicesDep) -> Response:
    """Return one vector for each input as `{"object": "list", "data": […], "model", "usage"}`."""
    encoding_format, model, pending = await _begin(
        partial(_begin_embeddings, services), await read_json(request, services.settings, any_content_type=True)
    )
    release_parse_memory(request)
    await wait_for_encoding(request, pending.work)
    return await _respond(pending, partial(_build_openai_response, encoding_format, model))


def _begin_embeddings(
    services: Services, json_body: bytes, at_once: bool = False
) -> tuple[EncodingFormat, str, Pending]:
    """Parse a body and queue its texts for encoding.

    Returns:
        Encoding format and model name of the response, and the pending vectors.

    Raises:
        NotAtOnceError: with `at_once`, if that would take long, or wait for files or Redis.
        ServiceError: as `validate_json` and `Embedder.begin` do.
    """
    body = validate_json(json_body, OpenAIBody)
    texts = list_texts(body.input, services.settings.max_texts, "input")
    _require_few(texts, at_once)
    choice = services.embedder.parse_model(body.model)
    pending = services.embedder.begin(
        texts,
        choice.engine,
        choice.chain,
        choice.choose_dimensions(body.dimensions),
        EncodeOptions(body.prompt_name, body.long_text),
        body.side,
        body.output_dtype,
        at_once,
    )
    return body.encoding_format, body.model or choice.engine.spec.name, pending


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
    """List the encoders, then each with each of its live chains, then both with the sizes that they serve.

    Of the sizes that a nested chain can be cut to, only halves are listed; requests may name any.
    """
    names = await run_in_threadpool(services.embedder.list_models)
    return await answer_json({"object": "list", "data": [_describe_model(name) for name in names]})


@models_router.get("/v1/models/{name:path}", responses=ERRORS, summary="Show one of them")
async def show_model(name: str, services: ServicesDep) -> Response:
    """Show an encoder, with a chain and a size if the name has them, by its value of `model`."""
    try:
        await run_in_threadpool(services.embedder.require_model, name)
    except (BadValueError, ConflictError, UnknownNameError) as error:
        raise UnknownNameError(
            f"there is no model {name[:200]!r}: {error.message}", param="model", code="model_not_found"
        ) from None
    return await answer_json(_describe_model(name))


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "lathe"}
