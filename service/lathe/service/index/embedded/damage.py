"""Damage of records: the check of one, and a thread that checks one after another while they serve."""

import logging
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lathe.service.index.embedded.record_file import STEPS_BETWEEN, connect_read_only
from lathe.training.errors import locate_error

STOP_SECONDS = 5.0
"""Number of seconds to wait for a running check to stop; it notices within milliseconds, but for a slow disk."""

NOT_DAMAGE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN")
"""Names of errors during a check that do not mean that the file is damaged."""
DAMAGED_METADATA = "SELECT id FROM items WHERE metadata IS NOT NULL AND NOT json_valid(CAST(metadata AS TEXT)) LIMIT 1"
"""SQL that finds an item whose metadata is not JSON."""

log = logging.getLogger(__name__)


def find_damage(path: Path, stop: Callable[[], bool] = lambda: False) -> str | None:
    """Check an index's SQLite file and its items' metadata, and describe the first problem.

    SQLite's `quick_check` reads the whole file. The record can be used meanwhile.

    Args:
        path: path of the record.
        stop: called every few milliseconds; the check ends once it returns true.

    Returns:
        The first problem; None if there is none, or if the check was stopped or could not be done.
    """
    try:
        connection = connect_read_only(path)
        try:
            connection.set_progress_handler(lambda: int(stop()), STEPS_BETWEEN)
            outcome = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            damaged = connection.execute(DAMAGED_METADATA).fetchone() if outcome == "ok" else None
        finally:
            connection.close()
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        return None if stop() or name.startswith(NOT_DAMAGE) else str(error)

    if damaged is not None:
        return f"the metadata of the item {damaged[0]!r:.80} is no JSON"
    return None if outcome == "ok" else " ".join(outcome.split())


class RecordChecks:
    """Thread that checks the SQLite files of indexes for damage, one after another, and stores the results.

    Args:
        check: function that returns what is wrong with a record or None, and calls its second argument to learn whether
            to stop; see `find_damage`.
    """

    def __init__(self, check: Callable[[Path, Callable[[], bool]], str | None] = find_damage) -> None:
        self.check = check
        self.waiting: dict[str, Path] = {}
        self.results: dict[str, str | None] = {}
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="record-checks", daemon=True)

    def start(self) -> None:
        """Start the thread, which checks all queued records and then waits for more."""
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread and interrupt a running check, waiting at most 5 s for both."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        if self.thread.is_alive():
            self.thread.join(STOP_SECONDS)

    def queue(self, name: str, path: Path) -> None:
        """Queue the check of an index's SQLite file at `path`, and forget the result of its last check."""
        with self.changed:
            self.waiting[name] = path
            self.results.pop(name, None)
            self.changed.notify_all()

    def cancel(self, name: str) -> None:
        """Remove an index from the queue of checks, and forget the result of its last check."""
        with self.changed:
            self.waiting.pop(name, None)
            self.results.pop(name, None)

    def list_damaged(self) -> dict[str, str]:
        """Return `{index name: what is wrong}` for each record that the last check found damaged."""
        with self.changed:
            return {name: damage for name, damage in self.results.items() if damage is not None}

    def _is_obsolete(self, name: str, path: Path) -> bool:
        """Return whether a check can stop: the index was deleted or opened again, or the server is stopping."""
        return self.stopping or self.waiting.get(name) is not path

    def _run(self) -> None:
        """Check the queued files one after another until the thread is stopped. Store each result, and log damage."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.stopping or self.waiting)
                if self.stopping:
                    return
                name, path = next(iter(self.waiting.items()))

            try:
                damage = self.check(path, partial(self._is_obsolete, name, path))
            except Exception as error:  # or the thread would end, and no record would be checked any more
                damage = f"its record cannot be checked: an unexpected {locate_error(error)}"

            with self.changed:
                if self._is_obsolete(name, path):
                    continue
                del self.waiting[name]
                self.results[name] = damage
            if damage is not None:
                log.error("the record of the index %s is damaged: %s", name, damage)
