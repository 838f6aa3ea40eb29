"""Limit on the work that the filter of one search may cause in SQLite."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from lathe.service.errors import TooLargeError
from lathe.service.index.embedded.schema import STEPS_BETWEEN

FILTER_STEPS = 200_000_000
"""Number of steps that any filter may take, about 5 s on one core."""
STEPS_PER_ROW = 200
"""Number of steps that a filter may take per row of a large index.

A value that a condition meets takes 8 to 12 steps of SQLite's virtual machine, and a million values 0.3 s. So a filter
may look at some 18 values of each row, or at 18 million values of an index however few rows it has: 5 s on one core.
"""


class FilterWork:
    """Counter of the SQLite steps that the conditions of one search take, with a limit.

    Steps and not seconds: the same search is refused every time or never, however busy the server is. It asks for more
    than a request may, so the answer is 413 as for too many results, and trying again does not help.
    """

    def __init__(self, steps: int) -> None:
        self.allowed = self.left = steps

    @contextmanager
    def count_steps(self, db: sqlite3.Connection) -> Iterator[None]:
        """Count the steps of the statements in the block, and stop the one that passes the limit.

        Raises:
            TooLargeError: if the limit is passed.
        """
        db.set_progress_handler(self.count_interval, STEPS_BETWEEN)
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_INTERRUPT":
                raise
            raise TooLargeError(
                "the filter is too expensive: its conditions meet too many values in the metadata of this index "
                f"(more than {self.allowed:,} steps of SQLite); use fewer conditions, or narrower ones",
                param="filter",
                code="filter_too_expensive",
            ) from None
        finally:
            db.set_progress_handler(None, 0)  # the connection goes on to other readers

    def count_interval(self) -> int:
        """Count the steps since the last call; return 1 once the limit is passed, to interrupt SQLite, else 0."""
        self.left -= STEPS_BETWEEN
        return int(self.left < 0)
