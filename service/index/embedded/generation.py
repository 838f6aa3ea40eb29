"""Generation of an index: rows, graph and chain that belong together. A search uses one generation throughout.

Reindexing builds the next generation beside the serving one; see `service.jobs.kinds.reindex` and `cutover`.
"""

import math
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.index.embedded.exact import SearchResult, empty_results, merge_results, rescore, search_exactly
from service.index.embedded.filter_work import FILTER_STEPS, STEPS_PER_ROW, FilterWork
from service.index.embedded.graph import Graph, find_graph_problem
from service.index.embedded.record import IndexRecord
from service.index.embedded.rows import Labels, Rows, RowsView
from service.index.filters import Condition, Filter, Mask, evaluate_filter
from service.index.query import DEFAULT_EF, Query
from service.index.reducer import Reducer, Vectors, normalize_rows
from service.index.spec import IndexSpec
from transforms.files import make_folder

EXACT_ROWS = 10_000
"""Default number of candidate rows up to which search is exact: as fast as the graph at that size."""

MAX_CANDIDATES = 4096
"""Maximum number of candidates taken from the graph; for more, an exact scan of all rows is faster."""

MASKS_KEPT = 32
"""Number of filter conditions whose masks are cached."""
WORTH_COMPACTING = 0.3
"""Share of dead rows above which `list_hints` suggests compaction."""
REPLAY_ROWS = 4096
"""Number of rows read from the record at once."""


