"""Who looks after an index while others search and write it."""

import logging
import threading
import time
from typing import TYPE_CHECKING

from service.index.adoption import Adoption

if TYPE_CHECKING:
    from service.index.index import Index

CHUNK_ROWS = 128
"""Rows added to the graph while searches wait: some 20 ms."""

SNAPSHOT_SECONDS = 60.0
SNAPSHOT_SHARE = 20
"""A snapshot is due after a minute with news, or after twenty times what the last one took."""

IDLE_SECONDS = 0.5

log = logging.getLogger(__name__)


class Keeper:
    """A thread that adds rows to the graph, writes snapshots, and adopts what a reindexing made.

    Attributes:
        news: set when rows were added.
        stopping: set when the index is being closed.
    """

    def __init__(self, index: "Index") -> None:
        self.index = index
        self.adoption = Adoption(index)
        self.news = threading.Event()
        self.stopping = threading.Event()
        self.next_snapshot = 0.0
        self.thread = threading.Thread(target=self.keep, name=f"keeper-{index.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self) -> None:
        """End after what is under way."""
        self.stopping.set()
        self.news.set()
        if self.thread.is_alive():
            self.thread.join()

    def keep(self) -> None:
        """Look after the index until told to stop."""
        while not self.stopping.is_set():
            try:
                more = self.look_after_index()
            except Exception:
                log.exception("looking after the index %s failed; trying again", self.index.name)
                more = 0
            if not more:
                self.news.wait(IDLE_SECONDS)
                self.news.clear()

    def look_after_index(self) -> int:
        """Do a little of what there is to do; gives how many rows the graph still lacks."""
        try:
            self.adoption.look()
        except Exception:
            log.exception("the next generation of the index %s cannot be looked at", self.index.name)
        more = self.index.generation.extend_graph(CHUNK_ROWS, self.index.job_threads)
        if not more and time.monotonic() >= self.next_snapshot:
            begun = time.monotonic()
            try:
                self.index.snapshots.write(self.index.generation)
            finally:  # on a full disk too, try again later
                took = time.monotonic() - begun
                self.next_snapshot = time.monotonic() + max(SNAPSHOT_SECONDS, SNAPSHOT_SHARE * took)
        return more
