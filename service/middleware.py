"""Around every request: its id, its metrics, and an answer whatever happens inside."""

import logging
import re
import time
import uuid

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.codec import dump_json
from service.errors import ServiceError, as_service_error, error_body

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

REQUESTS = Counter("lathe_requests_total", "Requests answered", ["method", "route", "status"])
SECONDS = Histogram("lathe_request_seconds", "Time from the first byte in to the last byte out", ["method", "route"])

log = logging.getLogger(__name__)


class RequestMiddleware:
    """Gives each request an id, counts it, and answers 500 with our body where nothing else answered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        status = 0
        begun = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode("latin-1"))]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            log.error("request %s failed: %s", request_id, type(error).__name__, exc_info=not texts_in(error))
            if status == 0:
                await send_error(as_service_error(error), send_with_id)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")  # never the raw path: it is the caller's
            REQUESTS.labels(scope["method"], route, str(status)).inc()
            SECONDS.labels(scope["method"], route).observe(time.perf_counter() - begun)


def texts_in(error: Exception) -> bool:
    """Whether the error's message may quote what a caller sent."""
    return isinstance(error, ValueError | UnicodeError)


async def send_error(error: ServiceError, send: Send) -> None:
    """Answer with an error."""
    body = dump_json(error_body(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
