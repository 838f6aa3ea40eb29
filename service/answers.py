"""Responses whose bodies are serialized off the event loop, and their OpenAPI descriptions."""

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
"""OpenAPI responses that any route may give besides its own; declared instead of FastAPI's validation error."""

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
    """Return the OpenAPI `responses` of a route that answers with vectors: 200 with its headers, and the errors.

    Args:
        schema: JSON schema of the JSON body.
        more: other media types of the body, by name.
    """
    content = {JSON: {"schema": schema}} | more
    return {**ERRORS, 200: {"description": "Vectors", "headers": VECTOR_HEADERS, "content": content}}


async def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Serialize the content, which may hold NumPy arrays, to a JSON response in a thread, off the event loop."""
    return Response(await run_in_threadpool(dump_json, content), status, headers, media_type=JSON)


async def job_answer(job_id: str) -> Response:
    """Return the 202 response for a queued job: its id and the URL of its status, also in the `location` header."""
    url = f"/jobs/{job_id}"
    return await json_answer({"job_id": job_id, "status_url": url}, 202, {"location": url})


def json_bytes(content: Any, headers: dict[str, str]) -> Response:
    """Serialize the content, which may hold NumPy arrays, to a JSON response with status 200, in the calling thread."""
    return Response(dump_json(content), 200, headers, media_type=JSON)


def npy_answer(answer: Answer) -> Response:
    """Serialize vectors to a .npy response in the calling thread; if the chain has a quantizer, its codes instead."""
    return Response(dump_npy(answer.target.codes(answer.vectors)), 200, answer.headers(), media_type=NPY)


def wants_npy(request: Request) -> bool:
    """Return whether the request's `Accept` header names the .npy media type."""
    return NPY in request.headers.get("accept", "").lower()
