"""Generation of an index: rows, graph and chain that belong together. A search uses one generation throughout.

Reindexing builds the next generation beside the serving one; see `lathe.service.jobs.kinds.reindex` and `maintenance`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.errors import UnavailableError
from lathe.service.index.embedded.exact import SearchResult, empty_results, merge_results, rescore, search_exactly
from lathe.service.index.embedded.filter_masks import FilterMasks
from lathe.service.index.embedded.graphs import create_graph, find_graph_problem
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.rows import GenerationRows, Labels, RowsView
from lathe.service.index.embedded.vector_formats import choose_format
from lathe.service.index.filters import Filter, Mask
from lathe.service.index.query import DEFAULT_EF, Query
from lathe.service.index.reducer import Reducer, Vectors, normalize_rows
from lathe.service.index.spec import IndexSpec, require_originals
from lathe.transforms.files import make_folder

MAX_CANDIDATES = 4096
"""Maximum number of candidates taken from the graph; for more, an exact scan of all rows is faster."""

REPLAY_ROWS = 4096
"""Number of rows read from the record at once."""

WORTH_COMPACTING = 0.3
"""Share of dead rows above which `list_hints` suggests compaction."""


@dataclass(frozen=True)
class NewVectors:
    """Vectors of new items in every form that is stored.

    Attributes:
        recorded: what the record stores: original vectors `(n, d)`, or without originals codes `(n, b)`.
        halves: original vectors in float16 for rescoring; None without originals.
        compact: compact vectors `(n, width)` of the rows.
    """

    recorded: NDArray[Any]
    halves: NDArray[np.float16] | None
    compact: NDArray[Any]


class Generation:
    """Rows, graph and chain of one generation of an index; empty until a snapshot is restored or rows are replayed.

    Args:
        record: SQLite file of the index, from which rows and filter fields are read.
        exact_rows: number of candidate rows up to which search is exact; None for what is as fast as the graph.

    Attributes:
        vector_format: format of the compact vectors in the rows.
        exact_rows: number of candidate rows up to which search is exact; above, the graph is used.
        notes: messages about what had to be rebuilt when the generation was opened.
    """

    def __init__(
        self,
        folder: Path,
        spec: IndexSpec,
        record: IndexRecord,
        reducer: Reducer,
        threads: int,
        exact_rows: int | None = None,
    ) -> None:
        make_folder(folder)
        self.folder = folder
        self.spec = spec
        self.record = record
        self.reducer = reducer
        self.threads = threads
        self.vector_format = choose_format(spec, reducer)
        self.exact_rows = self.vector_format.exact_rows if exact_rows is None else exact_rows
        self.rows = GenerationRows(folder, spec.width if spec.has_originals else None, self.vector_format)
        self.graph = create_graph(spec, self.vector_format, threads)
        self.filters = FilterMasks(record)
        self.notes: list[str] = []

    @property
    def covered(self) -> int:
        """Number of rows in the graph."""
        return self.graph.covered if self.graph else 0

    @property
    def last_label(self) -> int:
        """Label of the last row; 0 if there is none."""
        return int(self.rows.labels.array[self.rows.count - 1, 0]) if self.rows.count else 0

    def convert(self, originals: Vectors) -> NewVectors:
        """Convert original vectors `(n, d)` of new items to what is stored.

        Raises:
            BadValueError: if they cannot be stored.
        """
        compact = self.vector_format.encode(originals)
        if not self.spec.has_originals:
            return NewVectors(compact, None, compact)
        return NewVectors(originals, self.reducer.convert_to_half(originals), compact)

    def append(self, labels: Labels, recorded: NDArray[Any]) -> None:
        """Add rows for items of the record: their labels, and what it stores of them, see `read_rows_after`.

        Raises:
            UnavailableError: if it stores codes of another size than the chain's.
        """
        if self.spec.has_originals:
            new = self.convert(recorded)
            self.rows.append(labels, new.halves, new.compact)
            return
        width = self.vector_format.width
        if recorded.shape[1] != width:
            raise UnavailableError(
                f"the record holds codes of {recorded.shape[1]} bytes, and its chain has codes of {width}",
                code="corrupt_index",
            )
        self.rows.append(labels, None, recorded)

    def replay(self) -> None:
        """Read the items that follow the last row from the SQLite record, in label order, and append their rows.

        Then mark the rows of all deleted or replaced items as dead.
        """
        while True:
            labels, recorded = self.record.read_rows_after(self.last_label, REPLAY_ROWS, self.spec)
            if not len(labels):
                break
            self.append(labels, recorded)
        self.mark_deleted()

    def mark_deleted(self) -> None:
        """Mark the rows of all items as dead that the record has deleted or replaced."""
        self.rows.mark_dead(self.record.read_tombstones())

    def extend_graph(self, max_rows: int, threads: int) -> int:
        """Add up to `max_rows` rows to the graph; return how many rows it still lacks. Without a graph, return 0."""
        if self.graph is None:
            return 0
        view = self.rows.take_view()
        upto = min(view.count, self.graph.covered + max_rows)
        if upto > self.graph.covered:
            lacking = view.count - self.graph.covered
            self.graph.extend(view.compact[self.graph.covered : upto], threads, lacking)
        return view.count - self.graph.covered

    def search(self, query: Query) -> tuple[Labels, NDArray[np.float32]]:
        """Return labels and scores of the k nearest items to each vector of the query, best first.

        Items are ranked by compact vectors; if the query asks for rescoring, the candidates are by the originals.

        Returns:
            Labels `(q, k)`, −1 where there are fewer items, and scores `(q, k)`: similarities, the highest first; for
                l2 Euclidean distances, the smallest first.

        Raises:
            TooLargeError: if the filter takes too much work.
            ConflictError: if the query asks for rescoring, and the index stores no originals.
        """
        if query.rescoring is not None:
            require_originals(self.spec, "rescoring", "rescore")
        view = self.rows.take_view()
        allowed = self._compute_allowed(view, query.wanted)
        vectors, k = query.vectors, query.k
        labels = np.full((len(vectors), k), -1, np.int64)
        scores = np.full((len(vectors), k), -np.inf, np.float32)
        candidates = math.ceil(k * (query.rescoring or 1))
        for part in query.slice_batches(candidates, self.spec.width):
            directions = normalize_rows(vectors[part]) if self.spec.metric == "cosine" else vectors[part]
            mapped = query.reduced or self.reducer.only_normalizes
            reduced = directions if mapped else self.reducer.reduce_queries(vectors[part])
            found = self.find_candidates(reduced, view, allowed, candidates, query.ef or DEFAULT_EF)
            if query.rescoring is not None:
                assert self.rows.originals is not None
                asked = (
                    self.reducer.map_for_rescoring(vectors[part]) if self.reducer.leading is not None else directions
                )
                found = rescore(asked, self.rows.originals, found[0], k, self.spec.metric)
            rows, scores[part, : found[1].shape[1]] = found
            if view.count:
                labels[part, : rows.shape[1]] = np.where(rows < 0, -1, view.labels[rows])
        return labels, -scores if self.spec.metric == "l2" else scores

    def find_candidates(
        self, queries: Vectors, view: RowsView, allowed: Mask | None, count: int, ef: int
    ) -> SearchResult:
        """Return the best rows by compact vectors, with scores: from the graph, and exactly from rows not in it yet.

        All allowed rows are scanned exactly if there are at most `exact_rows`, and for each query for which the graph
        finds too few rows.

        Args:
            queries: reduced queries `(q, k)`.
            view: rows at the start of the search.
            allowed: mask of the rows that may be returned; None for all.
            count: number of candidates per query.
            ef: size of the graph's candidate list.
        """
        score = self.vector_format.score
        there = view.count if allowed is None else int(allowed.sum())
        count = min(count, there)
        if not count:
            return empty_results(len(queries), 0)
        if there <= self.exact_rows:
            rows = np.arange(view.count) if allowed is None else np.flatnonzero(allowed)
            among = slice(0, view.count) if allowed is None else rows
            return search_exactly(queries, view.compact, among, None, count, score)
        rows, scores, covered = self._search_graph(queries, view, allowed, count, ef)
        short = (rows < 0).any(axis=1) & (covered > 0)
        if covered < view.count:
            behind = search_exactly(queries, view.compact, slice(covered, view.count), allowed, count, score)
            rows, scores = merge_results((rows, scores), behind, count)
        if short.any():
            everywhere = slice(0, view.count)
            rows[short], scores[short] = search_exactly(queries[short], view.compact, everywhere, allowed, count, score)
        return rows, scores

    def _search_graph(
        self, queries: Vectors, view: RowsView, allowed: Mask | None, count: int, ef: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """Return the best rows in the graph, their scores, and the number of rows in it; only −1 rows and 0 on failure.

        Rows that are not allowed fill the candidate list too, so proportionally more candidates are requested;
        still, a query may get too few rows, padded with −1. The graph fails if it is missing, if that needs too many
        candidates, or if it reaches too few rows.
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
        """Return the mask `(n,)` of the rows that are alive and satisfy the filter; None if all may be returned."""
        alive = None if not self.rows.dead else view.alive
        if wanted is None:
            return alive
        return self.filters.find_matching(wanted, view) & view.alive

    def close(self) -> None:
        """Close the row files; arrays used by a running search stay valid."""
        self.rows.close()


