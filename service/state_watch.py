"""Whether the state folder can be written, looked at again and again: disks fill up and turn read-only."""

import logging
import threading

from service.home import Home

WATCH_SECONDS = 10.0

log = logging.getLogger(__name__)


class StateWatch:
    """A thread that writes a block to the state folder every few seconds.

    Attributes:
        problem: why that failed the last time; None if it did not.
    """

    def __init__(self, home: Home, problem: str | None) -> None:
        self.home = home
        self.problem = problem
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, name="state-watch", daemon=True)

    def start(self) -> None:
        """Begin; the first look is a few seconds later."""
        self.thread.start()

    def stop(self) -> None:
        """End; a look under way, at a disk that hangs, is not waited for."""
        self.stopping.set()

    def run(self) -> None:
        """Look until told to stop."""
        while not self.stopping.wait(WATCH_SECONDS):
            self.look()

    def look(self) -> None:
        """Look once, and log what changed."""
        before, self.problem = self.problem, self.home.problem()
        if self.problem != before:
            log.warning(self.problem or "the state folder can be written again")
