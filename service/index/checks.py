"""Looking for damage inside the records of indexes, one after another, while they serve."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from service.index.schema import find_damage

STOP_SECONDS = 5.0
"""For a check under way to notice that it is to end: it looks every few milliseconds, but for a slow disk."""

log = logging.getLogger(__name__)


class RecordChecks:
    """A thread that checks records; what it finds stays until the index is opened again or deleted.

    Args:
        check: says what is wrong with a record, and is told when it may give up; see `find_damage`.
    """

    def __init__(self, check: Callable[[Path, Callable[[], bool]], str | None] = find_damage) -> None:
        self.check = check
        self.waiting: dict[str, Path] = {}
        self.found: dict[str, str | None] = {}
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self.run, name="record-checks", daemon=True)

    def start(self) -> None:
        """Begin with those that were added, and check others when they are."""
        self.thread.start()

    def stop(self) -> None:
        """End, also amid a check."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        if self.thread.is_alive():
            self.thread.join(STOP_SECONDS)

    def add(self, name: str, path: Path) -> None:
        """Have the record of an index checked; returns at once."""
        with self.changed:
            self.waiting[name] = path
            self.found.pop(name, None)
            self.changed.notify_all()

    def drop(self, name: str) -> None:
        """Forget an index."""
        with self.changed:
            self.waiting.pop(name, None)
            self.found.pop(name, None)

    def damaged(self) -> dict[str, str]:
        """What is wrong, by the name of the index."""
        with self.changed:
            return {name: damage for name, damage in self.found.items() if damage is not None}

    def is_moot(self, name: str, path: Path) -> bool:
        """Return whether a check need not go on: the index was deleted or opened again, or the server stops."""
        return self.stopping or self.waiting.get(name) is not path

    def run(self) -> None:
        """Check record after record until told to stop."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.stopping or self.waiting)
                if self.stopping:
                    return
                name, path = next(iter(self.waiting.items()))
            damage = self.check(path, partial(self.is_moot, name, path))
            with self.changed:
                if self.is_moot(name, path):
                    continue
                del self.waiting[name]
                self.found[name] = damage
            if damage is not None:
                log.error("the record of the index %s is damaged: %s", name, damage)
