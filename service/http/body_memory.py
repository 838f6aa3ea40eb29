"""Memory for the bodies of all requests in flight."""

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import OverloadedError

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
    """Gives back what a request's body held when the request ends, however it ends."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.memory = BodyMemory(limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held = scope["held_body"] = HeldBody(self.memory)
        try:
            await self.app(scope, receive, send)
        finally:
            held.grow(0)
