"""Waiting: for how long a progress message has stood, and changes that wait until Redis is back."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from lathe.service.errors import UnavailableError
from lathe.transforms.progress import Progress

STANDING_SECONDS = 15.0
"""Seconds after which the time that a message has stood is added to it."""
REDIS_SECONDS = 300.0
"""Seconds for which a change waits until Redis is back and takes writes."""
T = TypeVar("T")


class StandingMessage:
    """Progress message of a long computation, with how long ago it was set. It belongs to one process."""

    def __init__(self) -> None:
        self.said = "starting"
        self._since, self._cpu_since = time.monotonic(), time.process_time()

    def say(self, message: str) -> None:
        """Replace the message. If it is the same again, its time goes on."""
        if message and message != self.said:
            self.said, self._since, self._cpu_since = message, time.monotonic(), time.process_time()

    def describe(self) -> str:
        """Return the message, with the time that it stands if that is over 15 s, and whether the cores are busy.

        The cores count as busy if other programs keep this process from them.
        """
        seconds = time.monotonic() - self._since
        if seconds < STANDING_SECONDS:
            return self.said
        described = f"{self.said}, for {seconds:,.0f} s"
        # A process that wants a core and gets less than half of one waits for others.
        waits = time.process_time() - self._cpu_since < seconds / 2
        if waits and os.getloadavg()[0] > (os.cpu_count() or 1):
            described += "; other programs keep the cores busy"
        return described


def wait_for_redis(change: Callable[[], T], on_progress: Progress) -> T:
    """Call `change` until it does not fail because Redis is unreachable or full, and return its result.

    It is called again each second for at most `REDIS_SECONDS`, and the progress says so. Other errors, and the last one
    when time is up, are raised.
    """
    deadline = time.monotonic() + REDIS_SECONDS
    while True:
        try:
            return change()
        except UnavailableError as error:
            if not error.may_pass or time.monotonic() > deadline:
                raise
            on_progress(1.0, f"waiting: {error.message}")
            time.sleep(1)
