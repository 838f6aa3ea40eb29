"""Around every request: its id, its metrics, its line in the log, and an answer whatever happens inside."""

import logging
import re
import time
import traceback
import uuid
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from service.codec import dump_json
from service.errors import ServiceError, as_service_error, error_body

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
"""Told apart in metrics; the parser knows thirty more, and callers choose."""

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
BYTES = re.compile(rb"[0-9]{1,18}")
UNKNOWN = "unknown"
"""The route of requests that none takes; a route with a method it does not take would be one more series for each."""
LOGGED_HEADERS = {b"x-chain": "chain", b"x-dimensions": "dimensions"}

REQUESTS = Counter("lathe_requests_total", "Requests answered", ["method", "route", "status"])
SECONDS = Histogram("lathe_request_seconds", "Time from the first byte in to the last byte out", ["method", "route"])

log = logging.getLogger(__name__)


class RequestMiddleware:
    """Gives each request an id, counts and logs it, and answers 500 with our body where nothing else answered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, send)
        with bound_contextvars(request_id=exchange.request_id):
            try:
                await self.app(scope, receive, exchange.send)
            except Exception as error:
                log_failure(error)
                if exchange.status == 0:
                    await send_error(as_service_error(error), exchange.send)
            finally:
                exchange.end()


class Exchange:
    """A request and what was answered so far; its texts, path, query and keys are nowhere kept.

    Attributes:
        request_id: as sent, or made.
        status: 0 until the answer begins.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.pass_on = send
        self.asked: dict[bytes, bytes] = dict(scope["headers"])
        self.answered: dict[bytes, bytes] = {}
        given = self.asked.get(b"x-request-id", b"")
        self.request_id = given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self.status = 0
        self.begun = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Pass the answer on, with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), (b"x-request-id", self.request_id.encode())]
            if 300 <= self.status < 400:
                headers = [(name, local(value) if name == b"location" else value) for name, value in headers]
            self.answered = dict(headers)
            message["headers"] = headers
        await self.pass_on(message)

    def end(self) -> None:
        """Count and log it."""
        method, route = self.scope["method"], route_of(self.scope) or UNKNOWN
        seconds = time.perf_counter() - self.begun
        counted = method if method in METHODS else "other", UNKNOWN if self.status == 405 else route
        REQUESTS.labels(*counted, str(self.status)).inc()
        SECONDS.labels(*counted).observe(seconds)
        level = logging.DEBUG if is_probe(route) else logging.INFO
        if log.isEnabledFor(level):
            told = {"method": method, "route": route, "status": self.status, "milliseconds": round(seconds * 1000, 3)}
            log.log(level, "request", extra=told | self.sizes())

    def sizes(self) -> dict[str, Any]:
        """The length of what came in, and which vectors went out, where the headers say."""
        length = self.asked.get(b"content-length", b"")
        found: dict[str, Any] = {"bytes_in": int(length)} if BYTES.fullmatch(length) else {}
        for header, name in LOGGED_HEADERS.items():
            if header in self.answered:
                value = self.answered[header].decode("latin-1")
                found[name] = int(value) if value.isdecimal() else value
        return found


def route_of(scope: Scope) -> str | None:
    """The template of the route that was found; never the raw path, which is the caller's."""
    return getattr(scope.get("route"), "path", None)


def local(location: bytes) -> bytes:
    """Return where a redirect leads without scheme and host, which would be those that the caller named."""
    _, _, path, query, _ = urlsplit(location)
    return b"/" + path.lstrip(b"/") + (b"?" + query if query else b"")


def is_probe(path: str) -> bool:
    """Whether machines ask for it every few seconds: health and metrics."""
    return path == "/metrics" or is_health(path)


def is_health(path: str) -> bool:
    """Return whether a path tells only how the server is; probes name it as they like."""
    return path == "/health" or path.startswith("/health/")


def log_failure(error: Exception) -> None:
    """Log where an error nobody foresaw came from, without its message, which may quote what a caller sent."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("request failed", extra={"error": type(error).__name__, "frames": frames})


async def send_error(error: ServiceError, send: Send) -> None:
    """Answer with an error."""
    body = dump_json(error_body(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.retry_after:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
