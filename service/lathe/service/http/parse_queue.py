"""Memory limit for bodies that are being parsed: bodies that would exceed it together are queued.

whole body ──► wait() ──► parsed, off the event loop ──► release(): its texts wait for the encoder, or the response
               one of three queues, by estimated size       begins
"""

import asyncio
from collections import deque

SHARES = ((1 / 512, 1 / 4), (1 / 8, 1 / 4), (float("inf"), 1.0))
"""Per queue, as shares of the memory for parsing: the largest body of the queue, and all its bodies together.

With bodies of 32 MB: queries and single texts, up to 1 MB; batches, up to 64 MB; everything larger. A body waits only
for bodies of its queue."""


class ParseQueue:
    """A first-in first-out queue that admits bodies up to `limit` bytes together, and a larger body alone."""

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
        """Release `size` bytes and admit waiting bodies."""
        self.reserved -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        """Return whether a body of `size` bytes fits now.

        A body larger than the limit fits only if no other is admitted.
        """
        return not self.reserved or self.reserved + size <= self.limit

    def _admit(self) -> None:
        """Admit waiting bodies in order of arrival until one does not fit. Cancelled ones are dropped."""
        while self.waiting:
            size, admitted = self.waiting[0]
            if not admitted.cancelled():
                if not self._fits(size):
                    return
                self.reserved += size
                admitted.set_result(None)
            self.waiting.popleft()


class ParseMemory:
    """The memory of a server for parsing bodies, divided among a parse queue for each class of body size."""

    def __init__(self, memory: int) -> None:
        self.queues = [(largest * memory, ParseQueue(share * memory)) for largest, share in SHARES]

    def find_queue(self, size: int) -> ParseQueue:
        """Return the queue for a body that takes `size` bytes when parsed."""
        return next(queue for largest, queue in self.queues if size <= largest)


class ParseReservation:
    """One request's reservation of memory for parsing its body."""

    def __init__(self, memory: ParseMemory) -> None:
        self.memory = memory
        self.queue: ParseQueue | None = None
        self.size = 0

    async def wait(self, size: int) -> None:
        """Wait until the server has memory to parse a body of `size` bytes, and reserve it."""
        self.size = size
        queue = self.memory.find_queue(size)
        await queue.enter(size)
        self.queue = queue

    def release(self) -> None:
        """Release the reserved memory, so that waiting bodies are admitted. A second call does nothing."""
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.leave(self.size)
