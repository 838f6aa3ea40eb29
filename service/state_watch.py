"""A thread that checks at intervals whether the state folder can be written and its files are intact.

Disks fill up or become read-only, and no request may wait for a disk that hangs.
"""

import logging
import threading

from service.home import Home
from service.places import Places

WATCH_SECONDS = 10.0
"""Seconds between two checks."""

log = logging.getLogger(__name__)


class StateWatch:
    """A thread that at intervals writes a block to the state folder, and reads the size routes if their file changed.

    Attributes:
        problem: why the last write failed; None if it succeeded.
        damage: why the size routes cannot be read; None if they can.
    """

    def __init__(self, home: Home, problem: str | None, places: Places) -> None:
        self.home = home
        self.problem = problem
        self.places = places
        self.damage: str | None = None
        self.look_at_places()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, name="state-watch", daemon=True)

    def start(self) -> None:
        """Start the thread; its first check is `WATCH_SECONDS` later."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for a check in progress, which may hang on the disk."""
        self.stopping.set()

    def run(self) -> None:
        """Check at intervals until the thread is asked to end."""
        while not self.stopping.wait(WATCH_SECONDS):
            self.look()

    def look(self) -> None:
        """Check the folder and the size routes once, update `problem` and `damage`, and log what changed."""
        before, self.problem = self.problem, self.home.problem()
        if self.problem != before:
            log.warning(self.problem or "the state folder can be written again")
        self.look_at_places()

    def look_at_places(self) -> None:
        """Read the size routes if their file changed, update `damage`, and log if it changed."""
        before, self.damage = self.damage, self.places.problem()
        if self.damage != before:
            log.warning(self.damage or f"{self.places.path.name} can be read again")
