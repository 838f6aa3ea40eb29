"""Embedding of texts: text-embeddings-inference's `/embed` and OpenAI's `/v1/embeddings`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.resolve import InputType, NotAtOnceError
from lathe.service.codec import NPY, EncodingFormat
from lathe.service.encoders.embedder import Answer, EmbedRequest, Pending
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.work import EncodeOptions
from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.service.http.answers import answer_json, build_json_response, build_npy_response, encode_answer, wants_npy
from lathe.service.http.encoding import (
    MAX_INLINE_BYTES,
    MAX_INLINE_TEXTS,
    call_at_once_if,
    call_inline_if,
    list_texts,
    wait_for_encoding,
)
from lathe.service.http.json_body import read_json, validate_fields, validate_json
from lathe.service.http.openapi import BINARY, ERRORS, ModelName, describe_body, describe_vectors_response
from lathe.service.http.routing import DirectRoute, StrictRoute, list_ignored_parameters, name_ignored
from lathe.service.http.schemas import EmbedBody, OpenAIBody, SimilarityBody, TextsBody
from lathe.service.services import USE, Services, ServicesDep

router = APIRouter(route_class=DirectRoute, tags=["vectors"])
models_router = APIRouter(route_class=StrictRoute, dependencies=USE, tags=["vectors"])

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

    def build(answer: Answer, shape: _AnswerShape) -> Response:
        if wants_npy(request):
            return build_npy_response(answer)
        return build_json_response(encode_answer(answer, shape.encoding_format), answer.build_headers())

    # The body has no name here: it is freed while the encoder works on what it reads of it.
    return await _answer(
        request, services, _parse_embed, build, await read_json(request, services.settings, any_content_type=True)
    )


class _AnswerShape(NamedTuple):
    """How the answer to a request is written.

    Attributes:
        encoding_format: encoding of vectors in JSON.
        model: model that the answer names.
        ignored: names of fields and query parameters that were ignored.
    """

    encoding_format: EncodingFormat
    model: str
    ignored: list[str]


Parse = Callable[[Request, Services, bytes], tuple[EmbedRequest, _AnswerShape]]
"""Parses the body of a request of one shape."""


async def _answer(
    request: Request,
    services: Services,
    parse: Parse,
    build: Callable[[Answer, _AnswerShape], Response],
    json_body: bytes,
) -> Response:
    """Embed the texts of a body, which `parse` reads, and return the response that `build` makes of their vectors.

    A request of few texts is handled on the event loop, unless its chain must be loaded or Redis asked; of others, both
    ends are in a thread. Ignored fields are named in a header.
    """

    def begin(json_body: bytes, at_once: bool = False) -> tuple[Pending, _AnswerShape]:
        embed_request, shape = parse(request, services, json_body)
        if at_once and len(embed_request.texts) > MAX_INLINE_TEXTS:
            raise NotAtOnceError
        return services.embedder.begin(embed_request, at_once), shape

    pending, shape = await call_at_once_if(len(json_body) <= MAX_INLINE_BYTES, begin, json_body)
    del json_body
    request.scope["memory"].end_parsing()
    await wait_for_encoding(request, pending.work)

    is_small = len(pending.entries) <= MAX_INLINE_TEXTS
    response = await call_inline_if(is_small, lambda: build(pending.wait_for_answer(), shape))
    return name_ignored(response, shape.ignored)


def _parse_embed(request: Request, services: Services, json_body: bytes) -> tuple[EmbedRequest, _AnswerShape]:
    """Parse the body of a text-embeddings-inference request. Return `(texts and how to encode them, how to answer)`.

    Model and chain may also be in the query: TEI's clients have no field for them.

    Raises:
        ServiceError: as `validate_json` does, and for unknown models.
    """
    return _build_embed_request(request, services, validate_json(json_body, EmbedBody))


def _build_embed_request(request: Request, services: Services, body: EmbedBody) -> tuple[EmbedRequest, _AnswerShape]:
    texts = list_texts(body.inputs, services.settings.max_texts, "inputs")
    query = request.query_params if request.scope["query_string"] else {}
    ignored = list_ignored_parameters(request, ("model", "chain"), EmbedBody.known)
    choice = services.embedder.parse_model(body.model or query.get("model"))
    engine = choice.engine
    prompt, side = _choose_prompt_and_side(body, engine)
    long_text = body.choose_long_text(engine.spec.long_text)
    embed_request = EmbedRequest(
        texts,
        engine,
        EncodeOptions(prompt, long_text, body.truncation_direction, body.normalize),
        body.chain or query.get("chain") or choice.chain,
        choice.choose_dimensions(body.dimensions),
        side,
        body.output_dtype,
    )
    return embed_request, _AnswerShape(body.encoding_format, engine.spec.name, [*body.ignored, *ignored])


def _choose_prompt_and_side(body: TextsBody, engine: Engine) -> tuple[str | None, InputType]:
    """Return the name of the prompt that is put before a body's texts, and whether they are queries or documents.

    The prompt is None for the encoder's default. The body's prompt comes before the prompt for its `input_type`, see
    `EncoderInfo.choose_prompt`. Texts without an `input_type` are what their prompt says.
    """
    if engine.info is None:
        return body.prompt_name, body.resolved_input_type
    prompt = engine.info.choose_prompt(body.prompt_name, body.input_type)
    side = None if body.input_type else engine.info.find_side(prompt)
    return prompt, side or body.resolved_input_type


@router.post(
    "/similarity",
    openapi_extra=describe_body(SimilarityBody),
    responses=describe_vectors_response({"type": "array", "items": {"type": "number"}}),
    summary="Compare sentences (text-embeddings-inference's shape)",
)
async def similarity(request: Request, services: ServicesDep) -> Response:
    """Return a list with the cosine similarity of each sentence to the source sentence."""
    return await _answer(
        request,
        services,
        _parse_similarity,
        _build_similarity_response,
        await read_json(request, services.settings, any_content_type=True),
    )


def _parse_similarity(request: Request, services: Services, json_body: bytes) -> tuple[EmbedRequest, _AnswerShape]:
    """Parse the body of a comparison of sentences. The first text to encode is the source sentence."""
    body = validate_json(json_body, SimilarityBody)
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    fields = {"inputs": texts, **body.parameters.model_dump(), "model": body.model, "chain": body.chain}
    return _build_embed_request(request, services, validate_fields(fields, EmbedBody))


def _build_similarity_response(answer: Answer, _shape: _AnswerShape) -> Response:
    """Return a JSON response with the cosine of each vector but the first to the first."""
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
    return await _answer(
        request,
        services,
        _parse_embeddings,
        _build_openai_response,
        await read_json(request, services.settings, any_content_type=True),
    )


def _parse_embeddings(request: Request, services: Services, json_body: bytes) -> tuple[EmbedRequest, _AnswerShape]:
    """Parse the body of an OpenAI embeddings request. Return `(texts and how to encode them, how to answer)`.

    Raises:
        ServiceError: as `validate_json` does, and for unknown models.
    """
    body = validate_json(json_body, OpenAIBody)
    texts = list_texts(body.input, services.settings.max_texts, "input")
    ignored = list_ignored_parameters(request, (), OpenAIBody.known)
    choice = services.embedder.parse_model(body.model)
    prompt, side = _choose_prompt_and_side(body, choice.engine)
    embed_request = EmbedRequest(
        texts,
        choice.engine,
        EncodeOptions(prompt, body.long_text),
        choice.chain,
        choice.choose_dimensions(body.dimensions),
        side,
        body.output_dtype,
    )
    model = body.model or choice.engine.spec.name
    return embed_request, _AnswerShape(body.encoding_format, model, [*body.ignored, *ignored])


def _build_openai_response(answer: Answer, shape: _AnswerShape) -> Response:
    rows = encode_answer(answer, shape.encoding_format)
    content = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": shape.model,
        "usage": {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens},
    }
    return build_json_response(content, answer.build_headers())


@models_router.get("/v1/models", responses=ERRORS, summary="List the values of `model`")
async def list_models(services: ServicesDep) -> Response:
    """Return the values of `model`: encoders, encoders with a live chain, and both with dimensions that they serve.

    Of the sizes that a nested chain can be cut to, only halves are listed; requests may name any.
    """
    names = await run_in_threadpool(services.embedder.list_models)
    return await answer_json({"object": "list", "data": [_describe_model(name) for name in names]})


@models_router.get("/v1/models/{name:path}", responses=ERRORS, summary="Show one of them")
async def show_model(name: ModelName, services: ServicesDep) -> Response:
    """Return one value of `model` in OpenAI's shape. Answer 404 unless its encoder, chain and dimensions are served."""
    if not name:
        return await list_models(services)
    try:
        await run_in_threadpool(services.embedder.resolve_model, name)
    except (BadValueError, ConflictError, UnknownNameError) as error:
        reason = error.message.removeprefix(f"there is no model {name!r}; ")
        raise UnknownNameError(
            f"there is no model {name[:200]!r}: {reason}", param="model", code="model_not_found"
        ) from None
    return await answer_json(_describe_model(name))


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "lathe"}
