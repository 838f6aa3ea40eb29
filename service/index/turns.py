"""Who may use a graph when: many searches of one kind at once, or one writer, in the order they came.

hnswlib's searches share the graph's `ef` and must not run while it is written to (its issues 29,
205, 590). So searches hold the graph together as long as they want the same `ef`; a search with
another, or a writer, waits for them, and whoever comes later waits behind it: nobody starves.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """Turns at one graph; `on_change` is called with the new kind before its first holder begins."""

    def __init__(self, on_change: Callable[[int], None]) -> None:
        self.on_change = on_change
        self.changed = threading.Condition()
        self.waiting: deque[object] = deque()
        self.holders = 0
        self.ef: int | None = None

    @contextmanager
    def searching(self, ef: int) -> Iterator[None]:
        """Hold it with others that search at the same `ef`."""
        with self.held(ef):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold it alone."""
        with self.held(None):
            yield

    @contextmanager
    def held(self, ef: int | None) -> Iterator[None]:
        """Wait for a turn, and give it back."""
        ticket = object()
        with self.changed:
            self.waiting.append(ticket)
            self.changed.wait_for(lambda: self.waiting[0] is ticket and self.admits(ef))
            self.waiting.popleft()
            if not self.holders and ef is not None and ef != self.ef:
                self.on_change(ef)
            self.ef = ef
            self.holders += 1
            self.changed.notify_all()  # the next may be of the same kind
        try:
            yield
        finally:
            with self.changed:
                self.holders -= 1
                self.changed.notify_all()

    def admits(self, ef: int | None) -> bool:
        """Whether one more holder of that kind may begin now."""
        return not self.holders or (ef is not None and ef == self.ef)