class Generation:
    """Rows, graph and chain of one generation of an index; empty until a snapshot is restored or rows are replayed.

    Args:
        folder: folder of the row files, created if missing.
        spec: settings of the generation.
        record: SQLite file of the index, from which rows and filter fields are read.
        reducer: maps original vectors to those in the graph.
        threads: number of threads for a search.
        exact_rows: number of candidate rows up to which search is exact.

    Attributes:
        exact_rows: number of candidate rows up to which search is exact; above, the graph is used.
        filter_steps: number of SQLite steps that any filter may take; large indexes allow more.
        notes: messages about what had to be rebuilt when the generation was opened.
    """

    def __init__(
        self,
        folder: Path,
        spec: IndexSpec,
        record: IndexRecord,
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
        self.graph = self._create_graph()
        self.masks: OrderedDict[Condition, Mask] = OrderedDict()
        self.masking = threading.Lock()
        self.notes: list[str] = []

    def _create_graph(self) -> Graph | None:
        """Return an empty graph; None if hnswlib is not installed."""
        return None if find_graph_problem() else Graph(self.spec, self.threads)

    @property
    def covered(self) -> int:
        """Number of rows in the graph."""
        return self.graph.covered if self.graph else 0

    @property
    def last_label(self) -> int:
        """Label of the last row; 0 if there is none."""
        return int(self.rows.labels.array[self.rows.count - 1, 0]) if self.rows.count else 0

    def append(self, labels: Labels, originals: Vectors) -> None:
        """Add rows for new items: their labels, the originals `(n, d)` in float16, and the reduced vectors."""
        self.rows.append(labels, self.reduce.convert_to_half(originals), self.reduce(originals))

    def replay(self) -> None:
        """Read the items that follow the last row from the SQLite record, in label order, and append their rows.

        Then mark the rows of all deleted or replaced items as dead.
        """
        while True:
            labels, originals = self.record.read_rows_after(self.last_label, REPLAY_ROWS, self.spec)
            if not len(labels):
                break
            self.append(labels, originals)
        self.rows.mark_dead(self.record.read_tombstones())

    def extend_graph(self, max_rows: int, threads: int) -> int:
        """Add up to `max_rows` rows to the graph; return how many rows it still lacks. Without a graph, return 0."""
        if self.graph is None:
            return 0
        view = self.rows.take_view()
        upto = min(view.count, self.graph.covered + max_rows)
        if upto > self.graph.covered:
            self.graph.extend(view.reduced[self.graph.covered : upto], threads)
        return view.count - self.graph.covered

    def search(self, query: Query) -> tuple[Labels, NDArray[np.float32]]:
        """Return labels and scores of the k nearest items to each vector of the query, best first.

        Items are ranked by reduced vectors; if the query asks for rescoring, the candidates are by the originals.

        Returns:
            Labels `(q, k)`, −1 where there are fewer items, and scores `(q, k)`: similarities, the highest first; for
                l2 Euclidean distances, the smallest first.

        Raises:
            TooLargeError: if the filter takes too much work.
        """
        view = self.rows.take_view()
        allowed = self._compute_allowed(view, query.wanted)
        vectors, k = query.vectors, query.k
        labels = np.full((len(vectors), k), -1, np.int64)
        scores = np.full((len(vectors), k), -np.inf, np.float32)
        candidates = math.ceil(k * (query.rescoring or 1))
        for part in query.slice_batches(candidates, self.spec.width):
            directions = normalize_rows(vectors[part]) if self.spec.metric == "cosine" else vectors[part]
            reduced = directions if query.reduced else self.reduce(vectors[part])
            found = self.find_candidates(reduced, view, allowed, candidates, query.ef or DEFAULT_EF)
            if query.rescoring is not None:
                found = rescore(directions, view.originals, found[0], k, self.spec.metric)
            rows, scores[part, : found[1].shape[1]] = found
            if view.count:
                labels[part, : rows.shape[1]] = np.where(rows < 0, -1, view.labels[rows])
        return labels, -scores if self.spec.metric == "l2" else scores

    def find_candidates(
        self, queries: Vectors, view: RowsView, allowed: Mask | None, count: int, ef: int
    ) -> SearchResult:
        """Return the best rows by reduced vectors, with scores: from the graph, and exactly from rows not in it yet.

        All allowed rows are scanned exactly if there are at most `exact_rows`, and for each query for which the graph
        finds too few rows.

        Args:
            queries: reduced queries `(q, k)`.
            view: rows at the start of the search.
            allowed: mask of the rows that may be returned; None for all.
            count: number of candidates per query.
            ef: size of the graph's candidate list.
        """
        metric = self.spec.metric
        there = view.count if allowed is None else int(allowed.sum())
        count = min(count, there)
        if not count:
            return empty_results(len(queries), 0)
        if there <= self.exact_rows:
            rows = np.arange(view.count) if allowed is None else np.flatnonzero(allowed)
            among = slice(0, view.count) if allowed is None else rows
            return search_exactly(queries, view.reduced, among, None, count, metric)
        rows, scores, covered = self._search_graph(queries, view, allowed, count, ef)
        short = (rows < 0).any(axis=1) & (covered > 0)
        if covered < view.count:
            behind = search_exactly(queries, view.reduced, slice(covered, view.count), allowed, count, metric)
            rows, scores = merge_results((rows, scores), behind, count)
        if short.any():
            everywhere = slice(0, view.count)
            rows[short], scores[short] = search_exactly(
                queries[short], view.reduced, everywhere, allowed, count, metric
            )
        return rows, scores

    def _search_graph(
        self, queries: Vectors, view: RowsView, allowed: Mask | None, count: int, ef: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """Return the best rows in the graph, their scores, and the number of rows in it; only −1 rows and 0 on failure.

        Rows that are not allowed fill the candidate list too, so proportionally more candidates are requested;
        still, a query may get too few rows, padded with −1. The graph fails if it is missing, if that needs too many
        candidates, or if hnswlib reaches too few nodes.
        """
        none, covered = (*empty_results(len(queries), count), 0), self.covered
        share = 1.0 if allowed is None or not covered else float(allowed[:covered].mean())
        requested = count if share == 1 else math.ceil(1.2 * count / max(share, 1e-9)) + 16
        if self.graph is None or requested > min(MAX_CANDIDATES, covered):
            return none
        answer = self.graph.search(queries, requested, max(math.ceil(ef / share), requested))
        if answer is None:
            return none
        rows, scores, covered = answer
        barred = rows >= view.count  # added after the view
        if allowed is not None:
            barred |= ~allowed[np.minimum(rows, view.count - 1)]
        if barred.any():
            rows, scores = np.where(barred, -1, rows), np.where(barred, np.float32(-np.inf), scores)
            rows, scores = merge_results((rows, scores), empty_results(len(rows), 0), count)
        return rows[:, :count], scores[:, :count], min(covered, view.count)

    def _compute_allowed(self, view: RowsView, wanted: Filter | None) -> Mask | None:
        """Return the mask `(n,)` of the rows that are alive and satisfy the filter; None if all rows may be returned.

        Raises:
            TooLargeError: if the filter takes too much work.
        """
        alive = None if not self.rows.dead else view.alive
        if wanted is None:
            return alive
        work = FilterWork(max(self.filter_steps, STEPS_PER_ROW * view.count))
        matching = evaluate_filter(wanted, lambda condition: self._get_mask(condition, view, work), view.count)
        return matching & view.alive

    def _get_mask(self, condition: Condition, view: RowsView, work: FilterWork) -> Mask:
        """Return the mask `(n,)` of the rows whose fields satisfy a condition, from a cache extended by new rows.

        The fields of a label never change, so only rows added since the last call are looked up. The cache holds 32
        masks.

        Raises:
            TooLargeError: if the filter takes too much work.
        """
        with self.masking:
            old = self.masks.pop(condition, np.zeros(0, np.bool_))
        known = len(old)
        if known < view.count:
            after = int(view.labels[known - 1]) if known else 0
            matching = self.record.find_matching(condition, after, int(view.labels[-1]), work)
            old = np.concatenate([old, np.zeros(view.count - known, np.bool_)])
            old[view.find_rows(matching)] = True
        with self.masking:
            self.masks[condition] = old  # last in the dictionary: used last
            while len(self.masks) > MASKS_KEPT:
                self.masks.popitem(last=False)
        return old[: view.count]

    def close(self) -> None:
        """Close the row files; arrays used by a running search stay valid."""
        self.rows.close()


def list_hints(rows: Rows) -> list[str]:
    """Return advice for the user: to install hnswlib, and to compact an index with over 30% dead rows; else []."""
    found = [problem] if (problem := find_graph_problem()) else []
    if rows.dead > WORTH_COMPACTING * max(rows.count, 1):
        share = f"{rows.dead:,} of {rows.count:,} rows are of deleted or replaced items"
        found.append(f"{share}; /reindex with {{}} compacts")
    return found
