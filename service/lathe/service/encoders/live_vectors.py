"""Live vectors that go through chains, and the observer that is called with them."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.training.thread_problem import ThreadProblem

MAX_WAITING = 64
"""Default maximum number of requests whose vectors are queued: 2,048 rows of 384 dimensions each are 200 MB."""

DROPPED = Counter("lathe_live_dropped", "Vectors that no observer saw, because too many waited")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ObservedVectors:
    """The vectors of one request.

    Attributes:
        encoder: name of the encoder that made them; None for vectors a caller sent.
        loaded: chain they went through.
        raw: `(n, d)` before the chain, never changed.
    """

    encoder: str | None
    loaded: LoadedChain
    raw: NDArray[np.float32]


Observer = Callable[[ObservedVectors], None]
Work = Callable[[], None]


class LiveVectors:
    """The observer of vectors that go through chains of transforms, and a thread for the slow part of its work.

    The observer is called in the request's thread and may need microseconds: waking another thread for each request,
    and holding its vectors meanwhile, would cost more. It passes slower work to `submit`, so that no request waits.

    Attributes:
        observer: called with the vectors of each request; None if nothing observes.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self.max_waiting = max_waiting
        self.observer: Observer | None = None
        self.unexpected = ThreadProblem("observing live vectors")
        self.waiting: deque[Work] = deque()
        self.wakeup, self.stopping = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, which sleeps until there is work."""
        self.stopping.clear()
        self.thread = threading.Thread(target=self.run, name="live vectors", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Finish queued work, then end the thread."""
        if self.thread is not None:
            self.stopping.set()
            self.wakeup.set()
            self.thread.join()
            self.thread = None

    def notify(self, observed: ObservedVectors) -> None:
        """Call the observer, if there is one, with a request's vectors. Its error is logged, not raised."""
        observer = self.observer
        if observer is not None:
            try:
                observer(observed)
            except Exception as error:
                self.unexpected.record(error)

    def submit(self, work: Work) -> bool:
        """Queue a function to be called in the thread, and return True, or return False if the queue is full."""
        if len(self.waiting) >= self.max_waiting:
            return False
        # Appending to a deque and taking from its other end are atomic, so there is no lock.
        self.waiting.append(work)
        # `set` takes a lock, which most calls need not.
        if not self.wakeup.is_set():
            self.wakeup.set()
        return True

    def run(self) -> None:
        """Call the queued functions until the thread is stopped and the queue is empty. Errors are noted."""
        ended = False
        while not ended:
            self.wakeup.wait()
            self.wakeup.clear()  # before the work, so that no later wakeup is lost
            ended = self.stopping.is_set()
            while self.waiting:
                work = self.waiting.popleft()
                with self.unexpected.watch():
                    work()