def describe_state(generation: "Generation") -> str:
    """Return `building` while more rows than exact search is fast for are not in the graph yet, else `ready`."""
    behind = generation.rows.count - generation.covered
    return "building" if generation.graph is not None and behind > generation.exact_rows else "ready"


def measure_bytes(generation: "Generation", record_bytes: int) -> dict[str, int]:
    """Return the bytes of record, rows and graph: the first two are files, the graph is in memory."""
    graph = generation.graph
    return {"record": record_bytes, "rows": generation.rows.bytes, "graph": graph.bytes if graph else 0}


def measure_memory(generation: "Generation", payload_bytes: int) -> dict[str, dict[str, int]]:
    """Return the memory of an open index in bytes by part, without and with the page cache.

    Returns:
        `anonymous`: memory of the process, for graph, mask of dead rows, and caches of filters and payloads.
            `page_cache`: sizes of the mapped row files, by name. The system holds as much of them as there is room
            for, and can drop it again; a process that has read them counts what it holds as shared resident memory.
    """
    rows, graph = generation.rows, generation.graph
    return {
        "anonymous": {
            "graph": graph.bytes if graph else 0,
            "alive": rows.alive.nbytes,
            "filters": generation.filters.bytes,
            "payloads": payload_bytes,
        },
        "page_cache": {file.path.name: rows.count * file.row_bytes for file in rows.files},
    }


def list_hints(generation: "Generation") -> list[str]:
    """Return advice for the user: to install a graph's engine, and to compact an index with over 30% dead rows."""
    rows = generation.rows
    found = [problem] if (problem := find_graph_problem(generation.graph)) else []
    if rows.dead > WORTH_COMPACTING * max(rows.count, 1):
        share = f"{rows.dead:,} of {rows.count:,} rows are of deleted or replaced items"
        found.append(f"{share}; /reindex with {{}} compacts")
    return found
