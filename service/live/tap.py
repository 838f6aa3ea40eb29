"""Where vectors that went through chains pass by those that watch them, beside the requests."""

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from service.registry import LoadedChain

WAITING_MOST = 64
"""Requests whose vectors wait to be looked at, by default: 2,048 rows 384 wide each are 200 MB."""

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
Work = Callable[[], None]


class Tap:
    """Hands what passes by to watchers, in one thread of its own; a request never waits for them.

    A watcher that needs microseconds may look in the request's own thread instead: to wake another for each request,
    and to hold its vectors meanwhile, would cost more. What takes longer it does `soon`.

    Args:
        waiting_most: pieces of work that wait for its thread; more are dropped.
    """

    def __init__(self, waiting_most: int = WAITING_MOST) -> None:
        self.waiting_most = waiting_most
        self.watchers: tuple[Watcher, ...] = ()
        self.at_once: tuple[Watcher, ...] = ()
        self.changing = threading.Lock()
        self.waiting: deque[Work] = deque()
        self.news, self.stopping = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    @property
    def open(self) -> bool:
        """Whether anybody watches."""
        return bool(self.watchers or self.at_once)

    def watch(self, watcher: Watcher, at_once: bool = False) -> None:
        """Show one more watcher all that comes from now on; in the request's thread if `at_once`."""
        with self.changing:
            if at_once:
                self.at_once = (*self.at_once, watcher)
            else:
                self.watchers = (*self.watchers, watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Show a watcher no more."""
        with self.changing:
            self.watchers = tuple(other for other in self.watchers if other != watcher)
            self.at_once = tuple(other for other in self.at_once if other != watcher)

    def start(self) -> None:
        """Begin; without anybody who watches the thread sleeps."""
        self.stopping.clear()
        self.thread = threading.Thread(target=self.run, name="tap", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Do what waits, then end."""
        if self.thread is not None:
            self.stopping.set()
            self.news.set()
            self.thread.join()
            self.thread = None

    def pass_by(self, seen: Seen) -> None:
        """Let vectors be seen; where too many wait they are counted as dropped. Never blocks."""
        for watcher in self.at_once:
            guarded(partial(watcher, seen))
        if self.watchers and not self.soon(partial(self.show, seen)):
            DROPPED.inc(len(seen.raw))

    def soon(self, work: Work) -> bool:
        """Have something done in the tap's thread; false, and it is not done, where too much waits."""
        if len(self.waiting) >= self.waiting_most:
            return False
        self.waiting.append(work)
        if not self.news.is_set():
            self.news.set()
        return True

    def run(self) -> None:
        """Do what is to be done soon until told to stop."""
        ended = False
        while not ended:
            self.news.wait()
            self.news.clear()  # first, so that no word of what comes meanwhile is lost
            ended = self.stopping.is_set()
            while self.waiting:
                guarded(self.waiting.popleft())

    def show(self, seen: Seen) -> None:
        """Show watchers one request's vectors."""
        for watcher in self.watchers:
            guarded(partial(watcher, seen))


def guarded(work: Work) -> None:
    """Do the work of one watcher; where it fails it must neither blind the others nor fail a request."""
    try:
        work()
    except Exception as error:
        frames = "".join(traceback.format_tb(error.__traceback__))
        log.error("a watcher failed", extra={"error": type(error).__name__, "frames": frames})
