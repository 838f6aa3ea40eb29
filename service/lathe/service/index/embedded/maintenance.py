"""Maintenance of an index, in a thread that works while others search and write."""

import logging
import time

from lathe.service.index.embedded.cutover import Cutover
from lathe.service.index.embedded.index import EmbeddedIndex

CHUNK_ROWS = 128
"""Number of rows added to the graph at once, while searches wait: about 20 ms."""

SNAPSHOT_SECONDS = 60.0
"""Minimum number of seconds between snapshots."""
SNAPSHOT_SHARE = 20
"""Minimum pause between snapshots, as a multiple of the time that the last one took."""

IDLE_SECONDS = 0.5
"""Maximum number of seconds to wait for new rows before looking for other work."""

log = logging.getLogger(__name__)


class Maintainer:
    """Maintenance of an index: adds rows to the graph, writes snapshots, and cuts over to reindexed generations."""

    def __init__(self, index: EmbeddedIndex) -> None:
        self.index = index
        self.cutover = Cutover(index)
        self.next_snapshot = 0.0

    def run(self) -> None:
        """Do maintenance steps until the index is closed, waiting for rows when idle, whatever goes wrong."""
        while not self.index.stopping.is_set():
            more = 0
            with self.index.maintenance_problem.watch():
                more = self.run_step()
            if not more:
                self.index.rows_added.wait(IDLE_SECONDS)
                self.index.rows_added.clear()

    def run_step(self) -> int:
        """Do one maintenance step, and return the number of rows that the graph still lacks.

        The step cuts over to a finished new generation, adds up to 128 rows to the graph, and, if the graph then lacks
        none, writes a snapshot when one is due. An error in the cutover is logged, and the step goes on.
        """
        try:
            self.cutover.check_generations()
        except Exception:
            log.exception("the next generation of the index %s cannot be checked", self.index.name)
        more = self.index.generation.extend_graph(CHUNK_ROWS, self.index.job_threads)
        if not more and time.monotonic() >= self.next_snapshot:
            begun = time.monotonic()
            try:
                self.index.snapshots.write(self.index.generation)
            finally:  # on a full disk too, try again later
                took = time.monotonic() - begun
                self.next_snapshot = time.monotonic() + max(SNAPSHOT_SECONDS, SNAPSHOT_SHARE * took)
        return more
