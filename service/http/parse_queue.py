"""Memory limit for bodies that are being parsed: bodies that would exceed it together are queued.

body whole ──► wait() ──► parsed, off the event loop ──► finish(): its texts wait for the encoder, or the answer begins
               one of three queues, by what parsing takes
"""

import asyncio
from collections import deque

PARSED_TIMES = 16
"""Memory for all bodies being parsed, in largest bodies: numbers of three characters take 16 times theirs."""

BYTES_PER_VALUE = 40
"""Bytes of a Python integer or float, and of its slot in a list."""

BYTES_PER_CHARACTER = 4
"""Bytes per character of a Python string with a character beyond U+FFFF; every byte could be a character."""

SHARES = ((1 / 512, 1 / 4), (1 / 8, 1 / 4), (float("inf"), 1.0))
"""Per queue, as shares of the memory for parsing: the largest body of the queue, and all its bodies together.

With bodies of 32 MB: queries and single texts, up to 1 MB; batches, up to 64 MB; everything larger. A body waits only
for bodies of its queue."""


def parsed_bytes(body: bytes) -> int:
    """Return an upper bound of a JSON body's bytes when parsed; commas inside strings count as separators."""
    return BYTES_PER_CHARACTER * len(body) + BYTES_PER_VALUE * body.count(b",")


class ParseQueue:
    """A first-in first-out queue that admits bodies up to `limit` bytes together, and a larger body alone."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.taken = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait until `size` bytes are available, in order of arrival, and reserve them."""
        if not self.waiting and self.has_room(size):
            self.taken += size
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came in the moment in which it was given up
                self.leave(size)
            self.let_in()
            raise

    def leave(self, size: int) -> None:
        """Release `size` bytes and admit waiting bodies."""
        self.taken -= size
        self.let_in()

    def has_room(self, size: int) -> bool:
        """Return whether a body of `size` bytes fits now; one over the limit fits only if no other is admitted."""
        return not self.taken or self.taken + size <= self.limit

    def let_in(self) -> None:
        """Admit waiting bodies in order of arrival, until one does not fit."""
        while self.waiting:
            size, turn = self.waiting[0]
            if not turn.cancelled():
                if not self.has_room(size):
                    return
                self.taken += size
                turn.set_result(None)
            self.waiting.popleft()


class ParseMemory:
    """The parse queues of a server, one for each class of body size."""

    def __init__(self, memory: int) -> None:
        self.queues = [(largest * memory, ParseQueue(share * memory)) for largest, share in SHARES]

    def queue_of(self, size: int) -> ParseQueue:
        """Return the queue for a body that takes `size` bytes when parsed."""
        return next(queue for largest, queue in self.queues if size <= largest)


class ParseTurn:
    """One request's reservation of memory for parsing."""

    def __init__(self, memory: ParseMemory) -> None:
        self.memory = memory
        self.queue: ParseQueue | None = None
        self.size = 0

    async def wait(self, body: bytes) -> None:
        """Wait until the body may be parsed, and reserve its memory."""
        self.size = parsed_bytes(body)
        queue = self.memory.queue_of(self.size)
        await queue.enter(self.size)
        self.queue = queue

    def finish(self) -> None:
        """Release the reserved memory; does nothing the second time."""
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.leave(self.size)
