"""Middleware around every request: request id, metrics, log line, and an error response for unhandled exceptions.

A server whose routes lie below a path prefix: https://example.org/lathe/embed for /embed.

proxy that passes the path on ── /lathe/embed ──┐
                                                ├──► the path with `root_path`, which Starlette takes off for routing
proxy that strips the prefix ─── /embed ────────┘    and keeps in redirects and in the OpenAPI document

Load shedding: texts are refused before they are read while no encoder can accept them.

Reading, routing and checking a request costs most of a millisecond. A server that is sent several times what its
encoders can do would spend its cores on that, and accepted requests would wait behind the bodies of others.
"""

import logging
import random
import re
import time
import traceback
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lathe.service.codec import dump_json
from lathe.service.encoders.embedder import Embedder
from lathe.service.errors import OverloadedError, ServiceError, convert_error, error_body
from lathe.service.logs import log_context, log_event

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
"""HTTP methods that metrics distinguish; the parser knows thirty more, and callers choose them."""

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
BYTES = re.compile(rb"[0-9]{1,18}")
UNKNOWN = "unknown"
"""Route label of requests that match no route, or a route with another method, which would each add a metric series."""

NO_FRAMES = (b"x-frame-options", b"DENY")
"""Header by which no page of another origin frames an answer: the pages of the API have buttons."""

LOGGED_HEADERS = {b"x-chain": "chain", b"x-dimensions": "dimensions", b"x-ignored-fields": "ignored"}

REQUESTS = Counter("lathe_requests_total", "Requests answered", ["method", "route", "status"])
SECONDS = Histogram("lathe_request_seconds", "Time from the first byte in to the last byte out", ["method", "route"])

log = logging.getLogger(__name__)


class RequestMiddleware:
    """Middleware that gives each request an id, counts and logs it, and answers unhandled exceptions with an error."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on an HTTP request with an id, convert unhandled exceptions, and log and count the request.

        An unhandled exception is logged and, if no response has begun, answered with the error it converts to. Log
        lines of the request hold its id. Other scopes are passed on unchanged.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        if scope["method"] == "HEAD" and not scope["path"].endswith("/events"):  # which has no end
            scope = {**scope, "method": "GET"}  # the server itself leaves the body out
        with log_context(request_id=exchange.request_id):
            try:
                await self.app(scope, exchange.watch(receive), exchange.send)
            except Exception as error:
                _log_failure(error)
                # Once a response has begun, its status cannot be changed.
                if exchange.status == 0:
                    await send_error(convert_error(error), exchange.send)
            finally:
                exchange.end()


class _Exchange:
    """A request and the state of its response, from which metrics and the log line are made.

    Neither gets texts, paths, queries or keys.

    Attributes:
        request_id: id the client sent, if valid, else a random one.
        status: status of the response; 0 until it begins.
        holds_body_back: whether the client waits for `100 Continue` before it sends its body.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.send_to_client = send
        self.request_headers: dict[bytes, bytes] = dict(scope["headers"])
        self.response_headers: dict[bytes, bytes] = {}
        client_id = self.request_headers.get(b"x-request-id", b"")
        if REQUEST_ID.fullmatch(client_id):
            self.request_id = client_id.decode()
        else:
            # The id is not a secret, so no system call asks the kernel for the bits.
            self.request_id = f"{random.getrandbits(128):032x}"  # noqa: S311
        self.status = 0
        self.holds_body_back = self.request_headers.get(b"expect", b"").lower() == b"100-continue"
        self.begun = time.perf_counter()

    def watch(self, receive: Receive) -> Receive:
        """Return `receive`, or a wrapper that notes when the app first reads a body that the client holds back.

        Reading the body makes the server send `100 Continue`. `holds_body_back` is false from then on.
        """
        if not self.holds_body_back:
            return receive

        async def receive_body() -> Message:
            self.holds_body_back = False
            return await receive()

        return receive_body

    async def send(self, message: Message) -> None:
        """Send a message of the response, with the request id and security headers, and redirects made relative.

        The id is the header `x-request-id`. If the client still holds its body back, the connection is closed: it need
        not send the body any more, and what it sends next could not be told from it.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), (b"x-request-id", self.request_id.encode()), NO_FRAMES]
            if self.holds_body_back:
                headers.append((b"connection", b"close"))
            if 300 <= self.status < 400:
                headers = [(name, _remove_host(value) if name == b"location" else value) for name, value in headers]
            self.response_headers = dict(headers)
            message["headers"] = headers
        await self.send_to_client(message)

    def end(self) -> None:
        # The path template of the matched route, never the raw path, which callers choose.
        method, route = self.scope["method"], getattr(self.scope.get("route"), "path", None) or UNKNOWN
        seconds = time.perf_counter() - self.begun
        # Callers choose methods and paths, and each new label would be a series of its own.
        labels = method if method in METHODS else "other", UNKNOWN if self.status == 405 else route
        counter, histogram = _get_metrics(*labels, self.status)
        counter.inc()
        histogram.observe(seconds)
        level = logging.DEBUG if is_probe(route) else logging.INFO
        if log.isEnabledFor(level):
            fields = {"method": method, "route": route, "status": self.status, "milliseconds": round(seconds * 1000, 3)}
            log_event(log, level, "request", fields | self._collect_sizes())

    def _collect_sizes(self) -> dict[str, Any]:
        """Return log fields on the request's body bytes and the chain and dimensions of its response.

        Fields whose header is missing are left out.
        """
        length = self.request_headers.get(b"content-length", b"")
        fields: dict[str, Any] = {"bytes_in": int(length)} if BYTES.fullmatch(length) else {}
        for header, name in LOGGED_HEADERS.items():
            if header in self.response_headers:
                value = self.response_headers[header].decode("latin-1")
                fields[name] = int(value) if value.isdecimal() else value
        return fields


@cache
def _get_metrics(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    """Return `(counter, histogram)` of requests with these labels. Prometheus finds them more slowly than it counts."""
    return REQUESTS.labels(method, route, str(status)), SECONDS.labels(method, route)


def _remove_host(location: bytes) -> bytes:
    """Return the target of a redirect without scheme and host, which the caller could choose."""
    _, _, path, query, _ = urlsplit(location)
    return b"/" + path.lstrip(b"/") + (b"?" + query if query else b"")


def is_probe(path: str) -> bool:
    """Return whether a path is a route of health checks or metrics, which monitors request every few seconds."""
    return path == "/metrics" or is_health(path)


def is_health(path: str) -> bool:
    """Return whether a path is a route of a health check, which is allowed under any `Host`."""
    return path == "/health" or path.startswith("/health/")


def _log_failure(error: Exception) -> None:
    """Log the type and stack of an unhandled exception. Its message is left out, as it may quote what a caller sent."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("request failed", extra={"error": type(error).__name__, "frames": frames})


