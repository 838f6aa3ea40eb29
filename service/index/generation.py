"""A generation of an index: rows, graph and chain that belong together. A search uses one, whole.

Reindexing makes the next generation beside the one that serves; see `reindex_job` and `adoption`.
"""

import math
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.index.exact import Found, exact_search, merge, nothing, rescore
from service.index.filter_work import FILTER_STEPS, STEPS_PER_ROW, FilterWork
from service.index.filters import Condition, Filter, Mask, evaluate
from service.index.graph import Graph, graph_problem
from service.index.record import Record
from service.index.reducer import Reducer, Vectors, unit
from service.index.rows import Labels, Rows, RowsView
from service.index.spec import IndexSpec
from transforms.files import make_folder

EXACT_ROWS = 10_000
"""Up to so many rows that may be found, looking at each is as quick as the graph, and exact: the default."""

CANDIDATES_MOST = 4096
"""More candidates than this are found quicker by looking at every row."""

QUERIES_AT_ONCE = 256
RESCORED_ENTRIES = 2**24
"""Numbers of originals gathered at once: 64 MB in float32."""
MASKS_KEPT = 32
DEFAULT_EF = 100
WORTH_COMPACTING = 0.3
"""Share of rows that are gone from which on it is said."""
REPLAY_ROWS = 4096


