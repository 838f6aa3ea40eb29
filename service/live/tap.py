"""Where vectors that went through chains pass by those that watch them, beside the requests."""

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from service.registry import LoadedChain

GATHER_SECONDS = 0.02
"""From the first request of some to a look at them: to wake a thread for each would take time from the next."""

WAITING_MOST = 64
"""Requests whose vectors wait to be looked at: 2,048 rows 384 wide each are 200 MB."""

DROPPED = Counter("lathe_live_dropped", "Vectors that no watcher saw, because too many waited")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """Vectors of one request.

    Attributes:
        encoder: that made them, by name; None for vectors a caller sent.
        loaded: the chain they went through.
        raw: `(n, d)` before the chain, never changed.
    """

    encoder: str | None
    loaded: LoadedChain
    raw: NDArray[np.float32]


Watcher = Callable[[Seen], None]


class Tap:
    """Hands what passes by to watchers, in one thread of its own; a request never waits for them."""

    def __init__(self) -> None:
        self.watchers: tuple[Watcher, ...] = ()
        self.changing = threading.Lock()
        self.waiting: deque[Seen] = deque()
        self.news, self.stopping = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    @property
    def open(self) -> bool:
        """Whether anybody watches."""
        return bool(self.watchers)

    def watch(self, watcher: Watcher) -> None:
        """Show one more watcher all that comes from now on."""
        with self.changing:
            self.watchers = (*self.watchers, watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Show a watcher no more."""
        with self.changing:
            self.watchers = tuple(other for other in self.watchers if other != watcher)

    def start(self) -> None:
        """Begin; without anybody who watches the thread sleeps."""
        self.stopping.clear()
        self.thread = threading.Thread(target=self.run, name="tap", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Show what waits, then end."""
        if self.thread is not None:
            self.stopping.set()
            self.news.set()
            self.thread.join()
            self.thread = None

    def pass_by(self, seen: Seen) -> None:
        """Let vectors be seen; where too many wait they are counted as dropped. Never blocks."""
        if len(self.waiting) >= WAITING_MOST:
            DROPPED.inc(len(seen.raw))
            return
        self.waiting.append(seen)
        if not self.news.is_set():
            self.news.set()

    def run(self) -> None:
        """Show watchers what comes until told to stop."""
        ended = False
        while not ended:
            self.news.wait()
            self.news.clear()  # first, so that no word of what comes meanwhile is lost
            ended = self.stopping.wait(GATHER_SECONDS)
            while self.waiting:
                self.show(self.waiting.popleft())

    def show(self, seen: Seen) -> None:
        """Show all watchers one request's vectors."""
        for watcher in self.watchers:
            try:
                watcher(seen)
            except Exception as error:  # of one watcher, which must not blind the others
                frames = "".join(traceback.format_tb(error.__traceback__))
                log.error("a watcher failed", extra={"error": type(error).__name__, "frames": frames})
