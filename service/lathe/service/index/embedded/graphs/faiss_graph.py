"""HNSW graph by FAISS, over codes or floats. A node of codes takes a tenth of the memory of a full float vector."""

from importlib import import_module
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.index.embedded.exact import rank_rows
from lathe.service.index.embedded.graphs.graph import GraphLock, GraphResult
from lathe.service.index.embedded.graphs.scoring import LinkBytes, RowScoring
from lathe.service.index.embedded.rows import GROWTH
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec

ADDED_ROWS = 4096
"""Number of rows that are added at once."""
MIN_SHARE = 1 / 8
"""Minimum number of lacking rows, as a share of the covered ones, to decode the covered rows to `LinkBytes`.

Fewer are linked by comparing codes, which is slower for each row but needs no decoding."""


class FaissGraph:
    """HNSW graph by FAISS over byte codes or floats, with the methods of `Graph`.

    Rows are linked to the rows whose decoded vectors are nearest by Euclidean distance. While many codes are added, the
    decoded vectors are also stored as bytes; few are linked by comparing codes, which takes five times as long.
    Searches compare float queries with codes by inner products. FAISS leaves norms out of these, so each candidate's
    score is then corrected by two factors of its row.

    Attributes:
        bytes: memory of codes, links, factors, and of the storage and tables that link rows. It is counted after each
            addition, because FAISS's structures must not be read during one.
    """

    def __init__(self, spec: IndexSpec, scoring: RowScoring, threads: int) -> None:
        self.faiss: Any = import_module("faiss")  # its types lack what its classes have
        self.spec = spec
        self.scoring = scoring
        self.engine = scoring.engine
        self.metric = self.faiss.METRIC_L2 if scoring.by_distance else self.faiss.METRIC_INNER_PRODUCT
        self.threads = threads
        self.covered = 0
        self.index: Any = None
        self.links: LinkBytes | None = None  # while many rows are added
        self.factors = np.empty((0, 2), np.float32)  # of the covered rows, and space for more
        self.bytes = 0
        self.lock = GraphLock(lambda _: None)  # FAISS takes the effort with each search

    def extend(self, rows: NDArray[Any], threads: int, lacking: int) -> None:
        """Add rows after those in the graph, in blocks of 4,096. Searches wait for a block.

        `lacking` counts the rows that the graph lacked before the call, these included. If many are lacking, they are
        linked by coarser bytes, which is faster.
        """
        if self.links is None and lacking >= MIN_SHARE * self.covered:
            self.links = self._create_links()

        for start in range(0, len(rows), ADDED_ROWS):
            codes = rows[start : start + ADDED_ROWS]
            factors, vectors = self.scoring.compute_factors(codes), self.scoring.decode(codes)
            with self.lock.acquire_exclusive():
                if self.index is None:
                    self.index = self.scoring.create_graph(self.spec.m)
                    self.index.hnsw.efConstruction = self.spec.ef_construction
                self.faiss.omp_set_num_threads(threads)
                try:
                    self._add(codes, vectors)
                    self._append_factors(factors)
                    self.bytes = self._count_bytes()
                except BaseException:  # codes without links, or links without codes, would shift all later rows
                    self._clear()
                    raise

        if len(rows) == lacking and self.links is not None:
            self.links = None
            self.bytes = self._count_bytes()

    def _clear(self) -> None:
        self.index, self.links, self.covered, self.bytes = None, None, 0, 0
        self.factors = np.empty((0, 2), np.float32)

    def _create_links(self) -> LinkBytes | None:
        """Return a byte storage with all rows of the graph to link new rows by, or None if byte codes are compared."""
        links = self.scoring.create_links()
        if links is not None and self.covered:
            codes = self.faiss.vector_to_array(self.faiss.downcast_index(self.index.storage).codes)
            for block in np.split(codes.reshape(self.covered, -1), range(ADDED_ROWS, self.covered, ADDED_ROWS)):
                links.storage.add(links.convert(self.scoring.decode(block)))
        return links

    def _add(self, codes: NDArray[Any], vectors: Vectors) -> None:
        """Add byte codes `(n, b)` to the graph's storage and link them.

        `vectors` `(n, k)` are the same rows, decoded.
        """
        storage = self.faiss.downcast_index(self.index.storage)
        self._set_metric(self.faiss.METRIC_L2)
        if self.links is None:
            self.scoring.prepare_comparisons(storage)
            self.index.add(vectors)
        else:
            storage.add_sa_codes(np.ascontiguousarray(codes))
            # Only while rows are linked: FAISS then reads these bytes in place of the codes.
            self.index.storage, self.index.d = self.links.storage, self.links.width
            try:
                self.index.add(self.links.convert(vectors))
            finally:
                self.index.storage, self.index.d = storage, storage.d
        self._set_metric(self.metric)

    def _append_factors(self, factors: NDArray[np.float32]) -> None:
        """Store the score factors `(n, 2)` of added rows, and count these rows as covered.

        A full array is enlarged by more than the rows need.
        """
        upto = self.covered + len(factors)
        if upto > len(self.factors):
            grown = np.zeros((max(upto, int(GROWTH * len(self.factors))), 2), np.float32)
            grown[: self.covered] = self.factors[: self.covered]
            self.factors = grown
        self.factors[self.covered : upto] = factors
        self.covered = upto

    def _set_metric(self, metric: int) -> None:
        """Set the metric by which FAISS compares: Euclidean distance to link rows, `self.metric` to search."""
        self.index.metric_type = self.index.storage.metric_type = metric
        self.index.hnsw.is_similarity = metric == self.faiss.METRIC_INNER_PRODUCT

    def search(self, queries: Vectors, k: int, ef: int) -> GraphResult | None:
        """Return the numbers of the k nearest rows to each query, their scores, and the number of rows searched.

        The result is None if the graph has fewer than k rows. Where fewer than k rows are reached, the arrays are
        filled up with row −1 and score −inf.
        """
        mapped, shift = self.scoring.map_queries(queries)
        with self.lock.acquire_shared(0):  # the same for all: searches of any effort run together
            covered, factors = self.covered, self.factors
            if k > covered:
                return None
            self.faiss.omp_set_num_threads(self.threads)
            # All that the search has examined is ranked again, because the correction changes the order.
            examined = min(max(k, ef), covered)
            effort = self.faiss.SearchParametersHNSW(efSearch=examined)
            products, rows = self.index.search(mapped, examined, params=effort)

        products[rows < 0] = 0  # FAISS fills up with the lowest float, whose products overflow
        if self.scoring.by_distance:
            scores = -np.sqrt(np.maximum(products, 0))
        else:
            scores = factors[rows, 0] * products + factors[rows, 1] * shift[:, None]
        scores[rows < 0] = -np.inf
        best_rows, best_scores = rank_rows(rows, scores, k)
        return best_rows, best_scores.astype(np.float32, copy=False), covered

    def save(self, file: IO[bytes]) -> None:
        """Write the graph and the score factors of its rows to an open, empty file."""
        failures: list[OSError] = []

        def write(payload: bytes) -> int:
            try:
                return file.write(payload)
            except OSError as error:  # FAISS would raise another that hides it
                failures.append(error)
                raise

        try:
            self.faiss.write_index(self.index, self.faiss.PyCallbackIOWriter(write))
        except Exception:
            if failures:
                raise failures[0] from None
            raise
        file.write(self.factors[: self.covered].tobytes())
        file.flush()

    def load(self, file: IO[bytes], covered: int) -> None:
        """Replace this graph by one read from a file that `save` wrote.

        Raises:
            ValueError: if the graph in the file does not have `covered` rows.
        """
        file.seek(0)
        reader = self.faiss.PyCallbackIOReader(file.read, 1 << 20)
        index = self.faiss.read_index(reader, self.faiss.IO_FLAG_PQ_SKIP_SDC_TABLE)
        if index.ntotal != covered:
            raise ValueError(f"the graph has {index.ntotal} rows, not {covered}")
        file.seek(-8 * covered, 2)  # FAISS's reader has read beyond the end of its index
        factors = np.frombuffer(file.read(), np.float32).reshape(covered, 2)
        self.index, self.links, self.factors, self.covered = index, None, factors, covered
        self.bytes = self._count_bytes()

    def estimate_bytes(self, rows: int) -> int:
        """Return an estimate of the bytes of a graph with `rows` rows.

        It counts byte codes, factors, 2 m links, and m more on each higher level.
        """
        m = self.spec.m
        return rows * (self.scoring.code_bytes + 8 + 4 * (2 * m + m // (m - 1)) + 12)

    def _count_bytes(self) -> int:
        """Return the bytes of memory that the graph takes. It must have rows, and no thread may add rows meanwhile."""
        hnsw = self.index.hnsw
        graph = 4 * hnsw.neighbors.size() + 8 * hnsw.offsets.size() + 4 * hnsw.levels.size()
        linking = self.scoring.comparison_bytes(self.faiss.downcast_index(self.index.storage))
        linking += self.links.bytes if self.links else 0
        return int(self.covered * self.scoring.code_bytes + self.factors.nbytes + graph + linking)
