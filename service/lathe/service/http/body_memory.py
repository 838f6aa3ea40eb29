"""Memory limit for the bodies of all requests in flight."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lathe.service.errors import OverloadedError
from lathe.service.http.parse_queue import ParseMemory, ParseReservation

FREE_BYTES = 65_536
"""Bytes up to which a body is not counted and always accepted: most requests are that small."""


class BodyMemory:
    """Count of the bytes that the bodies of all requests hold, with its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class HeldBody:
    """The bytes of a `BodyMemory` that one request's body holds."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self.counted = 0

    def resize(self, size: int) -> None:
        """Set how many bytes the request's body holds. Raise if the bodies of all requests exceed their limit.

        Args:
            size: bytes of the body; 0 releases its memory. Up to `FREE_BYTES` are not counted.

        Raises:
            OverloadedError: if all bodies together would exceed the limit.
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


class BodyMemoryMiddleware:
    """Middleware that releases a request's parse memory when the response begins, and its body memory at the end.

    Args:
        limit: bytes that all bodies may hold together.
        parse_limit: bytes that bodies may take together while they are parsed.
    """

    def __init__(self, app: ASGIApp, limit: int, parse_limit: int) -> None:
        self.app = app
        self.body_memory = BodyMemory(limit)
        self.parse_memory = ParseMemory(parse_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with memory accounting for the request's body, and release the memory afterwards.

        `held_body` and `parse_reservation` are put in the scope of an HTTP request. The reservation is released when
        the response begins, the body's memory when the app ends, also by an error. Other scopes, such as the lifespan,
        are passed on unchanged.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        held = scope["held_body"] = HeldBody(self.body_memory)
        reservation = scope["parse_reservation"] = ParseReservation(self.parse_memory)

        async def release_and_send(message: Message) -> None:
            reservation.release()  # before the first byte is sent: no request waits for a client that reads slowly
            await send(message)

        try:
            await self.app(scope, receive, release_and_send)
        finally:
            reservation.release()
            held.resize(0)
