"""Memory limit for the bodies of all requests in flight."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import OverloadedError
from service.http.parse_queue import ParseMemory, ParseTurn

FREE_BYTES = 65_536
"""Bytes up to which a body is not counted and always accepted: most texts are as small, whatever large bodies wait."""


class BodyMemory:
    """Count of the bytes that the bodies of all requests hold, with its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class HeldBody:
    """The bytes that one request's body holds of a `BodyMemory`."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self.counted = 0

    def grow(self, size: int) -> None:
        """Count the body as `size` bytes in total so far; 0 releases its memory.

        Raises:
            OverloadedError: if all bodies together would exceed the limit.
        """
        wanted = size if size > FREE_BYTES else 0
        more = wanted - self.counted
        if more > 0 and self.memory.held + more > self.memory.limit:
            raise OverloadedError(
                f"the bodies of other requests hold the memory there is for them, {self.memory.limit} bytes "
                "(LATHE_BODY_MEMORY_BYTES); try again"
            )
        self.memory.held += more
        self.counted = wanted


class BodyMemoryMiddleware:
    """Middleware that releases a request's body memory when the request ends, and its parse memory when it is answered.

    Args:
        app: handles the requests.
        limit: bytes that all bodies may hold together.
        parsing: bytes that bodies may take while they are parsed.
    """

    def __init__(self, app: ASGIApp, limit: int, parsing: int) -> None:
        self.app = app
        self.memory = BodyMemory(limit)
        self.parsing = ParseMemory(parsing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on one request, with `held_body` and `parse_turn` in its scope, and release both afterwards."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held = scope["held_body"] = HeldBody(self.memory)
        turn = scope["parse_turn"] = ParseTurn(self.parsing)

        async def answer(message: Message) -> None:
            """Release the request's parse memory and send the message on."""
            turn.finish()  # before the first byte is sent: a caller that reads slowly keeps nobody waiting
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            turn.finish()
            held.grow(0)
