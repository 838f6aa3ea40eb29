"""Whether the state folder can be written, and what in it was damaged, looked at again and again.

Disks fill up and turn read-only, and reading from one that hangs must keep no request waiting.
"""

import logging
import threading

from service.home import Home
from service.places import Places

WATCH_SECONDS = 10.0

log = logging.getLogger(__name__)


class StateWatch:
    """A thread that writes a block to the state folder every few seconds, and reads the places if they changed.

    Attributes:
        problem: why writing failed the last time; None if it did not.
        damage: why the places cannot be read; None if they can.
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
        self.look_at_places()

    def look_at_places(self) -> None:
        """Read the places if they changed, and log what is wrong with them."""
        before, self.damage = self.damage, self.places.problem()
        if self.damage != before:
            log.warning(self.damage or f"{self.places.path.name} can be read again")
