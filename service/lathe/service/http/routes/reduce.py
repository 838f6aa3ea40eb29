"""Route that transforms the caller's vectors by a chain."""

from typing import Any, get_args

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.names import parse_parameter_number
from lathe.service.chains.resolve import InputType, OutputDtype
from lathe.service.codec import NPY, Body, as_vectors, parse_npy
from lathe.service.encoders.embedder import Answer
from lathe.service.errors import BadValueError
from lathe.service.http.answers import build_json_response, build_npy_response, encode_answer, wants_npy
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import BINARY, describe_body, describe_vectors_response
from lathe.service.http.request_body import read_body
from lathe.service.http.routing import StrictDirectRoute
from lathe.service.http.schemas import ReduceBody
from lathe.service.services import Services, ServicesDep

router = APIRouter(route_class=StrictDirectRoute, tags=["vectors"])

QUERY_PARAMETERS = [
    {
        "name": "chain",
        "in": "query",
        "schema": {"type": "string", "examples": ["compact"]},
        "description": "As the field `chain`, for npy bodies.",
    },
    {
        "name": "dimensions",
        "in": "query",
        "schema": {"type": "integer", "examples": [64]},
        "description": "As the field `dimensions`, for npy bodies.",
    },
    *(
        {
            "name": name,
            "in": "query",
            "schema": {"type": "string", "enum": list(get_args(choices)), "examples": [example]},
            "description": f"As the field `{name}`, for npy bodies.",
        }
        for name, choices, example in (("input_type", InputType, "query"), ("output_dtype", OutputDtype, "codes"))
    ),
]


@router.post(
    "/reduce",
    openapi_extra=describe_body(ReduceBody, **{NPY: BINARY}) | {"parameters": QUERY_PARAMETERS},
    responses=describe_vectors_response({"type": "object"}, **{NPY: BINARY}),
    summary="Transform vectors by a chain",
)
async def reduce(request: Request, services: ServicesDep) -> Response:
    """Transform the vectors of a JSON or .npy body by a chain.

    The answer is JSON, or a .npy file if `Accept` asks for it.
    """
    # All in one change of threads, which costs more than a small product.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == NPY:
        return await run_in_threadpool(_reduce_npy, request, services, await read_body(request, services.settings))
    json_body = await read_json(request, services.settings, any_content_type=True)
    return await run_in_threadpool(_reduce_json, request, services, json_body)


def _reduce_json(request: Request, services: Services, json_body: bytes) -> Response:
    body = validate_json(json_body, ReduceBody)
    vectors = as_vectors(body.vectors, services.settings.max_vectors)
    answer = services.embedder.reduce(vectors, body.chain, body.dimensions, body.input_type, body.output_dtype)
    return _respond(request, answer)


def _reduce_npy(request: Request, services: Services, body: Body) -> Response:
    """Transform the vectors of a .npy body by the chain that the query names, and return the response.

    Raises:
        BadValueError: if the query names no chain, `dimensions` is not a number from 1, or another value is unknown.
    """
    chain = request.query_params.get("chain")
    if not chain:
        raise BadValueError("name the chain of a npy body in the query: /reduce?chain=NAME", param="chain")
    value = request.query_params.get("dimensions")
    dimensions = None if value is None else parse_parameter_number(value, "dimensions")
    if dimensions == 0:
        raise BadValueError("dimensions must be at least 1", param="dimensions")
    vectors = parse_npy(body, services.settings.max_vectors)
    input_type: InputType = _read_choice(request, "input_type", get_args(InputType)) or "document"
    output_dtype: OutputDtype | None = _read_choice(request, "output_dtype", get_args(OutputDtype))
    return _respond(request, services.embedder.reduce(vectors, chain, dimensions, input_type, output_dtype))


def _read_choice(request: Request, name: str, choices: tuple[Any, ...]) -> Any:
    value = request.query_params.get(name)
    if value is not None and value not in choices:
        raise BadValueError(f"{name} must be one of {', '.join(choices)}, not {value[:40]!r}", param=name)
    return value


def _respond(request: Request, answer: Answer) -> Response:
    if wants_npy(request):
        return build_npy_response(answer)
    content = {
        "vectors": encode_answer(answer, "float"),
        "dimensions": answer.target.dimensions,
        "chain": answer.target.chain,
        "space_id": answer.target.space_id,
    }
    return build_json_response(content, answer.build_headers())
