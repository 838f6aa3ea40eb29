"""The caller's own vectors through a chain."""

from collections.abc import Callable

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import BINARY, json_bytes, npy_answer, vectors_response, wants_npy
from service.bodies import ReduceBody, declared, parse, read_body, read_unparsed
from service.codec import NPY, as_vectors, parse_npy
from service.embedder import Answer
from service.errors import BadValueError
from service.names import require_number
from service.routes.drift import PARAMETERS, asked, told
from service.services import USE, Services, ServicesDep

router = APIRouter(dependencies=USE, tags=["vectors"])

QUERY = [
    {"name": "chain", "in": "query", "schema": {"type": "string"}, "description": "for npy bodies"},
    {"name": "dimensions", "in": "query", "schema": {"type": "integer"}, "description": "for npy bodies"},
]


@router.post(
    "/reduce",
    openapi_extra=declared(ReduceBody, **{NPY: BINARY}) | {"parameters": [*QUERY, *PARAMETERS]},
    responses=vectors_response({"type": "object"}, **{NPY: BINARY}),
    summary="Take vectors through a chain",
)
async def reduce(request: Request, services: ServicesDep) -> Response:
    """JSON or npy in; JSON or npy out, as `Accept` asks."""
    npy = request.headers.get("content-type", "").partition(";")[0].strip().lower() == NPY
    body = await (read_body if npy else read_unparsed)(request, services.settings)
    return await run_in_threadpool(answer_reduce, reduce_npy if npy else reduce_json, body, request, services)


def answer_reduce(
    read: Callable[[bytes, Request, Services], Answer], body: bytes, request: Request, services: Services
) -> Response:
    """The body's vectors through its chain, in one go: each change of threads costs more than a small product."""
    answer = read(body, request, services)
    answer = told(answer) if asked(request) else answer
    if wants_npy(request):
        return npy_answer(answer)
    content = {
        "vectors": answer.vectors,
        "dimensions": answer.target.dimensions,
        "chain": answer.target.chain,
        "space_id": answer.target.space_id,
    }
    return json_bytes(content, answer.headers())


def reduce_json(body: bytes, _request: Request, services: Services) -> Answer:
    """Vectors and chain from a JSON body."""
    fields = parse(body, ReduceBody)
    vectors = as_vectors(fields.vectors, services.settings.max_vectors)
    return services.embedder.reduce(vectors, fields.chain, fields.dimensions)


def reduce_npy(body: bytes, request: Request, services: Services) -> Answer:
    """Vectors from a .npy body, the chain from the query."""
    chain = request.query_params.get("chain")
    if not chain:
        raise BadValueError("name the chain of a npy body in the query: /reduce?chain=NAME", param="chain")
    wanted = request.query_params.get("dimensions")
    dimensions = None if wanted is None else require_number(wanted, "dimensions")
    if dimensions == 0:
        raise BadValueError("dimensions must be at least 1", param="dimensions")
    vectors = parse_npy(body, services.settings.max_vectors)
    return services.embedder.reduce(vectors, chain, dimensions)
