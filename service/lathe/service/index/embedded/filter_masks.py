"""Masks of the rows that satisfy a filter, cached by condition."""

import threading
from collections import OrderedDict

import numpy as np

from lathe.service.index.embedded.filter_work import FILTER_STEPS, STEPS_PER_ROW, FilterWork
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.rows import RowsView
from lathe.service.index.filters import Condition, Filter, Mask, evaluate_filter

MASKS_KEPT = 32
"""Number of filter conditions whose masks are cached."""
MAX_FIELD_CHARACTERS = 1_000
"""Maximum length of a field's name in a condition that is cached. Clients may send names of megabytes."""


class FilterMasks:
    """Masks of the rows of one generation, at most 32 of them in memory.

    Attributes:
        steps: number of SQLite steps that any filter may take; large indexes allow more.
    """

    def __init__(self, record: IndexRecord) -> None:
        self.record = record
        self.steps = FILTER_STEPS
        self.cached: OrderedDict[Condition, Mask] = OrderedDict()
        self.guard = threading.Lock()

    def find_matching(self, wanted: Filter, view: RowsView) -> Mask:
        """Return the mask `(n,)` of the rows that satisfy a filter, dead ones included.

        Raises:
            TooLargeError: if the filter takes too much work.
        """
        work = FilterWork(max(self.steps, STEPS_PER_ROW * view.count))
        return evaluate_filter(wanted, lambda condition: self._get_mask(condition, view, work), view.count)

    def _get_mask(self, condition: Condition, view: RowsView, work: FilterWork) -> Mask:
        """Return the mask `(n,)` of the rows whose fields satisfy a condition, from a cache extended by new rows.

        The fields of a label never change, so only rows added since the last call are looked up.
        """
        with self.guard:
            old = self.cached.get(condition, np.zeros(0, np.bool_))
        known = len(old)
        if known < view.count:
            after = int(view.labels[known - 1]) if known else 0
            matching = self.record.find_matching(condition, after, int(view.labels[-1]), work)
            old = np.concatenate([old, np.zeros(view.count - known, np.bool_)])
            old[view.find_rows(matching)] = True
        if len(condition.field) > MAX_FIELD_CHARACTERS:
            return old[: view.count]
        with self.guard:
            self.cached[condition] = old
            self.cached.move_to_end(condition)  # the last in the dictionary was used last
            while len(self.cached) > MASKS_KEPT:
                self.cached.popitem(last=False)
        return old[: view.count]

    @property
    def bytes(self) -> int:
        """Memory of the cached masks in bytes."""
        with self.guard:
            return sum(mask.nbytes for mask in self.cached.values())
