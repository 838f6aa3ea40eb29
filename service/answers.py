"""Answers: bytes made off the event loop, and their place in the OpenAPI."""

from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.codec import JSON, NPY, dump_json, dump_npy
from service.embedder import Answer


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """Every error's body."""

    error: ErrorDetail
    error_type: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
}
"""What any route may answer beside its own; declared in place of FastAPI's validation error."""

OUT_OF_DOMAIN = "x-out-of-domain"

VECTOR_HEADERS = {
    name: {"schema": {"type": "string"}, "description": text}
    for name, text in {
        "x-space-id": "vectors with the same id are comparable",
        "x-chain": "name@version, or none",
        "x-dimensions": "of each vector",
        "x-request-id": "as sent, or made",
        "x-queue-time": "milliseconds",
        "x-inference-time": "milliseconds",
        OUT_OF_DOMAIN: "if asked for: the mean percentile of the rows among those held out when the chain was fitted, "
        "0.500 as fitted; or unknown",
    }.items()
}


BINARY = {"schema": {"type": "string", "format": "binary"}}


def vectors_response(schema: dict[str, Any], **more: Any) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI of an answer with vectors."""
    content = {JSON: {"schema": schema}} | more
    return {**ERRORS, 200: {"description": "Vectors", "headers": VECTOR_HEADERS, "content": content}}


async def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON of anything, arrays included."""
    return Response(await run_in_threadpool(dump_json, content), status, headers, media_type=JSON)


async def job_answer(job_id: str) -> Response:
    """202 with where to watch a job that was queued."""
    url = f"/jobs/{job_id}"
    return await json_answer({"job_id": job_id, "status_url": url}, 202, {"location": url})


def json_bytes(content: Any, headers: dict[str, str]) -> Response:
    """JSON of anything, arrays included, made in the thread of the caller."""
    return Response(dump_json(content), 200, headers, media_type=JSON)


def npy_answer(answer: Answer) -> Response:
    """Vectors as a .npy file, made in the thread of the caller; codes, where the chain makes them."""
    return Response(dump_npy(answer.target.codes(answer.vectors)), 200, answer.headers(), media_type=NPY)


def wants_npy(request: Request) -> bool:
    """Whether the caller asks for a .npy file."""
    return NPY in request.headers.get("accept", "").lower()
