"""Responses, serialized off the event loop."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lathe.service.codec import JSON, NPY, EncodingFormat, dump_json, dump_npy, encode_rows
from lathe.service.encoders.embedder import Answer
from lathe.service.jobs.job import ResultFile


async def answer_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Serialize the content, which may hold NumPy arrays, in a thread, and return it as a JSON response."""
    return Response(await run_in_threadpool(dump_json, content), status, headers, media_type=JSON)


async def answer_job(job_id: str) -> Response:
    """Return a 202 response for a queued job, with the job's id and the URL of its status.

    The URL is also in the `location` header.
    """
    url = f"/jobs/{job_id}"
    return await answer_json({"job_id": job_id, "status_url": url}, 202, {"location": url})


def stream_file(file: ResultFile, media_type: str, headers: dict[str, str]) -> Response:
    """Return a response with status 200 that sends a file piece by piece, so that memory never holds all of it."""
    return StreamingResponse(file.pieces, 200, {"content-length": str(file.size)} | headers, media_type)


def build_json_response(content: Any, headers: dict[str, str]) -> Response:
    """Serialize the content, which may hold NumPy arrays, in the calling thread, and return it as a JSON response."""
    return Response(dump_json(content), 200, headers, media_type=JSON)


def build_npy_response(answer: Answer) -> Response:
    """Return the vectors of an answer as a .npy response, serialized in the calling thread.

    If the request chose no output dtype, documents are sent as byte codes where the chain has a quantizer.
    """
    content = answer.target.encode(answer.vectors, as_codes=True)
    return Response(dump_npy(content), 200, answer.build_headers(as_codes=True), media_type=NPY)


def encode_answer(answer: Answer, encoding_format: EncodingFormat) -> Any:
    """Return the vectors of an answer as rows, numbers or base64, that `dump_json` can write to a JSON response.

    The rows are in the output dtype that was requested, else floats.
    """
    return encode_rows(answer.target.encode(answer.vectors, as_codes=False), encoding_format)


def wants_npy(request: Request) -> bool:
    """Return whether the request's `Accept` header names the .npy media type."""
    return NPY in request.headers.get("accept", "").lower()
