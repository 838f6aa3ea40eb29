"""Generation of an index: rows, graph and chain that belong together.

A search uses one generation throughout. Reindexing builds the next one alongside; see `maintenance` and
`lathe.service.jobs.kinds.reindex`.
"""

import math
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.service.errors import UnavailableError
from lathe.service.index.embedded.exact import SearchResult, empty_results, merge_results, rescore, search_exactly
from lathe.service.index.embedded.filter_masks import FilterMasks
from lathe.service.index.embedded.graphs import create_graph, find_graph_problem
from lathe.service.index.embedded.graphs.graph import HnswGraph
from lathe.service.index.embedded.graphs.nodes import GraphNodes
from lathe.service.index.embedded.probabilities import Calibration
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.rows import GenerationRows, Labels, RowsView
from lathe.service.index.embedded.vector_formats import choose_format
from lathe.service.index.query import DEFAULT_EF, Filter, Mask, Query
from lathe.service.index.reducer import Reducer, Vectors, normalize_rows
from lathe.service.index.spec import IndexSpec, require_originals
from lathe.transforms.files import make_folder
from lathe.transforms.relevance import MIN_HITS

MAX_CANDIDATES = 4096
"""Maximum number of candidates taken from the graph; for more, an exact scan of all rows is faster."""

REPLAY_ROWS = 4096
"""Number of rows read from the record at once."""

WORTH_COMPACTING = 0.3
"""Share of dead rows above which `list_hints` suggests compaction."""

MAX_READ_NUMBERS = 2**19
"""Largest number of floats that an exact search reads in a time that the event loop can spare, some .2 ms."""


