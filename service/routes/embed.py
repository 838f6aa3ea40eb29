"""Texts in, vectors out: TEI's `/embed` and OpenAI's `/v1/embeddings`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import BINARY, ERRORS, json_answer, json_bytes, npy_answer, vectors_response, wants_npy
from service.bodies import EmbedBody, EncodingFormat, OpenAIBody, declared, finish_parsing, parse, read_unparsed
from service.codec import NPY, encode_rows, require_rows
from service.embedder import Answer, Pending
from service.engine.work import EncodeOptions
from service.errors import BadValueError, UnknownNameError
from service.hangup import finished
from service.routes.drift import PARAMETERS, asked, told
from service.services import USE, Services, ServicesDep
from service.settings import Settings

router = APIRouter(dependencies=USE, tags=["vectors"])

INLINE_TEXTS = 4
"""Answers with so few vectors are written where they are."""

MATRIX = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
QUERY = [
    {
        "name": name,
        "in": "query",
        "schema": {"type": "string"},
        "description": "for clients that cannot put it in the body",
    }
    for name in ("model", "chain")
]
BASE64_ROWS = {"type": "array", "items": {"type": "string", "format": "byte"}}


@router.post(
    "/embed",
    openapi_extra=declared(EmbedBody) | {"parameters": [*QUERY, *PARAMETERS]},
    responses=vectors_response({"anyOf": [MATRIX, BASE64_ROWS]}, **{NPY: BINARY}),
    summary="Embed texts (text-embeddings-inference's shape)",
)
@router.post("/", include_in_schema=False)
async def embed(request: Request, services: ServicesDep) -> Response:
    """Bare vectors, one for each input; a .npy file where `Accept` asks for it."""
    wanted = asked(request)
    # Neither the body nor its texts have a name here: they are freed while the encoder works on what it reads of them.
    encoding_format, pending = await run_in_threadpool(
        begin_embed, await read_unparsed(request, services.settings), request, services
    )
    finish_parsing(request)
    await finished(request, pending.work)
    return await answered(pending, wanted, partial(answer_embed, encoding_format, wants_npy(request)))


async def answered(pending: Pending, drift: bool, make: Callable[[Answer], Response]) -> Response:
    """The answer, made in a thread unless it is small: a change of threads costs 0.15 ms, writing a vector 0.02."""
    if len(pending.found) <= INLINE_TEXTS and not drift:
        return make(pending.answer())
    return await run_in_threadpool(lambda: make(told(pending.answer()) if drift else pending.answer()))


def begin_embed(content: bytes, request: Request, services: Services) -> tuple[EncodingFormat, Pending]:
    """Read a request and let its texts wait; also the encoding of the answer.

    TEI's clients have no field for a model or chain, but take a query.
    """
    body = parse(content, EmbedBody)
    texts = checked_texts(body.inputs, services.settings, "inputs")
    query = request.query_params
    engine, chain = services.embedder.engine_and_chain(body.model or query.get("model"))
    options = EncodeOptions(body.prompt_name, body.truncate, body.truncation_direction, body.normalize)
    return body.encoding_format, services.embedder.begin(
        texts, engine, body.chain or query.get("chain") or chain, body.dimensions, options
    )


def answer_embed(encoding_format: EncodingFormat, npy: bool, answer: Answer) -> Response:
    """The vectors as JSON or npy."""
    if npy:
        return npy_answer(answer)
    return json_bytes(encode_rows(answer.vectors, encoding_format), answer.headers())


@router.post(
    "/v1/embeddings",
    openapi_extra=declared(OpenAIBody) | {"parameters": PARAMETERS},
    responses=vectors_response({"type": "object"}),
    summary="Embed texts (OpenAI's shape)",
)
async def embeddings(request: Request, services: ServicesDep) -> Response:
    """`{"object": "list", "data": […], "model", "usage"}`."""
    wanted = asked(request)
    encoding_format, model, pending = await run_in_threadpool(
        begin_embeddings, await read_unparsed(request, services.settings), services
    )
    finish_parsing(request)
    await finished(request, pending.work)
    return await answered(pending, wanted, partial(answer_embeddings, encoding_format, model))


def begin_embeddings(content: bytes, services: Services) -> tuple[EncodingFormat, str, Pending]:
    """Read a request and let its texts wait for the encoder; also the answer's encoding and its model's name."""
    body = parse(content, OpenAIBody)
    texts = checked_texts(body.input, services.settings, "input")
    engine, chain = services.embedder.engine_and_chain(body.model)
    pending = services.embedder.begin(texts, engine, chain, body.dimensions, EncodeOptions())
    return body.encoding_format, body.model or engine.spec.name, pending


def answer_embeddings(encoding_format: EncodingFormat, model: str, answer: Answer) -> Response:
    """The vectors in OpenAI's shape."""
    rows = encode_rows(answer.vectors, encoding_format)
    content = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": model,
        "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
    }
    return json_bytes(content, answer.headers())


@router.get("/v1/models", responses=ERRORS, summary="What `model` may name")
async def models(services: ServicesDep) -> Response:
    """Bare encoders first, then each with each of its live chains."""
    names = await run_in_threadpool(services.embedder.models)
    return await json_answer({"object": "list", "data": [described_model(name) for name in names]})


@router.get("/v1/models/{name:path}", responses=ERRORS, summary="One of them")
async def model(name: str, services: ServicesDep) -> Response:
    """An encoder, or one with a chain, by what `model` calls it."""
    if name not in await run_in_threadpool(services.embedder.models):
        raise UnknownNameError(f"there is no model {name[:200]!r}", param="model", code="model_not_found")
    return await json_answer(described_model(name))


def described_model(name: str) -> dict[str, Any]:
    """A model in OpenAI's shape."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "lathe"}


def checked_texts(inputs: Any, settings: Settings, param: str) -> list[str]:
    """One or many texts as a list.

    Raises:
        BadValueError: for none, an empty one, or token ids.
        TooLargeError: for more than a request may hold.
    """
    texts = [inputs] if isinstance(inputs, str) else inputs
    require_rows(len(texts), settings.max_texts, param)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadValueError(
                f"{param} holds token ids, which mean nothing to another tokenizer: send texts "
                "(with LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False)",
                param=param,
            )
        if not text:
            raise BadValueError(f"{param}[{index}] is an empty text", param=param)
    return texts
