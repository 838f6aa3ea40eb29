"""Masks of the rows that satisfy a filter, cached by condition, with a limit on the work that a filter may cause."""

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lathe.service.errors import TooLargeError
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.record_file import STEPS_BETWEEN, placeholders
from lathe.service.index.embedded.rows import Labels, RowsView
from lathe.service.index.items import Value
from lathe.service.index.query import Condition, Filter, Mask, evaluate_filter

RANGE_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
"""SQL operator of each range test."""
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
        """Run the block with a limit on its SQLite steps, which counts the steps of all blocks of this search together.

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
        """Count 10,000 steps of SQLite. Return 1, which interrupts SQLite, once the limit is passed, else 0."""
        self.left -= STEPS_BETWEEN
        return int(self.left < 0)


MASKS_KEPT = 32
"""Number of filter conditions whose masks are cached."""
MAX_FIELD_CHARACTERS = 1_000
"""Maximum length of a field's name in a condition that is cached. Clients may send names of megabytes."""


class FilterMasks:
    """Cache of boolean masks over the rows of a generation: for each filter condition, which rows satisfy it.

    Attributes:
        steps: number of SQLite steps that any filter may take; large indexes allow more.
    """

    def __init__(self, record: IndexRecord) -> None:
        self.record = record
        self.steps = FILTER_STEPS
        self.cached: OrderedDict[Condition, Mask] = OrderedDict()
        self.guard = threading.Lock()

    def compute_mask(self, parsed: Filter, view: RowsView) -> Mask:
        """Return the mask `(n,)` of the rows whose metadata satisfy a filter. Dead rows may be among them.

        Raises:
            TooLargeError: if the filter takes too much work.
        """
        # One limit for all conditions of the filter, however many there are.
        work = FilterWork(max(self.steps, STEPS_PER_ROW * view.count))
        return evaluate_filter(parsed, lambda condition: self._get_mask(condition, view, work), view.count)

    def _get_mask(self, condition: Condition, view: RowsView, work: FilterWork) -> Mask:
        """Return the mask `(n,)` of the rows that satisfy one condition, from the cache as far as it has them.

        The fields of a label never change, so only rows added since the last call are looked up.
        """
        with self.guard:
            mask = self.cached.get(condition, np.zeros(0, np.bool_))
        known = len(mask)
        if known < view.count:
            after = int(view.labels[known - 1]) if known else 0
            matching = find_matching_labels(self.record, condition, after, int(view.labels[-1]), work)
            mask = np.concatenate([mask, np.zeros(view.count - known, np.bool_)])
            mask[view.find_rows(matching)] = True
        if len(condition.field) > MAX_FIELD_CHARACTERS:
            return mask[: view.count]

        with self.guard:
            self.cached[condition] = mask
            self.cached.move_to_end(condition)  # the last in the dictionary was used last
            while len(self.cached) > MASKS_KEPT:
                self.cached.popitem(last=False)
        return mask[: view.count]

    @property
    def bytes(self) -> int:
        """Memory of the cached masks in bytes."""
        with self.guard:
            return sum(mask.nbytes for mask in self.cached.values())


def find_matching_labels(record: IndexRecord, condition: Condition, after: int, upto: int, work: FilterWork) -> Labels:
    """Return the labels, from `after` + 1 to `upto`, of items whose metadata satisfy one condition of a filter.

    Labels are the record's integer ids. SQLite returns the labels as one text: rows that become Python objects take
    three times as long, 0.1 kB each, and the interpreter's lock, which every other request waits for.

    Raises:
        TooLargeError: if the filter that the condition belongs to has used up its work.
    """
    clause, values = _build_where(condition)
    query = f"SELECT group_concat(label) FROM fields WHERE {clause} AND label > ? AND label <= ?"
    with record.reading() as db, work.count_steps(db):
        labels: str | None = db.execute(query, (*values, after, upto)).fetchone()[0]
    return np.fromstring(labels or "", np.int64, sep=",")


def _build_where(condition: Condition) -> tuple[str, tuple[Value, ...]]:
    """Translate a condition to a WHERE clause on the table `fields`, and return the SQL and its parameters.

    A range compares a text with texts only, and a number with numbers only.
    """
    if condition.test == "exists":
        return "name = ?", (condition.field,)
    if condition.test == "in":
        return f"name = ? AND value IN ({placeholders(condition.values)})", (condition.field, *condition.values)
    kinds = "'text'" if isinstance(condition.values[0], str) else "'integer', 'real'"
    return f"name = ? AND value {RANGE_OPERATORS[condition.test]} ? AND typeof(value) IN ({kinds})", (
        condition.field,
        *condition.values,
    )
