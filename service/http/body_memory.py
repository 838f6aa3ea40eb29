"""Memory for the bodies of all requests in flight."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import OverloadedError
from service.http.parse_queue import ParseMemory, ParseTurn

FREE_BYTES = 65_536
"""A body up to this size is always taken: most texts are, whatever large bodies wait."""


class BodyMemory:
    """Counts the bytes of bodies that requests hold, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class HeldBody:
    """What one request holds of it."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory = memory
        self.counted = 0

    def grow(self, size: int) -> None:
        """Count that the body has `size` bytes so far; 0 gives back what was counted.

        Raises:
            OverloadedError: if all bodies together would pass the limit.
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
    """Gives back what a request's body held, however the request ends, and what parsing took once it is answered.

    Args:
        app: which handles the requests.
        limit: bytes of all bodies.
        parsing: bytes that bodies may take while they are parsed.
    """

    def __init__(self, app: ASGIApp, limit: int, parsing: int) -> None:
        self.app = app
        self.memory = BodyMemory(limit)
        self.parsing = ParseMemory(parsing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held = scope["held_body"] = HeldBody(self.memory)
        turn = scope["parse_turn"] = ParseTurn(self.parsing)

        async def answer(message: Message) -> None:
            turn.finish()  # before the first byte is sent: a caller that reads slowly keeps nobody waiting
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            turn.finish()
            held.grow(0)
