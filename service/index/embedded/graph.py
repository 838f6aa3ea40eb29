"""HNSW graph over the first rows of a generation, by hnswlib (extra `index`)."""

import errno
import os
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from service.index.embedded.graph_lock import GraphLock
from service.index.spec import IndexSpec

MIN_ROWS = 1024
"""Minimum number of rows that a graph has space for."""
GROWTH = 1.5
"""Factor by which the capacity of a full graph grows."""
SEED = 100
"""Seed of hnswlib's random levels."""


class Graph:
    """HNSW graph over rows 0 … `covered`, whose nodes are numbered like the rows.

    Nodes are added and never changed: a dead row stays as a way to others, and searches leave it out by the mask of the
    rows.

    Args:
        spec: settings of the index.
        threads: number of threads for a search.

    Attributes:
        covered: number of rows in the graph.
    """

    def __init__(self, spec: IndexSpec, threads: int) -> None:
        import hnswlib

        self.spec = spec
        self.threads = threads
        self.covered = 0
        self.index: Any = hnswlib.Index("l2" if spec.metric == "l2" else "ip", spec.dimensions)
        self.lock = GraphLock(self._set_ef)
        self.started = False

    def _set_ef(self, ef: int) -> None:
        """Set the size of the candidate list of searches, which hnswlib does not save."""
        self.index.set_ef(ef)

    def extend(self, rows: NDArray[np.float32], threads: int) -> None:
        """Add rows `(n, k)` that follow the covered ones, growing the capacity if needed; searches wait meanwhile."""
        wanted = self.covered + len(rows)
        with self.lock.writing():
            if not self.started:
                self.index.init_index(max(MIN_ROWS, wanted), self.spec.m, self.spec.ef_construction, SEED)
                self.started = True
            if wanted > self.index.get_max_elements():
                self.index.resize_index(max(wanted, int(GROWTH * self.index.get_max_elements())))
            self.index.add_items(rows, np.arange(self.covered, wanted), num_threads=threads)
            self.covered = wanted

    def search(
        self, queries: NDArray[np.float32], k: int, ef: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int] | None:
        """Return the k nearest rows `(q, k)`, best first, their scores, and the graph's row count; None on failure.

        Scores are inner products, or negated Euclidean distances for l2. The search fails if the graph has, or hnswlib
        reaches, fewer than k rows.
        """
        with self.lock.searching(ef):
            covered = self.covered
            if k > covered:
                return None
            try:
                rows, distances = self.index.knn_query(queries, k, num_threads=self.threads)
            except RuntimeError:  # fewer than k nodes can be reached from its entry
                return None
        if self.spec.metric == "l2":
            return rows.astype(np.int64), -np.sqrt(np.maximum(distances, 0)), covered
        return rows.astype(np.int64), 1 - distances, covered

    def save(self, file: IO[bytes]) -> None:
        """Write the graph to an open, empty file; searches may go on, but the graph must not be extended meanwhile.

        Raises:
            OSError: if the disk is full.
        """
        self.index.save_index(f"/dev/fd/{file.fileno()}")  # hnswlib takes paths only, and would follow a link
        if os.fstat(file.fileno()).st_size != self.index.index_file_size():  # it does not say that a write failed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def load(self, file: IO[bytes], covered: int) -> None:
        """Replace the graph by the one of `covered` rows in a file that `save` wrote.

        The caller must have checked the file's digest.
        """
        file.seek(0)  # where /dev/fd duplicates the descriptor, its place counts
        self.index.load_index(f"/dev/fd/{file.fileno()}", max_elements=max(MIN_ROWS, int(covered * GROWTH)))
        self.covered, self.started = covered, True

    @property
    def bytes(self) -> int:
        """Memory of vectors and lowest-level links for the whole capacity, in bytes; 0 while empty."""
        return int(self.index.index_file_size()) if self.covered else 0


def find_graph_problem() -> str | None:
    """Return a message for the user if hnswlib is not installed and searches are therefore exact; else None."""
    try:
        import hnswlib  # noqa: F401
    except ImportError:
        return "hnswlib is not installed, searches are exact: pip install 'lathe[index]' (needs a C++ compiler)"
    return None
