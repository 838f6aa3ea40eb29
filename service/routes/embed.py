"""Texts in, vectors out: TEI's `/embed` and OpenAI's `/v1/embeddings`."""

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, json_answer, vectors_response
from service.bodies import EmbedBody, OpenAIBody, declared, read_json
from service.codec import encode_rows, require_rows
from service.engine import EncodeOptions
from service.errors import BadValueError
from service.services import USE, ServicesDep
from service.settings import Settings

router = APIRouter(dependencies=USE, tags=["vectors"])

MATRIX = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
BASE64_ROWS = {"type": "array", "items": {"type": "string", "format": "byte"}}


@router.post(
    "/embed",
    openapi_extra=declared(EmbedBody),
    responses=vectors_response({"anyOf": [MATRIX, BASE64_ROWS]}),
    summary="Embed texts (text-embeddings-inference's shape)",
)
@router.post("/", include_in_schema=False)
async def embed(request: Request, services: ServicesDep) -> Response:
    """Bare vectors, one for each input."""
    body = await read_json(request, services.settings, EmbedBody)
    texts = checked_texts(body.inputs, services.settings, "inputs")
    engine, chain = services.embedder.engine_and_chain(body.model)
    options = EncodeOptions(body.prompt_name, body.truncate, body.truncation_direction, body.normalize)
    answer = await services.embedder.embed(texts, engine, body.chain or chain, body.dimensions, options)
    rows = await run_in_threadpool(encode_rows, answer.vectors, body.encoding_format)
    return await json_answer(rows, headers=answer.headers())


@router.post(
    "/v1/embeddings",
    openapi_extra=declared(OpenAIBody),
    responses=vectors_response({"type": "object"}),
    summary="Embed texts (OpenAI's shape)",
)
async def embeddings(request: Request, services: ServicesDep) -> Response:
    """`{"object": "list", "data": […], "model", "usage"}`."""
    body = await read_json(request, services.settings, OpenAIBody)
    texts = checked_texts(body.input, services.settings, "input")
    engine, chain = services.embedder.engine_and_chain(body.model)
    answer = await services.embedder.embed(texts, engine, chain, body.dimensions, EncodeOptions())
    rows = await run_in_threadpool(encode_rows, answer.vectors, body.encoding_format)
    content = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": body.model or engine.spec.name,
        "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
    }
    return await json_answer(content, headers=answer.headers())


@router.get("/v1/models", responses=ERRORS, summary="What `model` may name")
async def models(services: ServicesDep) -> Response:
    """Bare encoders first, then each with each of its live chains."""
    names = await run_in_threadpool(services.embedder.models)
    listed = [{"id": name, "object": "model", "created": 0, "owned_by": "lathe"} for name in names]
    return await json_answer({"object": "list", "data": listed})


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
