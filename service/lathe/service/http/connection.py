"""Limits on a connection, checked before the application sees a request.

accepted ──► head of a request ──► its body ─────► answer ─────────► next head, or closed after KEEP_ALIVE_SECONDS
  │ 503        │ 408 414 431         │ 408           │ closed
  too many     HEAD_SECONDS          body_seconds    a client that takes less than SENT_BYTES
  connections  HEAD_BYTES                            of it in SENT_SECONDS
               HEADERS, LINE_BYTES

Seconds count for the whole head or body: sending a byte now and then does not extend them. Deadlines are checked once a
second (`check_connections`), so that requests set no timers.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import Any

from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lathe.service.codec import dump_json
from lathe.service.errors import BadValueError, ServiceError, UnavailableError, error_body
from lathe.service.http.transport import JoinedWrites, Parser, WholeBody

HEAD_BYTES = 65_536
"""Maximum bytes of the request line and headers, of one parsed piece, and between two pieces of a body."""

HEADERS = 100
"""Maximum number of headers, as in Apache, gunicorn and hyper (which text-embeddings-inference uses)."""

LINE_BYTES = 8_192
"""Maximum bytes of a path with its query, as in Apache and nginx."""

MAX_PIPELINED = 16
"""Maximum requests that a connection may send ahead of the response to an earlier one; no normal client sends more."""

HEAD_SECONDS = 30.0
"""Seconds in which a request's head must be complete."""
SENT_SECONDS, SENT_BYTES = 30.0, 1_000_000
"""Seconds in which a client must take `SENT_BYTES` of a finished response, or the rest of it."""
LINGER_SECONDS = 2.0
"""Seconds in which a refused client can read why: closing at once, while it still sends, would reset the connection."""

LOG_SECONDS = 60.0
"""Minimum seconds between two log lines about refused connections."""

REFUSED = Counter("lathe_connections_refused_total", "Connections ended before their request was served", ["reason"])

log = logging.getLogger(__name__)


@dataclass
class ConnectionLimits:
    """Limits and counts that all connections of a server share.

    Attributes:
        connections: maximum number of open connections.
        body_seconds: maximum seconds from the end of a request's head to the end of its body.
        descriptors: maximum number of open files and sockets of this process; None if unknown.
        logged_at: time of the last log line about refused connections, in seconds of `time.monotonic`.
        idle: connections between two requests, the one that is idle for longest first.
    """

    connections: int
    body_seconds: float
    descriptors: int | None = None
    logged_at: float = field(default=-LOG_SECONDS, repr=False)
    idle: "dict[Connection, None]" = field(default_factory=dict, repr=False)

    @property
    def spare(self) -> int:
        """Number of file descriptors that connections may not use, because answering requests opens files."""
        return 0 if self.descriptors is None else self.descriptors // 8

    @property
    def backlog(self) -> int:
        """Number of connections that may wait to be accepted.

        All of them are accepted before one can be refused, so they must fit into the spare descriptors.
        """
        return 2048 if self.descriptors is None else max(16, min(2048, self.spare))

    def find_reason_to_refuse(self, connections: int, descriptor: int) -> str | None:
        """Return why one more connection must be refused, or None if it may stay.

        Idle connections are closed to make room for it.

        Args:
            connections: number of open connections, including this one.
            descriptor: descriptor of its socket. The system assigns the lowest free number, so it tells how full the
                table is, whatever fills it.
        """
        if connections > self.connections:
            closing, reason = 1, f"all of its {self.connections:,} are in use (LATHE_MAX_CONNECTIONS)"
        elif self.are_scarce(descriptor, self.spare):
            # The next connections get the low numbers of those that are closed: closing one each time, all numbers
            # would be in use before the highest shows it again.
            closing = self.spare
            reason = (
                f"7/8 of the {self.descriptors:,} files and sockets that it may open are in use (ulimit -n), of which "
                "each index takes nine"
            )
        else:
            return None
        if not self.idle:
            return reason
        for connection in [*islice(self.idle, closing)]:  # those that are idle for longest: dicts keep the order
            del self.idle[connection]
            REFUSED.labels("idle").inc()
            connection.transport.close()
        return None

    def are_scarce(self, descriptor: int, spare: int) -> bool:
        """Return whether fewer than `spare` file descriptors are free above this one, False if the limit is unknown."""
        return self.descriptors is not None and descriptor >= self.descriptors - spare

    def log_refusal(self, connections: int) -> None:
        """Log that new connections are refused, at most once in `LOG_SECONDS`, with the number of open connections."""
        now = time.monotonic()
        if now - self.logged_at >= LOG_SECONDS:
            self.logged_at = now
            fields = {"connections": connections, "max_connections": self.connections, "descriptors": self.descriptors}
            log.warning("too many connections; new ones are answered 503", extra=fields)


