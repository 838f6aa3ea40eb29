"""Where vectors that went through chains pass by those that watch them, beside the requests."""

import logging
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from service.registry import LoadedChain

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
        self.waiting: queue.Queue[Seen | None] = queue.Queue(WAITING_MOST)
        self.thread: threading.Thread | None = None

    @property
    def open(self) -> bool:
        """Whether anybody watches."""
        return bool(self.watchers)

    def watch(self, watcher: Watcher) -> None:
        """Show one more watcher all that comes; before the start."""
        self.watchers = (*self.watchers, watcher)

    def start(self) -> None:
        """Begin, if anybody watches."""
        if self.open:
            self.thread = threading.Thread(target=self.run, name="tap", daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """Show what waits, then end."""
        if self.thread is not None:
            self.waiting.put(None)
            self.thread.join()
            self.thread = None

    def pass_by(self, seen: Seen) -> None:
        """Let vectors be seen; where too many wait they are counted as dropped. Never blocks."""
        try:
            self.waiting.put_nowait(seen)
        except queue.Full:
            DROPPED.inc(len(seen.raw))

    def run(self) -> None:
        """Show watchers what comes until told to stop."""
        while (seen := self.waiting.get()) is not None:
            for watcher in self.watchers:
                try:
                    watcher(seen)
                except Exception as error:  # of one watcher, which must not blind the others
                    frames = "".join(traceback.format_tb(error.__traceback__))
                    log.error("a watcher failed", extra={"error": type(error).__name__, "frames": frames})