async def send_error(error: ServiceError, send: Send) -> None:
    """Send an error as a complete JSON response through `send`, the ASGI function of the request."""
    body = dump_json(error_body(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.retry_after:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class RootPathMiddleware:
    """Middleware that puts a prefix before the path of each request that does not begin with it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with `root_path` in the scope, and put that prefix before a path that lacks it."""
        if scope["type"] == "http":
            path = scope["path"]
            if not (path == self.root_path or path.startswith(f"{self.root_path}/")):
                path = self.root_path + path
            scope = {**scope, "path": path, "root_path": self.root_path}
        await self.app(scope, receive, send)


def get_path_below_root(scope: Scope) -> str:
    """Return the path of a request without the prefix `root_path` that the scope names, if the path begins with it.

    Ray Serve sets `root_path`, too.
    """
    path: str = scope["path"]
    root_path = scope.get("root_path", "")
    return path.removeprefix(root_path) if root_path and path.startswith(f"{root_path}/") else path


def check_root_path(root_path: str, routes: Iterable[str]) -> None:
    """Raise `ValueError` if one of the server's routes begins with the same segment as the prefix `root_path`.

    A request could then mean two routes.

    Args:
        root_path: the prefix, such as `/lathe`.
        routes: paths of the server's routes.
    """
    first_segment = root_path.split("/")[1]
    route_segments = {route.split("/")[1] for route in routes}
    if first_segment in route_segments:
        raise ValueError(f"LATHE_ROOT_PATH is {root_path}, and the server has routes that begin with /{first_segment}")


DRAINED_BYTES = 256_000_000
"""Maximum bytes of a refused request's body that are read and discarded, so that the client can read the response."""
TAKES_TEXTS = frozenset({"/", "/embed", "/v1/embeddings"})
"""Paths of the routes that only encode texts."""


class SheddingMiddleware:
    """Middleware that answers 429 while every encoder's admission queue is full, before keys or cache are read."""

    def __init__(self, app: ASGIApp, embedder: Embedder) -> None:
        self.app = app
        self.embedder = embedder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 429 to requests to encode texts while the queues of all encoders are full. Pass all others on.

        Requests to encode texts are POST requests to a path of `TAKES_TEXTS`. The body of a refused request is first
        read and discarded, up to `DRAINED_BYTES`. The response says when to try again.
        """
        if scope["type"] != "http" or scope["method"] != "POST" or get_path_below_root(scope) not in TAKES_TEXTS:
            await self.app(scope, receive, send)
            return

        queues = [engine.queue for engine in self.embedder.engines.values()]
        # The body, which names the encoder, is not read yet: one encoder with a free queue lets all requests pass.
        if not all(queue.full for queue in queues):
            await self.app(scope, receive, send)
            return

        scope["route"] = SimpleNamespace(path=get_path_below_root(scope))  # what metrics and logs call it
        undrained = DRAINED_BYTES
        while undrained > 0 and (message := await receive()).get("more_body"):  # else the client's connection is cut
            undrained -= len(message["body"])
        seconds = min(queue.estimate_retry_seconds() for queue in queues)
        await send_error(
            OverloadedError(f"the queues of all encoders are full; try again in {seconds} s", retry_after=seconds), send
        )
