"""Reading of a request's body, decompressed if it is, within the limits of size and memory."""

import zlib
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from lathe.service.codec import Body
from lathe.service.errors import BadValueError, ServiceError, TooLargeError
from lathe.service.http.body_memory import FREE_BYTES, HeldBody
from lathe.service.http.connection import Connection
from lathe.service.settings import Settings

DRAINED_BODIES = 8
"""Multiple of the size limit up to which an oversized body is read and discarded: a client that is still sending would
otherwise see its connection cut instead of the 413."""

CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Values of `Content-Encoding` that are decoded. The stream's own header says which of the two formats it has."""

INFLATED_BYTES = 1_000_000
"""Maximum bytes of a decompressed piece: the memory of a piece is counted only once it is there."""


async def read_body(request: Request, settings: Settings) -> Body:
    """Read the whole request body, decompressed, and return its bytes. Raise if it exceeds the size limit.

    Its bytes count against the memory for all bodies. A body with `Content-Encoding: gzip` or `deflate` is
    decompressed, and the limits are those of its decompressed bytes.

    Raises:
        TooLargeError: if the body is over the size limit; up to `DRAINED_BODIES` times the limit is read and discarded.
            If the client asked whether to send it (`Expect: 100-continue`), nothing is read.
        OverloadedError: if the bodies of all requests together would exceed their memory limit.
        BadValueError: if the body is not in the format that `Content-Encoding` names.
        ServiceError: 415 for another content encoding; 499 if the client disconnected before the body was complete.
    """
    limit = settings.max_body_bytes

    coding = _read_coding(request)
    if _read_length(request) > limit and request.headers.get("expect", "").lower() == "100-continue":
        raise TooLargeError(f"the body is larger than {limit} bytes")

    held: HeldBody = request.scope["held_body"]
    declared = _read_length(request)
    connection: Connection | None = request.scope.get("connection")
    if connection is not None and not coding and FREE_BYTES < declared <= limit:
        try:
            whole = await connection.read_whole_body(request.scope, declared, held.resize)
        except ClientDisconnect:
            raise ServiceError("the client disconnected", status=499) from None
        if whole is not None:
            return whole

    chunks: list[bytes] = []
    size = 0
    async for chunk in stream_body(request):
        size += len(chunk)
        if size <= limit:
            held.resize(size)
            chunks.append(chunk)
        elif coding or size > limit * DRAINED_BODIES:
            break
        else:
            chunks.clear()
            held.resize(0)

    if size > limit:
        raise TooLargeError(f"the body is larger than {limit} bytes{' when decompressed' if coding else ''}")
    return b"".join(chunks)


async def stream_body(request: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of a request's body, decompressed.

    Raises:
        BadValueError: if the body is not in the format that `Content-Encoding` names.
        ServiceError: 415 for another content encoding; 499 if the client disconnected before the body was complete.
    """
    try:
        async for piece in _inflate(request) if _read_coding(request) else request.stream():
            yield piece
    except ClientDisconnect:
        raise ServiceError("the client disconnected", status=499) from None


def _read_coding(request: Request) -> str:
    """Return the body's content coding, `gzip` or `deflate`, or an empty string if it has none.

    Raises:
        ServiceError: 415 for another coding, or several.
    """
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in CODINGS:
        raise ServiceError(f"the content-encoding must be gzip or deflate, not {coding[:80]!r}", status=415)
    return coding


def _read_length(request: Request) -> int:
    """Return how many bytes the head says the body has, 0 if it does not say so."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else 0


async def _inflate(request: Request) -> AsyncIterator[bytes]:
    """Yield the decompressed request body in pieces of at most `INFLATED_BYTES`.

    Each is decompressed in a thread.

    Raises:
        BadValueError: if the body is no gzip or zlib stream, or not exactly one.
    """
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: either header
    async for chunk in request.stream():
        piece = b""
        while chunk or len(piece) == INFLATED_BYTES:  # a full piece may leave more in the stream
            try:
                piece = await run_in_threadpool(stream.decompress, chunk, INFLATED_BYTES)
            except zlib.error as error:
                raise BadValueError(f"the body cannot be decompressed: {error}", code="malformed_body") from None
            yield piece
            if stream.unused_data:
                message = "the body cannot be decompressed: bytes follow the end of its gzip or deflate stream"
                raise BadValueError(message, code="malformed_body")
            chunk = stream.unconsumed_tail
    if not stream.eof:
        raise BadValueError("the body cannot be decompressed: it ends before its stream does", code="malformed_body")