class Generation:
    """Rows, graph and chain of one generation.

    Attributes:
        exact_rows: up to so many rows that may be found, each is looked at; the graph answers beyond.
        filter_steps: of SQLite, which any filter may take; more in an index of many rows.
        notes: what had to be made anew when it was opened, in words.
    """

    def __init__(
        self,
        folder: Path,
        spec: IndexSpec,
        record: Record,
        reducer: Reducer,
        threads: int,
        exact_rows: int = EXACT_ROWS,
    ) -> None:
        make_folder(folder)
        self.folder = folder
        self.spec = spec
        self.record = record
        self.reduce = reducer
        self.threads = threads
        self.exact_rows = exact_rows
        self.filter_steps = FILTER_STEPS
        self.rows = Rows(folder, spec.width, spec.dimensions)
        self.graph = self.new_graph()
        self.masks: OrderedDict[Condition, Mask] = OrderedDict()
        self.masking = threading.Lock()
        self.notes: list[str] = []

    def new_graph(self) -> Graph | None:
        """An empty graph; None without hnswlib."""
        return None if graph_problem() else Graph(self.spec, self.threads)

    @property
    def covered(self) -> int:
        """Rows in the graph."""
        return self.graph.covered if self.graph else 0

    @property
    def last_label(self) -> int:
        """The label of the last row; 0 if there is none."""
        return int(self.rows.labels.array[self.rows.count - 1, 0]) if self.rows.count else 0

    def append(self, labels: Labels, originals: Vectors) -> None:
        """Add rows for new items."""
        self.rows.append(labels, self.reduce.half(originals), self.reduce(originals))

    def replay(self) -> None:
        """Add rows for all items of the record that have none, and mark those that are gone."""
        while True:
            labels, originals = self.record.rows_after(self.last_label, REPLAY_ROWS, self.spec)
            if not len(labels):
                break
            self.append(labels, originals)
        self.rows.bury(self.record.tombstones())

    def extend_graph(self, most: int, threads: int) -> int:
        """Add the next rows to the graph; gives how many are still to add."""
        if self.graph is None:
            return 0
        view = self.rows.view()
        upto = min(view.count, self.graph.covered + most)
        if upto > self.graph.covered:
            self.graph.extend(view.reduced[self.graph.covered : upto], threads)
        return view.count - self.graph.covered

    def search(
        self,
        queries: Vectors,
        k: int,
        ef: int | None = None,
        rescoring: float | None = None,
        wanted: Filter | None = None,
        reduced: bool = False,
    ) -> tuple[Labels, NDArray[np.float32]]:
        """The nearest items to each query.

        Args:
            queries: `(q, d)` originals.
            k: how many.
            ef: candidates the graph looks at; raised to what is asked of it.
            rescoring: look at so many times k candidates, and rank them by the originals.
            wanted: only items that satisfy it.
            reduced: the queries went through the chain already; nothing is rescored then.

        Returns:
            Labels `(q, k)`, −1 where there are no more, and scores: similarities, the best first;
            for l2 Euclidean distances, the shortest first.
        """
        view = self.rows.view()
        allowed = self.allowed(view, wanted)
        labels = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        step = max(1, min(QUERIES_AT_ONCE, RESCORED_ENTRIES // (math.ceil(k * (rescoring or 1)) * self.spec.width)))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            asked = queries[part]
            compact = (unit(asked) if self.spec.metric == "cosine" else asked) if reduced else self.reduce(asked)
            found = self.candidates(compact, view, allowed, math.ceil(k * (rescoring or 1)), ef or DEFAULT_EF)
            if rescoring is not None:
                originals = unit(asked) if self.spec.metric == "cosine" else asked
                found = rescore(originals, view.originals, found[0], k, self.spec.metric)
            rows, scores[part, : found[1].shape[1]] = found
            if view.count:
                labels[part, : rows.shape[1]] = np.where(rows < 0, -1, view.labels[rows])
        return labels, -scores if self.spec.metric == "l2" else scores

    def candidates(self, queries: Vectors, view: RowsView, allowed: Mask | None, most: int, ef: int) -> Found:
        """The best rows by their reduced vectors: from the graph, and from the rows behind it."""
        metric = self.spec.metric
        there = view.count if allowed is None else int(allowed.sum())
        most = min(most, there)
        if not most:
            return nothing(len(queries), 0)
        if there <= self.exact_rows:
            rows = np.arange(view.count) if allowed is None else np.flatnonzero(allowed)
            among = slice(0, view.count) if allowed is None else rows
            return exact_search(queries, view.reduced, among, None, most, metric)
        rows, scores, covered = self.from_graph(queries, view, allowed, most, ef)
        short = (rows < 0).any(axis=1) & (covered > 0)
        if covered < view.count:
            behind = exact_search(queries, view.reduced, slice(covered, view.count), allowed, most, metric)
            rows, scores = merge((rows, scores), behind, most)
        if short.any():
            everywhere = slice(0, view.count)
            rows[short], scores[short] = exact_search(queries[short], view.reduced, everywhere, allowed, most, metric)
        return rows, scores

    def from_graph(
        self, queries: Vectors, view: RowsView, allowed: Mask | None, most: int, ef: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """The best of the rows in the graph, their scores, and how many rows it has; none if it cannot say.

        Rows that may not be found take places among the candidates, so there are as many more of
        those; still, a query may end up with too few.
        """
        none, covered = (*nothing(len(queries), most), 0), self.covered
        share = 1.0 if allowed is None or not covered else float(allowed[:covered].mean())
        wider = most if share == 1 else math.ceil(1.2 * most / max(share, 1e-9)) + 16
        if self.graph is None or wider > min(CANDIDATES_MOST, covered):
            return none
        answer = self.graph.query(queries, wider, max(math.ceil(ef / share), wider))
        if answer is None:
            return none
        rows, scores, covered = answer
        barred = rows >= view.count  # added after the view was taken
        if allowed is not None:
            barred |= ~allowed[np.minimum(rows, view.count - 1)]
        if barred.any():
            rows, scores = np.where(barred, -1, rows), np.where(barred, np.float32(-np.inf), scores)
            rows, scores = merge((rows, scores), nothing(len(rows), 0), most)
        return rows[:, :most], scores[:, :most], min(covered, view.count)

    def allowed(self, view: RowsView, wanted: Filter | None) -> Mask | None:
        """Marks `(n,)` of rows that may be found; None if all may.

        Raises:
            TooLargeError: if the filter takes too much work.
        """
        alive = None if not self.rows.dead else view.alive
        if wanted is None:
            return alive
        work = FilterWork(max(self.filter_steps, STEPS_PER_ROW * view.count))
        matching = evaluate(wanted, lambda condition: self.mask(condition, view, work), view.count)
        return matching & view.alive

    def mask(self, condition: Condition, view: RowsView, work: FilterWork) -> Mask:
        """Marks of rows whose fields satisfy a condition.

        The fields of a label never change, so marks are kept, and only rows added since looked up.
        """
        with self.masking:
            old = self.masks.pop(condition, np.zeros(0, np.bool_))
        known = len(old)
        if known < view.count:
            after = int(view.labels[known - 1]) if known else 0
            matching = self.record.matching(condition, after, int(view.labels[-1]), work)
            old = np.concatenate([old, np.zeros(view.count - known, np.bool_)])
            old[view.rows_of(matching)] = True
        with self.masking:
            self.masks[condition] = old  # last in the dictionary: used last
            while len(self.masks) > MASKS_KEPT:
                self.masks.popitem(last=False)
        return old[: view.count]

    def close(self) -> None:
        """Let go of the files; a search under way keeps what it looks at."""
        self.rows.close()


def hints(rows: Rows) -> list[str]:
    """What a user could do for an index."""
    found = [problem] if (problem := graph_problem()) else []
    if rows.dead > WORTH_COMPACTING * max(rows.count, 1):
        share = f"{rows.dead:,} of {rows.count:,} rows are of deleted or replaced items"
        found.append(f"{share}; /reindex with {{}} compacts")
    return found