class Generation:
    """Rows, graph and chain of transforms of one generation of an index. Searches run on one generation.

    A generation has no rows until a snapshot is restored or rows are replayed.

    Args:
        record: SQLite file of the index, from which rows and filter fields are read.
        exact_rows: number of candidate rows up to which search is exact; None for what is as fast as the graph.

    Attributes:
        vector_format: format of the compact vectors in the rows.
        exact_rows: number of candidate rows up to which search is exact; above, the graph is used.
        notes: messages about what had to be rebuilt when the generation was opened.
        calibration: gives hits their probabilities; None if the generation is not calibrated.
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
        self.nodes = GraphNodes()
        self.filters = FilterMasks(record)
        self.notes: list[str] = []
        self.calibration: Calibration | None = None

    def use_calibration(self, calibration: "Calibration | None") -> None:
        """Give hits their probabilities by a calibration from now on, or none if it is None."""
        self.calibration = calibration

    @property
    def covered(self) -> int:
        """Number of rows in the graph."""
        return self.nodes.current.count_covered(self.graph.covered) if self.graph else 0

    @property
    def graph_bytes(self) -> int:
        """Memory of the graph and of its nodes' rows, in bytes."""
        return self.graph.bytes + self.nodes.bytes if self.graph else 0

    @property
    def is_idle(self) -> bool:
        """Whether a search can start at once: the graph has all rows, its lock is free, and few rows are read exactly.

        It is False for a graph of codes, whose searches set the threads of FAISS.
        """
        graph, count = self.graph, self.rows.count
        reads_many = MAX_READ_NUMBERS // self.spec.dimensions < count <= self.exact_rows
        return isinstance(graph, HnswGraph) and self.covered == count and graph.lock.is_free and not reads_many

    @property
    def last_label(self) -> int:
        """Label of the last row, or 0 if there is none."""
        return int(self.rows.labels.array[self.rows.count - 1, 0]) if self.rows.count else 0

    def convert(self, originals: Vectors) -> tuple[NDArray[Any], NDArray[np.float16] | None, NDArray[Any]]:
        """Return original vectors `(n, d)` as the record stores them, as float16 for rescoring, and as compact vectors.

        Returns:
            What the record stores (the original vectors, or without originals codes `(n, b)`), the original vectors in
                float16 for rescoring (None without originals), and the compact vectors of the rows, one per vector.

        Raises:
            BadValueError: if they cannot be stored.
        """
        compact = self.vector_format.encode(originals)
        if not self.spec.has_originals:
            return compact, None, compact
        return originals, self.reducer.convert_to_half(originals), compact

    def append(self, labels: Labels, recorded: NDArray[Any]) -> None:
        """Append a row for each of these items, which are in the record already.

        Args:
            labels: labels of the items `(n,)`, above those of all rows.
            recorded: original vectors `(n, d)`, or without originals codes `(n, b)`.

        Raises:
            UnavailableError: if the codes are of another size than the chain's.
        """
        if self.spec.has_originals:
            _, half_precision, compact = self.convert(recorded)
            self.rows.append(labels, half_precision, compact)
            return

        width = self.vector_format.width
        if recorded.shape[1] != width:
            raise UnavailableError(
                f"the record holds codes of {recorded.shape[1]} bytes, and its chain has codes of {width}",
                code="corrupt_index",
            )
        self.rows.append(labels, None, recorded)

    def replay(self) -> None:
        """Append a row for each recorded item that has none, and mark rows of deleted or replaced items as dead."""
        while True:
            labels, recorded = self.record.read_rows_after(self.last_label, REPLAY_ROWS, self.spec)
            if not len(labels):
                break
            self.append(labels, recorded)
        self.rows.mark_dead(self.record.read_tombstones())

    def extend_graph(self, max_rows: int, threads: int) -> int:
        """Add up to `max_rows` rows to the graph, and return how many it still lacks, or 0 without a graph."""
        if self.graph is None:
            return 0
        view, covered = self.rows.take_view(), self.covered
        upto = min(view.count, covered + max_rows)
        if upto > covered:
            self.nodes.assign(view.compact, upto)  # before the graph has the nodes, as searches look up their rows
            nodes = self.nodes.current
            rows = nodes.find_first_rows(np.arange(self.graph.covered, nodes.count))
            rows = rows[rows < upto]
            self.graph.extend(view.compact[rows], threads, lacking=len(rows) + view.count - upto)
        return view.count - self.covered

    def load_graph(self, file: IO[bytes], covered: int) -> None:
        """Replace the graph, which must be empty, by the one of the first `covered` rows in a file that it saved.

        Raises:
            ValueError: if the file holds another number of nodes; other errors of the engine are raised as they are.
        """
        assert self.graph is not None
        self.nodes.assign(self.rows.take_view().compact, covered)
        self.graph.load(file, self.nodes.current.count)

    def search(self, query: Query) -> tuple[Labels, NDArray[np.float32], NDArray[np.float64] | None]:
        """Return labels, scores and probabilities of the k nearest items to each query vector, best first.

        Items are ranked by their compact vectors (reduced floats or codes). If the query asks for rescoring, the best
        of these are ranked again by the original vectors.

        Returns:
            Labels `(q, k)` (the record's integer ids), −1 where there are fewer items, and scores `(q, k)`:
                similarities, the highest first; for l2 Euclidean distances, the smallest first. Probabilities `(q, k)`
                that items are right, NaN for queries with fewer than ten hits; None if the generation is not
                calibrated.

        Raises:
            TooLargeError: if the filter takes too much work.
            ConflictError: if the query asks for rescoring, and the index stores no originals.
        """
        if query.rescoring is not None:
            require_originals(self.spec, "rescoring", "rescore")
        view = self.rows.take_view()
        allowed = self._compute_allowed(view, query.item_filter)
        calibration = self.calibration
        vectors, k = query.vectors, query.k if calibration is None else max(query.k, MIN_HITS)

        labels = np.full((len(vectors), k), -1, np.int64)
        scores = np.full((len(vectors), k), -np.inf, np.float32)
        probabilities = None if calibration is None else np.full(labels.shape, np.nan)
        candidates = max(k, math.ceil(query.k * (query.rescoring or 1)))
        for batch in query.slice_batches(candidates, self.spec.width):
            directions = normalize_rows(vectors[batch]) if self.spec.metric == "cosine" else vectors[batch]
            mapped = query.reduced or self.reducer.only_normalizes
            reduced = directions if mapped else self.reducer.reduce_queries(vectors[batch])
            result = self.find_candidates(reduced, view, allowed, candidates, query.ef or DEFAULT_EF, query.exact)
            if query.rescoring is not None:
                originals = directions
                if self.reducer.leading is not None:
                    originals = self.reducer.map_for_rescoring(vectors[batch])
                assert self.rows.originals is not None
                result = rescore(originals, self.rows.originals, result[0], k, self.spec.metric)

            rows, scores[batch, : result[1].shape[1]] = result  # fewer columns than k if there are fewer rows
            if calibration is not None and probabilities is not None:
                compared = result[1] if query.rescoring is None else self._score_rows(reduced, view, rows)
                probabilities[batch, : rows.shape[1]] = calibration.estimate(reduced, rows, compared)
            if view.count:
                labels[batch, : rows.shape[1]] = np.where(rows < 0, -1, view.labels[rows])
        if self.spec.metric == "cosine":
            np.minimum(scores, 1, out=scores)  # rounding may give a little more
            np.maximum(scores, -1, out=scores, where=labels >= 0)
        if probabilities is not None:
            labels, scores, probabilities = labels[:, : query.k], scores[:, : query.k], probabilities[:, : query.k]
        return labels, -scores if self.spec.metric == "l2" else scores, probabilities

    def _score_rows(self, queries: Vectors, view: RowsView, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the scores `(q, k)` of reduced queries with the compact vectors of their rows `(q, k)`."""
        scores = [
            self.vector_format.score(torch.from_numpy(query[None]), view.compact[np.maximum(own, 0)])[0].numpy()
            for query, own in zip(queries, rows, strict=True)
        ]
        return np.stack(scores)

    def find_candidates(
        self, queries: Vectors, view: RowsView, allowed: Mask | None, count: int, ef: int, exact: bool = False
    ) -> SearchResult:
        """Return the row numbers and scores, each `(q, c)`, of the best rows for each query by their compact vectors.

        They come from the graph, and by exact search from the rows that are not in it yet. All allowed rows are
        searched exactly if there are at most `exact_rows`, and for each query for which the graph finds too few.

        Args:
            queries: reduced queries `(q, k)`.
            view: rows at the start of the search.
            allowed: mask of the rows that may be returned; None for all.
            count: number of candidates per query.
            ef: size of the graph's candidate list.
            exact: whether all allowed rows are compared, however many.
        """
        score = self.vector_format.score
        candidate_rows = view.count if allowed is None else int(allowed.sum())
        count = min(count, candidate_rows)
        if not count:
            return empty_results(len(queries), 0)
        if exact or candidate_rows <= self.exact_rows:
            among = slice(0, view.count) if allowed is None else np.flatnonzero(allowed)
            return search_exactly(queries, view.compact, among, None, count, score)

        rows, scores, covered = self._search_graph(queries, view, allowed, count, ef)
        # Queries for which the graph reached too few allowed rows.
        short = np.flatnonzero(rows.min(axis=1) < 0) if covered else ()
        if covered < view.count:
            behind = search_exactly(queries, view.compact, slice(covered, view.count), allowed, count, score)
            rows, scores = merge_results((rows, scores), behind, count)
        if len(short):
            everywhere = slice(0, view.count)
            rows[short], scores[short] = search_exactly(queries[short], view.compact, everywhere, allowed, count, score)
        return rows, scores

    def _search_graph(
        self, queries: Vectors, view: RowsView, allowed: Mask | None, count: int, ef: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """Search the graph. Return row numbers `(q, count)`, scores `(q, count)`, and how many rows the graph had.

        Nodes without an allowed row fill the candidate list too, so proportionally more are requested. Still, a query
        may get too few rows, padded with −1. The result has no rows and covers 0 if the graph is missing, if so
        many candidates take longer than exact search, or if the graph reaches too few rows.
        """
        graph, nodes = self.graph, self.nodes.current
        share = 1.0 if allowed is None or not nodes.count else nodes.count_allowed(allowed) / nodes.count
        # Barred nodes take places in the graph's result. Their share near a query varies, hence a fifth and 16 more.
        requested = count if share == 1 else math.ceil(1.2 * count / max(share, 1e-9)) + 16
        requested = min(requested, graph.covered) if graph else 0
        result = None
        if graph is not None and 0 < requested <= MAX_CANDIDATES:
            # The list is longer by the same share, so that it has about as many allowed nodes as without a filter.
            result = graph.search(queries, requested, max(math.ceil(ef / share), requested))
        if result is None:
            return *empty_results(len(queries), count), 0

        found, scores, linked = result
        nodes = self.nodes.current  # it may have grown, and has the rows of all nodes that the graph had
        upto = min(nodes.count_covered(linked), view.count)
        return *nodes.rank(found, scores, allowed, upto, count), upto

    def find_matching_labels(self, item_filter: Filter) -> Labels:
        """Return the labels (the record's integer ids) of the items whose metadata satisfy a filter.

        Deleted and replaced items are left out.

        Raises:
            TooLargeError: if the filter takes too much work.
        """
        view = self.rows.take_view()
        return view.labels[self.filters.compute_mask(item_filter, view) & view.alive]

    def _compute_allowed(self, view: RowsView, item_filter: Filter | None) -> Mask | None:
        alive = None if not self.rows.dead else view.alive
        if item_filter is None:
            return alive
        return self.filters.compute_mask(item_filter, view) & view.alive


def describe_state(generation: Generation) -> str:
    """Return "building" while the graph lacks so many rows that searching them exactly is slow, else "ready"."""
    lacking = generation.rows.count - generation.covered
    return "building" if generation.graph is not None and lacking > generation.exact_rows else "ready"


def measure_bytes(generation: Generation, record_bytes: int) -> dict[str, int]:
    """Return the sizes in bytes of record, rows and graph, by these names. `record_bytes` is returned as it is."""
    return {"record": record_bytes, "rows": generation.rows.bytes, "graph": generation.graph_bytes}


def measure_memory(generation: Generation, payload_bytes: int) -> dict[str, dict[str, int]]:
    """Return the bytes that each part of an open index takes, as `{"anonymous": {…}, "page_cache": {…}}`.

    Returns:
        `anonymous`: memory of the process, for graph, mask of dead rows, and caches of filters and payloads.
            `page_cache`: sizes of the mapped row files, by name. The system holds as much of them as there is room
            for, and can drop it again; a process that has read them counts what it holds as shared resident memory.
    """
    rows = generation.rows
    return {
        "anonymous": {
            "graph": generation.graph_bytes,
            "alive": rows.alive.nbytes,
            "filters": generation.filters.bytes,
            "payloads": payload_bytes,
        },
        "page_cache": {file.path.name: rows.count * file.row_bytes for file in rows.files},
    }


def list_hints(generation: Generation) -> list[str]:
    """Return advice for the user: to install a graph library, and to compact an index with many dead rows.

    An index is worth compacting if over 30 % of its rows are dead (of deleted or replaced items).
    """
    rows = generation.rows
    hints = [problem] if (problem := find_graph_problem(generation.graph)) else []
    if rows.dead > WORTH_COMPACTING * max(rows.count, 1):
        share = f"{rows.dead:,} of {rows.count:,} rows are of deleted or replaced items"
        hints.append(f"{share}; /reindex with {{}} compacts")
    return hints