class Connection(HttpToolsProtocol):
    """A connection of HTTP/1.1 that is ended when its requests are too large, too slow or too many.

    Attributes:
        deadline: time of the event loop by which the head or body in progress must be complete; None if neither is
            awaited.
        unread: bytes received since the last complete head or piece of a body.
    """

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.parser: Parser = Parser(self)
        self.limits = limits
        self.deadline: float | None = None
        self.unread = 0
        self.progressed = False
        self.refused = False
        self.refusal: ServiceError | None = None
        self.unsent, self.unsent_since = 0, 0.0
        self.whole_body: WholeBody | None = None
        self.skipping = False

    def connection_made(self, transport: Any) -> None:
        """Accept a new connection and start its first time limit.

        If there are too many, idle ones are closed, or else the new one is answered 503. A refused connection is
        logged, and closed after `LINGER_SECONDS`, or at once if descriptors are nearly used up.
        """
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self.deadline = self.loop.time() + HEAD_SECONDS
        descriptor = transport.get_extra_info("socket").fileno()
        if (reason := self.limits.find_reason_to_refuse(len(self.connections), descriptor)) is not None:
            self.limits.log_refusal(len(self.connections))
            self.refuse(
                UnavailableError(f"the server accepts no more connections: {reason}", code="too_many_connections")
            )
            if self.limits.are_scarce(descriptor, self.limits.spare // 2):
                transport.close()  # refused connections that linger would use up the descriptors

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and refuse the request if its line and headers exceed `HEAD_BYTES`.

        The bytes are parsed in pieces of at most `HEAD_BYTES`. The first bytes after a request start the time limit of
        the next head. After a refusal, bytes are dropped.
        """
        self.limits.idle.pop(self, None)
        if self.deadline is None:
            self.deadline = self.loop.time() + HEAD_SECONDS
        for piece in _split(data):
            if self.refused or self.transport.is_closing():
                return
            super().data_received(piece)
            self.unread = 0 if self.progressed else self.unread + len(piece)
            self.progressed = False
            if self.unread > HEAD_BYTES:
                message = f"the request line and headers are larger than {HEAD_BYTES} bytes"
                self.refuse(ServiceError(message, status=431))

    def on_headers_complete(self) -> None:
        """Begin the request whose headers were parsed, and start the time limit of its body.

        Raises:
            ServiceError: for over `HEADERS` headers, a path and query over `LINE_BYTES`, or over `MAX_PIPELINED`
                requests sent ahead. It is stored as `refusal`; the parser then stops and calls `send_400_response`.
        """
        self.progressed = True
        if len(self.headers) > HEADERS:
            self.refusal = ServiceError(
                f"this request has {len(self.headers)} headers; at most {HEADERS} are allowed", status=431
            )
        elif len(self.url) > LINE_BYTES:
            self.refusal = ServiceError(
                f"path and query have {len(self.url)} bytes; at most {LINE_BYTES} are allowed", status=414
            )
        elif len(self.pipeline) >= MAX_PIPELINED:
            self.refusal = BadValueError(
                f"at most {MAX_PIPELINED} requests may be sent before the response to an earlier one",
                code="too_many_pipelined",
            )
        if self.refusal is not None:
            raise self.refusal
        if self.parser.has_offer:  # the head comes again without it
            return
        super().on_headers_complete()
        scope: Any = self.cycle.scope
        scope["connection"] = self
        self.headers = []  # the request has its own; those that follow a chunked body must not join them
        self.deadline = self.loop.time() + self.limits.body_seconds

    def on_body(self, body: bytes) -> None:
        """Pass a piece of a body on, and note that the request progresses."""
        self.progressed = True
        if not self.skipping:
            super().on_body(body)

    async def read_whole_body(self, scope: Any, length: int, on_size: Callable[[int], None]) -> memoryview | None:
        """Receive the whole body of a request into one buffer, or return None if it must be read as a stream.

        It must if the request is not the one that is received now, or if nothing of the body is missing.

        Args:
            scope: the request's scope.
            length: bytes of the body.
            on_size: called with the bytes received so far; what it raises ends the reading.

        Raises:
            ClientDisconnect: if the client disconnects before the end.
        """
        cycle = self.cycle
        if cycle.scope is not scope or not cycle.more_body or cycle.disconnected or len(cycle.body) > length:
            return None
        if cycle.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        on_size(len(cycle.body))  # what it raises changes nothing here
        self.whole_body = WholeBody(self, length, cycle.body, on_size)
        cycle.body = bytearray()
        return await self.whole_body.wait()

    def end_whole_body(self) -> None:
        """End a request whose body was received past the parser.

        The parser, which still expects the body, is replaced.
        """
        self.parser = Parser(self)
        self.on_message_complete()

    def skip_body(self, received: memoryview) -> None:
        """Let the parser read over the body of an ended request, so that it finds the next request's head."""
        self.skipping = True
        try:
            for piece in _split(received):
                self.parser.feed_data(piece)
        finally:
            self.skipping = False

    def on_message_complete(self) -> None:
        """End the request whose body was parsed. There is no time limit until the next request begins."""
        self.progressed = True
        if self.parser.has_offer:
            return
        self.deadline = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next request if the client sent one ahead, or count the connection as idle."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and self.deadline is None:
            self.limits.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the running request as if its client had disconnected, and free the connection's memory."""
        self.limits.idle.pop(self, None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # after a reset, uvicorn's timer would hold the connection until it fires

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed (400) or that exceeded a limit (the status of that limit)."""
        self.refuse(self.refusal or BadValueError(msg, code="malformed_request"))

    def refuse(self, error: ServiceError) -> None:
        """Answer the client with an error, count the refusal, and close the connection after `LINGER_SECONDS`.

        If the response to a request has begun, or its whole body was received, close at once without the error. A
        request whose body is incomplete is ended as if its client had disconnected. A second refusal does nothing.
        """
        if self.refused:
            return
        self.refused = True
        REFUSED.labels(error.code).inc()
        if self.whole_body is not None:
            self.whole_body.stop()
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or not self.cycle.more_body:  # another response has begun
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.deadline = self.loop.time() + LINGER_SECONDS
        self.flow.resume_reading()  # further bytes are dropped; unread, they would reset the connection
        self.transport.write(_serialize_response(error))
        self.transport.write_eof()

    def check(self, now: float) -> None:
        """End the connection if it is past its time limit or its client reads too slowly. Called once a second."""
        if self.deadline is not None and now > self.deadline:
            self._time_out()
        elif now - self.unsent_since > SENT_SECONDS:
            self._check_response(now)

    def _time_out(self) -> None:
        """End a connection that is past its time limit: with a 408 if a request has begun, else silently.

        It is aborted if it was refused before. Nothing happens while the server itself keeps the request waiting.
        """
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.refused:
            self.transport.abort()
        # The whole body is here, or the server itself reads no more of it now: the client is not late.
        elif answering and (not self.cycle.more_body or self.flow.read_paused):
            return
        elif answering:
            seconds = self.limits.body_seconds
            message = f"the body was not complete after {seconds:g} s (LATHE_BODY_SECONDS)"
            self.refuse(ServiceError(message, status=408))
        elif self.unread:
            message = f"the headers were not complete after {HEAD_SECONDS:g} s"
            self.refuse(ServiceError(message, status=408))
        else:  # no request has begun, or it was answered before its body came
            REFUSED.labels("idle").inc()
            self.transport.close()

    def _check_response(self, now: float) -> None:
        """Abort the connection if its client took under `SENT_BYTES` of a response since the last check.

        Aborted connections are counted. Only finished responses count. Their unsent bytes and the time `now` are stored
        for the next check.
        """
        unsent_before, self.unsent_since = self.unsent, now
        self.unsent = 0
        # An unfinished response may be slow because the server is.
        if self.cycle is not None and self.cycle.response_complete:
            self.unsent = self.transport.get_write_buffer_size()
        if unsent_before and self.unsent and unsent_before - self.unsent < SENT_BYTES:
            REFUSED.labels("unread_answer").inc()
            self.transport.abort()


def _split(data: bytes | memoryview) -> Iterable[Any]:
    """Return the data in pieces of at most `HEAD_BYTES`, without copying them."""
    if len(data) <= HEAD_BYTES:
        return (data,)
    # Slices of bytes would be copies, slices of a view are not.
    view = memoryview(data)
    return (view[start : start + HEAD_BYTES] for start in range(0, len(data), HEAD_BYTES))


def _serialize_response(error: ServiceError) -> bytes:
    body = dump_json(error_body(error))
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", "connection: close"]
    if error.retry_after:
        lines.append(f"retry-after: {error.retry_after}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def check_connections(connections: Iterable[object], now: float) -> None:
    """Call `check` on each connection, which ends it if it is past its time limit or reads too slowly.

    Args:
        connections: connections of the server; objects that are not a `Connection` are skipped.
        now: time of the event loop.
    """
    for connection in tuple(connections):
        if isinstance(connection, Connection):
            connection.check(now)


def get_descriptor_limit() -> int | None:
    """Return how many files and sockets this process may open, or None if their number is unlimited or unknown."""
    with suppress(ImportError, OSError):  # not on Windows
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return None if soft == resource.RLIM_INFINITY else soft
    return None
