"""Reduction of the caller's own vectors by a chain."""

from functools import partial
from typing import get_args

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.chains.names import require_number
from service.codec import NPY, as_vectors, parse_npy
from service.encoders.embedder import Answer, InputType
from service.errors import BadValueError
from service.http.answers import build_json_response, build_npy_response, wants_npy
from service.http.json_body import read_body, read_json
from service.http.openapi import BINARY, describe_body, describe_vectors_response
from service.http.out_of_domain import DRIFT_PARAMETERS, measure_out_of_domain, wants_out_of_domain
from service.http.schemas import ReduceBody
from service.services import USE, Services, ServicesDep

router = APIRouter(dependencies=USE, tags=["vectors"])

QUERY_PARAMETERS = [
    {"name": "chain", "in": "query", "schema": {"type": "string"}, "description": "for npy bodies"},
    {"name": "dimensions", "in": "query", "schema": {"type": "integer"}, "description": "for npy bodies"},
    {
        "name": "input_type",
        "in": "query",
        "schema": {"type": "string", "enum": ["query", "document"]},
        "description": "for npy bodies",
    },
]


@router.post(
    "/reduce",
    openapi_extra=describe_body(ReduceBody, **{NPY: BINARY}) | {"parameters": [*QUERY_PARAMETERS, *DRIFT_PARAMETERS]},
    responses=describe_vectors_response({"type": "object"}, **{NPY: BINARY}),
    summary="Transform vectors by a chain",
)
async def reduce(request: Request, services: ServicesDep) -> Response:
    """Transform the vectors of a JSON or .npy body by a chain; return JSON, or a .npy file if `Accept` asks for it."""
    # All in one change of threads, which costs more than a small product.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == NPY:
        return await run_in_threadpool(_reduce_npy, request, services, await read_body(request, services.settings))
    return await read_json(
        request, services.settings, ReduceBody, partial(_reduce_json, request, services), any_content_type=True
    )


def _reduce_json(request: Request, services: Services, body: ReduceBody) -> Response:
    """Transform the vectors of a JSON body, and return the response."""
    vectors = as_vectors(body.vectors, services.settings.max_vectors)
    return _respond(request, services.embedder.reduce(vectors, body.chain, body.dimensions, body.input_type))


def _reduce_npy(request: Request, services: Services, body: bytes) -> Response:
    """Transform the vectors of a .npy body by the chain in the query, and return the response.

    Raises:
        BadValueError: if the query names no chain, `dimensions` is not a number from 1, or `input_type` is neither
            query nor document.
    """
    chain = request.query_params.get("chain")
    if not chain:
        raise BadValueError("name the chain of a npy body in the query: /reduce?chain=NAME", param="chain")
    value = request.query_params.get("dimensions")
    dimensions = None if value is None else require_number(value, "dimensions")
    if dimensions == 0:
        raise BadValueError("dimensions must be at least 1", param="dimensions")
    vectors = parse_npy(body, services.settings.max_vectors)
    side = request.query_params.get("input_type", "document")
    if side not in get_args(InputType):
        raise BadValueError(f"input_type must be query or document, not {side[:40]!r}", param="input_type")
    input_type: InputType = "query" if side == "query" else "document"
    return _respond(request, services.embedder.reduce(vectors, chain, dimensions, input_type))


def _respond(request: Request, answer: Answer) -> Response:
    """Serialize the vectors to a response: .npy or JSON, with the header `x-out-of-domain`, as the request asks."""
    answer = measure_out_of_domain(answer) if wants_out_of_domain(request) else answer
    if wants_npy(request):
        return build_npy_response(answer)
    content = {
        "vectors": answer.vectors,
        "dimensions": answer.target.dimensions,
        "chain": answer.target.chain,
        "space_id": answer.target.space_id,
    }
    return build_json_response(content, answer.build_headers())
