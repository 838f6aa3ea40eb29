"""Protocol of the graphs that find candidates, the lock that their engines hold, and the graph over floats by hnswlib.

hnswlib is the extra `index`.
"""

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec

GraphResult = tuple[NDArray[np.int64], NDArray[np.float32], int]
"""Row numbers `(q, k)`, best first, their scores `(q, k)`, and the number of rows in the graph during the search.

A graph that reaches fewer than k rows either fills up with row −1 and score −inf, or returns None."""


class Graph(Protocol):
    """Protocol of a nearest-neighbour graph, such as HNSW, over rows 0 to `covered` - 1.

    A graph takes distinct rows of the row file in their order, floats or codes, and numbers them from 0: its nodes, see
    `nodes`. Rows are never removed: a deleted row stays, because paths to other rows lead through it, and the caller
    leaves it out of the results. One thread extends, saves and loads; any number may search meanwhile.

    Attributes:
        engine: name of the engine, and last part of the name of the graph's file. An engine that cannot read the files
            of another, or of an earlier version of itself, has another name.
        covered: number of rows in the graph.
    """

    engine: str
    covered: int

    def extend(self, rows: NDArray[Any], threads: int, lacking: int) -> None:
        """Add rows after those in the graph. Meanwhile searches wait, or search the rows that were in it before.

        Args:
            rows: the rows `(n, k)`.
            threads: number of threads.
            lacking: number of rows that the graph lacks, including `rows`; it may be extended by the others next.
        """

    def search(self, queries: Vectors, k: int, ef: int) -> GraphResult | None:
        """Return the numbers of the k nearest rows to each query, their scores, and the number of rows searched.

        Args:
            queries: reduced queries `(q, d)`, as floats, of norm 1 for cosine.
            k: number of rows per query.
            ef: effort of the search: how many candidates are examined, at least.

        Returns:
            Row numbers `(q, k)`, scores `(q, k)` as of exact search (inner products, or negated Euclidean distances for
                l2), and the number of rows in the graph. None if the graph has fewer than k rows or cannot reach k.
        """

    def save(self, file: IO[bytes]) -> None:
        """Write the graph to an open, empty file.

        Searches may go on, but the graph must not be extended meanwhile.

        Raises:
            OSError: if the disk is full.
        """

    def load(self, file: IO[bytes], covered: int) -> None:
        """Replace the graph by the one of `covered` rows in a file that `save` wrote.

        The caller must have checked the file's digest. After an error, of any kind that the engine's library raises,
        the graph is as before.

        Raises:
            ValueError: if the file holds another number of rows.
        """

    def estimate_bytes(self, rows: int) -> int:
        """Return an estimate of the memory in bytes that the graph takes with `rows` rows."""

    @property
    def bytes(self) -> int:
        """Memory of the graph in bytes, without row files that it shares, or 0 while empty."""


class GraphLock:
    """Fair readers–writer lock of a graph: many searches with the same `ef` at once, or one writer.

    hnswlib's searches share the graph's `ef` and must not run while the graph is written to (its issues 29, 205, 590).
    So searches hold the lock together as long as they want the same `ef`; a search with another, or a writer, waits for
    them, and later ones wait behind it, so that no thread starves.

    Args:
        on_change: called with the new `ef` before the first search that uses it begins.
    """

    def __init__(self, on_change: Callable[[int], None]) -> None:
        self.on_change = on_change
        self.changed = threading.Condition()
        self.waiting: deque[object] = deque()
        self.holders = 0
        self.ef: int | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody holds the lock or waits for it."""
        return not self.holders and not self.waiting

    def acquire_shared(self, ef: int) -> AbstractContextManager[None]:
        """Return a context manager that holds the lock for a search, together with other searches of the same `ef`."""
        return self._hold(ef)

    def acquire_exclusive(self) -> AbstractContextManager[None]:
        """Return a context manager that holds the lock alone, to change the graph."""
        return self._hold(None)

    @contextmanager
    def _hold(self, ef: int | None) -> Iterator[None]:
        """Hold the lock during the block, after waiting for it in order of arrival.

        A search calls `on_change` first if the last holder had another `ef`.

        Args:
            ef: `ef` of a search; None for a writer.
        """
        ticket = object()
        with self.changed:
            self.waiting.append(ticket)
            self.changed.wait_for(lambda: self.waiting[0] is ticket and self._admits(ef))
            self.waiting.popleft()
            if not self.holders and ef is not None and ef != self.ef:
                self.on_change(ef)
            self.ef = ef
            self.holders += 1
            self.changed.notify_all()  # the next may be of the same kind

        try:
            yield
        finally:
            with self.changed:
                self.holders -= 1
                self.changed.notify_all()

    def _admits(self, ef: int | None) -> bool:
        """Return whether a caller can hold the lock now: nobody does, or only searches of the same `ef`."""
        return not self.holders or (ef is not None and ef == self.ef)


MIN_GRAPH_ROWS = 1024
"""Minimum number of rows that a graph has space for."""
GROWTH = 1.5
"""Factor by which the capacity of a full graph grows."""
SEED = 100
"""Seed of hnswlib's random levels."""
LINK_BYTES = 4
"""Size of one link of the graph, in bytes."""
DECODED_ROWS = 4096
"""Number of rows that are decoded at once."""
LINKED_ROWS = 8
"""Number of rows that each thread links while searches wait: in a graph of 100,000 rows, some 5 ms."""


