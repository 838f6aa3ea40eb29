"""Maintenance thread of an index, which works while others search and write."""

import logging
import threading
import time
from typing import TYPE_CHECKING

from service.index.adoption import Adoption

if TYPE_CHECKING:
    from service.index.index import Index

CHUNK_ROWS = 128
"""Number of rows added to the graph at once, while searches wait: about 20 ms."""

SNAPSHOT_SECONDS = 60.0
"""Minimum number of seconds between snapshots."""
SNAPSHOT_SHARE = 20
"""Minimum pause between snapshots, as a multiple of the time that the last one took."""

IDLE_SECONDS = 0.5
"""Maximum number of seconds to wait for new rows before looking for other work."""

log = logging.getLogger(__name__)


class Keeper:
    """Maintenance thread that adds rows to the graph, writes snapshots, and cuts over to reindexed generations.

    Attributes:
        news: event that is set when rows were added.
        stopping: event that is set when the index is being closed.
    """

    def __init__(self, index: "Index") -> None:
        self.index = index
        self.adoption = Adoption(index)
        self.news = threading.Event()
        self.stopping = threading.Event()
        self.next_snapshot = 0.0
        self.thread = threading.Thread(target=self.keep, name=f"keeper-{index.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to stop, and wait until its current step is done."""
        self.stopping.set()
        self.news.set()
        if self.thread.is_alive():
            self.thread.join()

    def keep(self) -> None:
        """Do maintenance steps until stopped, waiting for news when nothing is left; errors are logged and retried."""
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
        """Do one maintenance step, and return the number of rows that the graph still lacks.

        The step checks for new generations, adds up to 128 rows to the graph, and, if the graph then lacks none, writes
        a snapshot when one is due.
        """
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
