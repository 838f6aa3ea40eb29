"""Reading of a request's body, decompressed if it is, within the limits of size and memory.

One limit is for the bodies of all requests in flight, another for bodies that are being parsed: those that would
exceed it together are queued.

whole body ──► reserve() ──► parsed, off the event loop ──► end_parsing(): its texts wait for the encoder, or the
               one of three queues, by estimated size          response begins
"""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lathe.service.codec import Body
from lathe.service.errors import BadValueError, OverloadedError, ServiceError, TooLargeError
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
    """Read the whole request body and return its bytes, decompressed.

    The bytes count against the memory for all bodies. A body with `Content-Encoding: gzip` or `deflate` is
    decompressed, and the limits apply to the decompressed bytes.

    Raises:
        TooLargeError: if the body is over the size limit; up to `DRAINED_BODIES` times the limit is read and discarded.
            If the client asked whether to send it (`Expect: 100-continue`), nothing is read.
        OverloadedError: if the bodies of all requests together would exceed their memory limit.
        BadValueError: if the body is not in the format that `Content-Encoding` names.
        ServiceError: 415 for another content encoding; 499 if the client disconnected before the body was complete.
    """
    limit = settings.max_body_bytes

    coding, declared = _read_coding(request), _read_length(request)
    if declared > limit and request.headers.get("expect", "").lower() == "100-continue":
        raise TooLargeError(f"the body is larger than {limit} bytes")

    memory: RequestMemory = request.scope["memory"]
    if not coding and 0 < declared <= limit and (whole := await _read_at_once(request, memory, declared)) is not None:
        return whole

    chunks: list[bytes] = []
    size = 0
    async for chunk in stream_body(request):
        size += len(chunk)
        if size <= limit:
            memory.resize(size)
            chunks.append(chunk)
        elif coding or size > limit * DRAINED_BODIES:
            break
        else:
            # Read on and discard, so that the client sees the 413 and not a connection that was reset.
            chunks.clear()
            memory.resize(0)

    if size > limit:
        raise TooLargeError(f"the body is larger than {limit} bytes{' when decompressed' if coding else ''}")
    return b"".join(chunks)


async def _read_at_once(request: Request, memory: "RequestMemory", length: int) -> Body | None:
    connection: Connection | None = request.scope.get("connection")
    try:
        if length <= FREE_BYTES:
            return await request.body()
        if connection is not None:
            return await connection.read_whole_body(request.scope, length, memory.resize)
    except ClientDisconnect:
        raise ServiceError("the client disconnected", status=499) from None
    return None


async def stream_body(request: Request) -> AsyncIterator[bytes]:
    """Yield the pieces of a request's body as they arrive, decompressed.

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
    """Return the body's content coding, such as `gzip`, or an empty string if it has none.

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
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else 0


async def _inflate(request: Request) -> AsyncIterator[bytes]:
    """Yield a compressed request body in decompressed pieces of at most `INFLATED_BYTES`.

    Each is decompressed in a thread.

    Raises:
        BadValueError: if the body is not exactly one gzip or zlib stream.
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


FREE_BYTES = 65_536
"""Bytes up to which a body is not counted, always accepted and parsed at once: most requests are that small."""

SHARES = ((1 / 512, 1 / 4), (1 / 8, 1 / 4), (float("inf"), 1.0))
"""Per queue, as shares of the memory for parsing: the largest body of the queue, and all its bodies together.

With bodies of 32 MB: queries and single texts, up to 1 MB; batches, up to 64 MB; everything larger. A body waits only
for bodies of its queue."""


class ParseQueue:
    """A first-in first-out queue that admits bodies of up to `limit` bytes together, and a larger body alone."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.reserved = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait in order of arrival until `size` bytes are available, and reserve them."""
        # Bodies that wait go first, even if this one would fit.
        if not self.waiting and self._fits(size):
            self.reserved += size
            return
        admitted = asyncio.get_running_loop().create_future()
        self.waiting.append((size, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():  # it was admitted just before it was cancelled
                self.leave(size)
            self._admit()
            raise

    def leave(self, size: int) -> None:
        """Release the `size` bytes of an admitted body, and admit waiting bodies that now fit."""
        self.reserved -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        """Return whether a body of `size` bytes may be admitted now, even over the limit if no other is admitted."""
        return not self.reserved or self.reserved + size <= self.limit

    def _admit(self) -> None:
        """Admit waiting bodies in order of arrival until one does not fit. Cancelled ones are dropped."""
        while self.waiting:
            # Only the first is tried: if small bodies overtook a large one, it might never fit.
            size, admitted = self.waiting[0]
            if not admitted.cancelled():
                if not self._fits(size):
                    return
                self.reserved += size
                admitted.set_result(None)
            self.waiting.popleft()


class BodyMemory:
    """The memory of a server for the bodies of all requests, and for parsing them.

    Args:
        limit: bytes that all bodies may hold together.
        parse_limit: bytes that bodies may take together while they are parsed.
    """

    def __init__(self, limit: int, parse_limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.queues = [(largest * parse_limit, ParseQueue(share * parse_limit)) for largest, share in SHARES]


class RequestMemory:
    """The memory that one request's body holds, and that is reserved for parsing it."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self.counted = 0
        self.queue: ParseQueue | None = None
        self.reserved = 0

    def resize(self, size: int) -> None:
        """Set how many bytes the request's body holds.

        Args:
            size: bytes of the body; 0 releases its memory. Up to `FREE_BYTES` are not counted.
        """
        # A body that grows past the free bytes counts as a whole from then on.
        counted = size if size > FREE_BYTES else 0
        added = counted - self.counted
        if added > 0 and self.memory.held + added > self.memory.limit:
            raise OverloadedError(
                f"the bodies of all requests may hold {self.memory.limit} bytes (LATHE_BODY_MEMORY_BYTES), and this "
                "one does not fit beside the others; try again"
            )

        self.memory.held += added
        self.counted = counted

    async def reserve(self, size: int) -> None:
        """Wait until the server has `size` bytes of memory to parse a body, and reserve them."""
        queue = next(queue for largest, queue in self.memory.queues if size <= largest)
        await queue.enter(size)
        # Stored only now: a request that is cancelled while it waits has reserved nothing.
        self.queue, self.reserved = queue, size

    def end_parsing(self) -> None:
        """Release the memory reserved for parsing, so that waiting bodies are admitted. A second call does nothing.

        What the request still holds of the body must have other limits.
        """
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.leave(self.reserved)


class BodyMemoryMiddleware:
    """Middleware that releases a request's parse memory when the response begins, and its body memory at the end.

    Args:
        limit: bytes that all bodies may hold together.
        parse_limit: bytes that bodies may take together while they are parsed.
    """

    def __init__(self, app: ASGIApp, limit: int, parse_limit: int) -> None:
        self.app = app
        self.memory = BodyMemory(limit, parse_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with memory accounting for the request's body, and release the memory afterwards.

        `memory`, a `RequestMemory`, is put in the scope of an HTTP request. What is reserved for parsing is released
        when the response begins, the body's memory when the app ends, also by an error. Other scopes, such as the
        lifespan, are passed on unchanged.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        memory = scope["memory"] = RequestMemory(self.memory)

        async def release_and_send(message: Message) -> None:
            memory.end_parsing()  # before the first byte is sent: no request waits for a client that reads slowly
            await send(message)

        try:
            await self.app(scope, receive, release_and_send)
        finally:
            memory.end_parsing()
            memory.resize(0)