def estimate_float_graph(rows: int, dimensions: int, m: int) -> int:
    """Return an estimate of the bytes of a graph over floats: for each row its floats, 2 m links, and 16 more."""
    return rows * (4 * dimensions + LINK_BYTES * 2 * m + 16)


class HnswGraph:
    """HNSW graph by hnswlib over float vectors. Rows that hold byte codes are decoded to floats.

    Args:
        decode: function that converts rows of the row file to floats `(n, d)`.

    Attributes:
        bytes: memory of vectors and links for the whole capacity. hnswlib would count it in structures that an addition
            may replace meanwhile.
    """

    engine = "hnsw"

    def __init__(self, spec: IndexSpec, decode: Callable[[NDArray[Any]], Vectors], threads: int) -> None:
        self.spec = spec
        self.decode = decode
        self.threads = threads
        self.covered = 0
        self.index = self._create_index()
        # hnswlib does not save `ef`, and `load` replaces the index, which is therefore looked up for each change.
        self.lock = GraphLock(lambda ef: self.index.set_ef(ef))
        self.started = False
        self.bytes = 0

    def _create_index(self) -> Any:
        import hnswlib

        return hnswlib.Index("l2" if self.spec.metric == "l2" else "ip", self.spec.dimensions)

    def extend(self, rows: NDArray[Any], threads: int, lacking: int) -> None:
        """Add rows after those in the graph, and enlarge the graph if needed. Searches wait for a block.

        A block has a few rows, or thousands while the graph lacks more than that: small blocks take a twentieth longer.
        """
        step = LINKED_ROWS * threads if lacking <= DECODED_ROWS else DECODED_ROWS
        for start in range(0, len(rows), DECODED_ROWS):
            vectors = self.decode(rows[start : start + DECODED_ROWS])
            for first in range(0, len(vectors), step):
                self._add(vectors[first : first + step], threads)

    def _add(self, vectors: Vectors, threads: int) -> None:
        """Add vectors to the hnswlib index, enlarging it if needed. Searches wait meanwhile."""
        upto = self.covered + len(vectors)
        with self.lock.acquire_exclusive():
            if not self.started:
                self.index.init_index(max(MIN_GRAPH_ROWS, upto), self.spec.m, self.spec.ef_construction, SEED)
                self.started = True
            if upto > self.index.get_max_elements():
                self.index.resize_index(max(upto, int(GROWTH * self.index.get_max_elements())))

            self.index.add_items(vectors, np.arange(self.covered, upto), num_threads=threads)
            self.covered = upto
            self.bytes = self.estimate_bytes(self.index.get_max_elements())

    def search(self, queries: Vectors, k: int, ef: int) -> GraphResult | None:
        """Return the numbers of the k nearest rows to each query, their scores, and the number of rows searched.

        The result is None if the graph has, or reaches, fewer than k rows.
        """
        with self.lock.acquire_shared(ef):
            covered = self.covered
            if k > covered:
                return None
            try:
                rows, distances = self.index.knn_query(queries, k, num_threads=self.threads)
            except RuntimeError:  # fewer than k nodes can be reached from its entry
                return None

        if self.spec.metric == "l2":
            return rows.view(np.int64), -np.sqrt(np.maximum(distances, 0)), covered
        return rows.view(np.int64), 1 - distances, covered

    def save(self, file: IO[bytes]) -> None:
        """Write the graph to an open, empty file. Raise `OSError` if the disk is full."""
        self.index.save_index(f"/dev/fd/{file.fileno()}")  # hnswlib takes paths only, and would follow a link
        if os.fstat(file.fileno()).st_size != self.index.index_file_size():  # it does not say that a write failed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def load(self, file: IO[bytes], covered: int) -> None:
        """Replace this graph by one read from a file that `save` wrote.

        Raises:
            ValueError: if the graph in the file does not have `covered` rows.
        """
        file.seek(0)  # where /dev/fd duplicates the descriptor, reading begins at its position
        index = self._create_index()
        index.load_index(f"/dev/fd/{file.fileno()}", max_elements=max(MIN_GRAPH_ROWS, int(covered * GROWTH)))
        if index.get_current_count() != covered:
            raise ValueError(f"the graph has {index.get_current_count()} rows, not {covered}")
        self.index, self.covered, self.started = index, covered, True
        self.bytes = self.estimate_bytes(index.get_max_elements())

    def estimate_bytes(self, rows: int) -> int:
        """Return an estimate of the memory in bytes that the graph takes with `rows` rows: their floats and links."""
        return estimate_float_graph(rows, self.spec.dimensions, self.spec.m)
