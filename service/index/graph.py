"""The HNSW graph over the first rows of a generation, by hnswlib (extra `index`)."""

import errno
import os
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from service.index.spec import IndexSpec
from service.index.turns import Turns

ROWS_LEAST = 1024
GROWTH = 1.5
SEED = 100


class Graph:
    """Rows 0 … `covered`, linked; a node's number is its row.

    Nodes are added and never changed: a row that is gone stays as a way to others, and searches
    leave it out by the rows' own mark.

    Attributes:
        covered: rows that are in it.
    """

    def __init__(self, spec: IndexSpec, threads: int) -> None:
        import hnswlib

        self.spec = spec
        self.threads = threads
        self.covered = 0
        self.index: Any = hnswlib.Index("l2" if spec.metric == "l2" else "ip", spec.dimensions)
        self.turns = Turns(self.set_ef)
        self.started = False

    def set_ef(self, ef: int) -> None:
        """Let searches look at so many candidates; hnswlib does not save it."""
        self.index.set_ef(ef)

    def extend(self, rows: NDArray[np.float32], threads: int) -> None:
        """Add rows `(n, k)` that follow on those covered; searches wait meanwhile."""
        wanted = self.covered + len(rows)
        with self.turns.writing():
            if not self.started:
                self.index.init_index(max(ROWS_LEAST, wanted), self.spec.m, self.spec.ef_construction, SEED)
                self.started = True
            if wanted > self.index.get_max_elements():
                self.index.resize_index(max(wanted, int(GROWTH * self.index.get_max_elements())))
            self.index.add_items(rows, np.arange(self.covered, wanted), num_threads=threads)
            self.covered = wanted

    def query(
        self, queries: NDArray[np.float32], k: int, ef: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int] | None:
        """The k nearest rows `(q, k)`, their scores, best first, and the rows it had; None if it cannot say.

        Scores are inner products, or Euclidean distances negated.
        """
        with self.turns.searching(ef):
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
        """Write it into an open, empty file; nobody may extend it meanwhile, searches go on.

        Raises:
            OSError: if the disk is full.
        """
        self.index.save_index(f"/dev/fd/{file.fileno()}")  # hnswlib takes paths only, and would follow a link
        if os.fstat(file.fileno()).st_size != self.index.index_file_size():  # it does not say that a write failed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def load(self, file: IO[bytes], covered: int) -> None:
        """Read what `save` wrote; the caller has checked its digest, for hnswlib does not."""
        file.seek(0)  # where /dev/fd duplicates the descriptor, its place counts
        self.index.load_index(f"/dev/fd/{file.fileno()}", max_elements=max(ROWS_LEAST, int(covered * GROWTH)))
        self.covered, self.started = covered, True

    @property
    def bytes(self) -> int:
        """In memory: vectors and lowest links of every place there is room for."""
        return int(self.index.index_file_size()) if self.covered else 0


def graph_problem() -> str | None:
    """Why there can be no graph, or None."""
    try:
        import hnswlib  # noqa: F401
    except ImportError:
        return "hnswlib is not installed, searches are exact: pip install 'lathe[index]' (needs a C++ compiler)"
    return None
