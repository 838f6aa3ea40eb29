"""HNSW graph over floats, by hnswlib (extra `index`)."""

import errno
import os
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.index.embedded.graphs.graph import GraphLock, GraphResult
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec

MIN_ROWS = 1024
"""Minimum number of rows that a graph has space for."""
GROWTH = 1.5
"""Factor by which the capacity of a full graph grows."""
SEED = 100
"""Seed of hnswlib's random levels."""
LINK_BYTES = 4
"""Size of one link of the graph, in bytes."""
DECODED_ROWS = 4096
"""Number of rows that are decoded and added at once."""


def estimate_float_graph(rows: int, dimensions: int, m: int) -> int:
    """Return an estimate of a graph's bytes: for each row its floats, 2 m links, and 16 more."""
    return rows * (4 * dimensions + LINK_BYTES * 2 * m + 16)


class HnswGraph:
    """HNSW graph over floats, whose methods are those of `Graph`. Rows that hold codes are decoded to floats.

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
        self.lock = GraphLock(self._set_ef)
        self.started = False
        self.bytes = 0

    def _create_index(self) -> Any:
        """Return an empty hnswlib index for the metric and dimensions of the settings."""
        import hnswlib

        return hnswlib.Index("l2" if self.spec.metric == "l2" else "ip", self.spec.dimensions)

    def _set_ef(self, ef: int) -> None:
        """Set the size of the candidate list of searches, which hnswlib does not save."""
        self.index.set_ef(ef)

    def extend(self, rows: NDArray[Any], threads: int, lacking: int) -> None:
        """Add rows that follow the covered ones, a block at a time, growing the capacity if needed."""
        for start in range(0, len(rows), DECODED_ROWS):
            self._add(self.decode(rows[start : start + DECODED_ROWS]), threads)

    def _add(self, vectors: Vectors, threads: int) -> None:
        """Add vectors to the hnswlib index, enlarging it if needed. Searches wait meanwhile."""
        upto = self.covered + len(vectors)
        with self.lock.writing():
            if not self.started:
                self.index.init_index(max(MIN_ROWS, upto), self.spec.m, self.spec.ef_construction, SEED)
                self.started = True
            if upto > self.index.get_max_elements():
                self.index.resize_index(max(upto, int(GROWTH * self.index.get_max_elements())))

            self.index.add_items(vectors, np.arange(self.covered, upto), num_threads=threads)
            self.covered = upto
            self.bytes = self.estimate_bytes(self.index.get_max_elements())

    def search(self, queries: Vectors, k: int, ef: int) -> GraphResult | None:
        """Return the k nearest rows to each query, their scores, and the number of rows covered.

        Returns:
            Row numbers and scores `(q, k)`. None if the graph has, or reaches, fewer than k rows.
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
        """Write the graph to an open, empty file. Raise `OSError` if the disk is full."""
        self.index.save_index(f"/dev/fd/{file.fileno()}")  # hnswlib takes paths only, and would follow a link
        if os.fstat(file.fileno()).st_size != self.index.index_file_size():  # it does not say that a write failed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def load(self, file: IO[bytes], covered: int) -> None:
        """Replace this graph by one read from a file that `save` wrote. Raise if that has not `covered` rows."""
        file.seek(0)  # where /dev/fd duplicates the descriptor, reading begins at its position
        index = self._create_index()
        index.load_index(f"/dev/fd/{file.fileno()}", max_elements=max(MIN_ROWS, int(covered * GROWTH)))
        if index.get_current_count() != covered:
            raise ValueError(f"the graph has {index.get_current_count()} rows, not {covered}")
        self.index, self.covered, self.started = index, covered, True
        self.bytes = self.estimate_bytes(index.get_max_elements())

    def estimate_bytes(self, rows: int) -> int:
        """Return an estimate of the bytes of floats and links of this number of rows."""
        return estimate_float_graph(rows, self.spec.dimensions, self.spec.m)
