"""A thread that checks at intervals whether the state folder can be written and its files are intact.

Disks fill up or become read-only, and no request may wait for a disk that hangs.
"""

import logging
import threading

from lathe.service.chains.registry import SizeRoutes
from lathe.service.home import Home
from lathe.training.thread_problem import ThreadProblem

CHECK_SECONDS = 10.0
"""Seconds between two checks."""

log = logging.getLogger(__name__)


class StateMonitor:
    """A thread that at intervals writes a block to the state folder, and reads the size routes if their file changed.

    Attributes:
        problem: why the last write failed; None if it succeeded.
        damage: why the size routes cannot be read; None if they can.
    """

    def __init__(self, home: Home, problem: str | None, size_routes: SizeRoutes) -> None:
        self.home = home
        self.problem = problem
        self.size_routes = size_routes
        self.damage: str | None = None
        self._check_size_routes()
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("checking the state folder")
        self.thread = threading.Thread(target=self.run, name="state-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread, whose first check is `CHECK_SECONDS` later."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for a check in progress, which may hang on the disk."""
        self.stopping.set()

    def run(self) -> None:
        """Delete leftovers in the state folder, then check the folder every `CHECK_SECONDS` until stopped.

        Errors are stored, not raised.
        """
        with self.unexpected.watch():
            self.home.delete_leftovers()
        while not self.stopping.wait(CHECK_SECONDS):
            with self.unexpected.watch():
                self.check()

    def check(self) -> None:
        """Check once whether the state folder can be written and the size routes read, and log changes.

        Updates `problem` and `damage`.
        """
        before, self.problem = self.problem, self.home.find_write_problem()
        # Each change is logged once, not each check.
        if self.problem != before:
            log.warning(self.problem or "the state folder can be written again")
        self._check_size_routes()

    def _check_size_routes(self) -> None:
        before, self.damage = self.damage, self.size_routes.find_problem()
        if self.damage != before:
            log.warning(self.damage or f"{self.size_routes.path.name} can be read again")
