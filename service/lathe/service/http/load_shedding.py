"""Load shedding: texts are refused before they are read while no encoder can accept them.

Reading, routing and checking a request costs most of a millisecond. A server that is sent several times what its
encoders can do would spend its cores on that, and accepted requests would wait behind the bodies of others.
"""

from types import SimpleNamespace

from starlette.types import ASGIApp, Receive, Scope, Send

from lathe.service.encoders.embedder import Embedder
from lathe.service.errors import OverloadedError
from lathe.service.http.middleware import send_error
from lathe.service.http.root_path import get_path_below_root

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
        """Answer 429 to requests to encode texts while the queues of all encoders are full. Pass on all others.

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
