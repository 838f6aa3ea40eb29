"""Distribution of live vectors that go through chains to observers, besides the requests."""

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
"""Default maximum number of requests whose vectors are queued: 2,048 rows of 384 dimensions each are 200 MB."""

DROPPED = Counter("lathe_live_dropped", "Vectors that no watcher saw, because too many waited")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """The vectors of one request.

    Attributes:
        encoder: name of the encoder that made them; None for vectors a caller sent.
        loaded: chain they went through.
        raw: `(n, d)` before the chain, never changed.
    """

    encoder: str | None
    loaded: LoadedChain
    raw: NDArray[np.float32]


Watcher = Callable[[Seen], None]
Work = Callable[[], None]


class Tap:
    """Distributor of vectors to observers, in a thread of its own; requests never wait for observers.

    An observer that needs microseconds may run in the request's thread instead: waking another thread for each request,
    and holding its vectors meanwhile, would cost more. It passes slower work to `soon`.

    Args:
        waiting_most: maximum number of queued pieces of work; more are dropped.
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
        """Whether there are observers."""
        return bool(self.watchers or self.at_once)

    def watch(self, watcher: Watcher, at_once: bool = False) -> None:
        """Add an observer that is called with the vectors of each request, in the request's thread if `at_once`."""
        with self.changing:
            if at_once:
                self.at_once = (*self.at_once, watcher)
            else:
                self.watchers = (*self.watchers, watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Remove an observer."""
        with self.changing:
            self.watchers = tuple(other for other in self.watchers if other != watcher)
            self.at_once = tuple(other for other in self.at_once if other != watcher)

    def start(self) -> None:
        """Start the thread, which sleeps until there is work."""
        self.stopping.clear()
        self.thread = threading.Thread(target=self.run, name="tap", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Finish queued work, then end the thread."""
        if self.thread is not None:
            self.stopping.set()
            self.news.set()
            self.thread.join()
            self.thread = None

    def pass_by(self, seen: Seen) -> None:
        """Pass a request's vectors to the observers without blocking; if the queue is full, count them as dropped."""
        for watcher in self.at_once:
            guarded(partial(watcher, seen))
        if self.watchers and not self.soon(partial(self.show, seen)):
            DROPPED.inc(len(seen.raw))

    def soon(self, work: Work) -> bool:
        """Queue work for the observer thread; return False, and drop it, if the queue is full."""
        if len(self.waiting) >= self.waiting_most:
            return False
        self.waiting.append(work)
        if not self.news.is_set():
            self.news.set()
        return True

    def run(self) -> None:
        """Do queued work until the thread is stopped and the queue is empty."""
        ended = False
        while not ended:
            self.news.wait()
            self.news.clear()  # first, so that no word of what comes meanwhile is lost
            ended = self.stopping.is_set()
            while self.waiting:
                guarded(self.waiting.popleft())

    def show(self, seen: Seen) -> None:
        """Call each observer in this thread with one request's vectors."""
        for watcher in self.watchers:
            guarded(partial(watcher, seen))


def guarded(work: Work) -> None:
    """Do a piece of work and log any exception, so that neither other observers nor a request fail."""
    try:
        work()
    except Exception as error:
        frames = "".join(traceback.format_tb(error.__traceback__))
        log.error("a watcher failed", extra={"error": type(error).__name__, "frames": frames})
