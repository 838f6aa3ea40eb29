"""Graph lock: many searches with the same `ef` at once, or one writer, in order of arrival.

hnswlib's searches share the graph's `ef` and must not run while the graph is written to (its issues 29, 205, 590). So
searches hold the lock together as long as they want the same `ef`; a search with another, or a writer, waits for them,
and later ones wait behind it, so that no thread starves.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


class GraphLock:
    """Fair readers–writer lock of a graph, whose readers share one `ef`.

    Args:
        on_change: called with the new `ef` before the first search that uses it begins.
    """

    def __init__(self, on_change: Callable[[int], None]) -> None:
        self.on_change = on_change
        self.changed = threading.Condition()
        self.waiting: deque[object] = deque()
        self.holders = 0
        self.ef: int | None = None

    def searching(self, ef: int) -> AbstractContextManager[None]:
        """Return a block that holds the lock for a search, together with other searches of the same `ef`."""
        return self._hold(ef)

    def writing(self) -> AbstractContextManager[None]:
        """Return a block that holds the lock exclusively."""
        return self._hold(None)

    @contextmanager
    def _hold(self, ef: int | None) -> Iterator[None]:
        """Wait in order of arrival until the lock can be held, hold it during the block, and release it.

        A search calls `on_change` first if its `ef` is not that of the last holder.

        Args:
            ef: `ef` of a search; None for a writer.
        """
        ticket = object()
        with self.changed:
            self.waiting.append(ticket)
            self.changed.wait_for(lambda: self.waiting[0] is ticket and self._admits(ef))
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

    def _admits(self, ef: int | None) -> bool:
        return not self.holders or (ef is not None and ef == self.ef)
