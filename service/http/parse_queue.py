"""Memory for the bodies that are being parsed: those that would take too much together wait for their turn.

body whole ──► wait() ──► parsed, off the event loop ──► finish(): its texts wait for the encoder, or the answer begins
               one of three queues, by what parsing takes
"""

import asyncio
from collections import deque

PARSED_TIMES = 16
"""Memory for all bodies under way, in the largest body's size: what numbers of three characters take, parsed."""

BYTES_PER_VALUE = 40
"""An integer or a float of Python, and its place in a list."""

BYTES_PER_CHARACTER = 4
"""A text of Python takes so many for each character if it has one beyond U+FFFF; every byte could be a character."""

SHARES = ((1 / 512, 1 / 4), (1 / 8, 1 / 4), (float("inf"), 1.0))
"""Of that memory: what a body of a queue may take at most, and all of that queue together.

With bodies of 32 MB: queries and single texts, up to 1 MB; batches, up to 64 MB; everything larger. A body waits only
for those like it."""


def parsed_bytes(body: bytes) -> int:
    """Return what a JSON body takes at most, parsed; commas inside texts count as if they parted values."""
    return BYTES_PER_CHARACTER * len(body) + BYTES_PER_VALUE * body.count(b",")


class ParseQueue:
    """Lets bodies in, in the order they came, as long as they take no more than `limit` together; one always may."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.taken = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait until there is room, and take it."""
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
        """Give room back."""
        self.taken -= size
        self.let_in()

    def has_room(self, size: int) -> bool:
        """Return whether a body may be parsed now; one that takes more than the limit is parsed alone."""
        return not self.taken or self.taken + size <= self.limit

    def let_in(self) -> None:
        """Let in those that have waited longest."""
        while self.waiting:
            size, turn = self.waiting[0]
            if not turn.cancelled():
                if not self.has_room(size):
                    return
                self.taken += size
                turn.set_result(None)
            self.waiting.popleft()


class ParseMemory:
    """The queues of all bodies of a server."""

    def __init__(self, memory: int) -> None:
        self.queues = [(largest * memory, ParseQueue(share * memory)) for largest, share in SHARES]

    def queue_of(self, size: int) -> ParseQueue:
        """Return the queue of bodies that take so much."""
        return next(queue for largest, queue in self.queues if size <= largest)


class ParseTurn:
    """What one request takes of the memory for parsing."""

    def __init__(self, memory: ParseMemory) -> None:
        self.memory = memory
        self.queue: ParseQueue | None = None
        self.size = 0

    async def wait(self, body: bytes) -> None:
        """Wait until the request's body may be parsed."""
        self.size = parsed_bytes(body)
        queue = self.memory.queue_of(self.size)
        await queue.enter(self.size)
        self.queue = queue

    def finish(self) -> None:
        """Give back what the request took; nothing happens the second time."""
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.leave(self.size)
