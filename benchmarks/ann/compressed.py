"""Engines that search codes: graphs and inverted lists whose entries take a tenth of the original vectors.

An engine here takes vectors of length 1 with all their dimensions, compresses them itself, and is fitted on some of the
vectors that it holds. It finds candidates, which are then ranked by the originals.

| name | what is stored for each vector |
| --- | --- |
| `hnsw-byte128` | 128 principal axes, rotated, a byte each on one scale: compared as integers |
| `hnsw-pca128-6bit` | 128 principal axes, each between its extremes in 4, 6 or 8 bits |
| `hnsw-codes48` | 48 bytes of `codes`, in the graph of Lathe's own index |
| `hnsw-rabitq1` | RaBitQ of every dimension in so many bits |
| `hnswlib-pca128` | 128 principal axes as float32, in hnswlib |
| `usearch-byte128`, `usearch-bits` | 128 rotated axes as int8, or the signs of all dimensions, in USearch |
"""

import re
import tempfile
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ann.data import Numbers, Vectors
from lathe.service.index.embedded.graphs import create_graph
from lathe.service.index.embedded.vector_formats import choose_format
from lathe.service.index.reducer import Reducer, read_artifact_files
from lathe.service.index.spec import IndexSpec
from lathe.transforms import Chain, parse_steps

FITTED_ON = 20_000
"""Number of rows that axes and quantizers are fitted on."""

RANGE = 5.0
"""Half-width of the range of a byte, in standard deviations; of a normal, 1 value in 1.7 million lies beyond."""

MIDDLE = 128.5
"""Byte of 0: what is truncated to an integer after adding it is rounded."""

NAME = re.compile(
    r"hnsw-byte(?P<byte>\d+)|hnsw-pca(?P<pca>\d+)-(?P<bits>[468])bit|hnsw-codes(?P<codes>\d+)|"
    r"hnsw-rabitq(?P<rabitq>[1-9])|hnswlib-pca(?P<floats>\d+)|usearch-byte(?P<usearch>\d+)|(?P<signs>usearch-bits)"
)


def draw_rows(vectors: Vectors, seed: int) -> Vectors:
    """Draw up to `FITTED_ON` of the vectors `(n, d)` at random, and return them in their order."""
    return vectors[np.sort(np.random.default_rng(seed).permutation(len(vectors))[:FITTED_ON])]


def find_axes(vectors: Vectors, dimensions: int, seed: int | None) -> Vectors:
    """Return the leading principal axes of vectors `(n, d)` as columns `(d, k)`.

    Args:
        vectors: vectors that the axes are fitted on.
        dimensions: number of axes, k.
        seed: seed of a random rotation of the axes, after which all coordinates vary alike; None leaves them.
    """
    # eigh sorts ascending, so the leading axes are the last columns, reversed: (d, k).
    axes = np.linalg.eigh(np.cov(vectors.T))[1][:, ::-1][:, :dimensions]
    if seed is not None:
        gaussian = np.random.default_rng(seed).standard_normal((dimensions, dimensions))
        # Q of a Gaussian matrix is a rotation at random, (k, k).
        axes = axes @ np.linalg.qr(gaussian)[0]
    return np.ascontiguousarray(axes, np.float32)


def normalize_rows(vectors: Vectors) -> Vectors:
    """Scale vectors `(n, k)` to length 1."""
    normalized: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normalized


class Graph(ABC):
    """FAISS's HNSW graph over codes.

    Subclasses make the codes and the map that queries go through.

    Attributes:
        index: the graph.
        mapped_index: map of queries followed by the graph, searched by queries `(q, d)`.
    """

    def __init__(self, m: int, ef_construction: int, seed: int) -> None:
        self.m, self.ef_construction, self.seed = m, ef_construction, seed
        self.index: Any = None
        self.mapped_index: Any = None

    def build(self, vectors: Vectors) -> None:
        """Build the index over vectors `(n, d)`, on one thread."""
        import faiss

        faiss.omp_set_num_threads(1)
        self._build(vectors)
        self.mapped_index = faiss.IndexPreTransform(self.mapping, self.index)
        # FAISS counts only rows that are added through the map; these were added to the graph.
        self.mapped_index.ntotal = self.index.ntotal

    @abstractmethod
    def _build(self, vectors: Vectors) -> None:
        """Build the codes and the graph, and set `index` and `mapping`."""

    def _link(self, storage: Any, documents: Vectors) -> Any:
        """Return a graph over a storage that takes documents `(n, k)`."""
        import faiss

        graph = faiss.IndexHNSW(storage, self.m)
        graph.hnsw.efConstruction = self.ef_construction
        graph.add(documents)
        return graph

    def _map_by(self, weight: Vectors, bias: float = 0.0) -> None:
        """Set `mapping` to q ↦ q·weight + bias, for a weight `(d, k)`."""
        faiss: Any = import_module("faiss")  # its types lack what its classes have

        self.mapping = faiss.LinearTransform(*weight.shape, bool(bias))
        faiss.copy_array_to_vector(np.ascontiguousarray(weight.T).ravel(), self.mapping.A)
        if bias:
            faiss.copy_array_to_vector(np.full(weight.shape[1], bias, np.float32), self.mapping.b)
        self.mapping.is_trained = True

    def set_effort(self, effort: int) -> None:
        """Set the number of candidates of the searches that follow."""
        self.index.hnsw.efSearch = effort

    def search(self, queries: Vectors, count: int) -> Numbers:
        """Return the nearest rows `(q, count)` to queries `(q, d)`, best first."""
        return np.asarray(self.mapped_index.search(queries, count)[1], np.int64)

    @property
    def bytes(self) -> int:
        """Size of the graph with its codes, as it is written."""
        import faiss

        return int(faiss.serialize_index(self.index).nbytes)

    def save(self, path: Path) -> None:
        """Write the graph with its codes."""
        import faiss

        faiss.write_index(self.index, str(path))


class ByteGraph(Graph):
    """Graph over rotated principal axes in bytes on one scale, compared by integer arithmetic.

    Documents are at length 1 in the reduced space, so that the order of Euclidean distances is that of cosines there.
    """

    def __init__(self, dimensions: int, m: int, ef_construction: int, seed: int) -> None:
        super().__init__(m, ef_construction, seed)
        self.dimensions = dimensions

    def _build(self, vectors: Vectors) -> None:
        import faiss

        axes = find_axes(draw_rows(vectors, self.seed), self.dimensions, self.seed)
        documents = normalize_rows(vectors @ axes)
        # One scale for all coordinates, so that integer distances are in proportion to those of the floats.
        scale = 127 / (RANGE * float(documents.std()))
        storage = faiss.IndexScalarQuantizer(self.dimensions, faiss.ScalarQuantizer.QT_8bit_direct, faiss.METRIC_L2)
        self.index = self._link(storage, np.clip(documents * scale + MIDDLE, 0, 255))
        self._map_by(axes * scale, MIDDLE)


class ScalarGraph(Graph):
    """Graph over principal axes, each quantized evenly between its extremes."""

    def __init__(self, dimensions: int, bits: int, m: int, ef_construction: int, seed: int) -> None:
        super().__init__(m, ef_construction, seed)
        self.dimensions, self.bits = dimensions, bits

    def _build(self, vectors: Vectors) -> None:
        import faiss

        sample = draw_rows(vectors, self.seed)
        axes = find_axes(sample, self.dimensions, None)
        middle = sample.mean(0) @ axes
        kind = getattr(faiss.ScalarQuantizer, f"QT_{self.bits}bit")
        storage = faiss.IndexScalarQuantizer(self.dimensions, kind, faiss.METRIC_INNER_PRODUCT)
        storage.train(sample @ axes - middle)
        self.index = self._link(storage, vectors @ axes - middle)
        self._map_by(axes)  # a query keeps the mean: for one query it adds the same to every score


class CodesGraph:
    """Graph of Lathe's own index over the codes of a chain.

    The chain is fitted on some of the vectors.
    """

    def __init__(self, code_bytes: int, m: int, ef_construction: int, seed: int) -> None:
        self.code_bytes, self.m, self.ef_construction, self.seed = code_bytes, m, ef_construction, seed
        self.effort = 0
        self.reducer: Any = None
        self.graph: Any = None

    def build(self, vectors: Vectors) -> None:
        """Fit the chain, encode vectors `(n, d)`, and link them on one thread."""
        chain = Chain(parse_steps(f"codes:{self.code_bytes}")).fit(draw_rows(vectors, self.seed))
        width = vectors.shape[1]
        dimensions = chain.dimensions_after(width)
        spec = IndexSpec(
            None, None, width, "raw", "fitted", dimensions, "fitted", m=self.m, ef_construction=self.ef_construction
        )
        with tempfile.TemporaryDirectory() as folder:
            chain.save(Path(folder, "1"))
            self.reducer = Reducer(spec, read_artifact_files(Path(folder, "1")))
        self.graph = create_graph(spec, choose_format(spec, self.reducer), 1)
        codes = self.reducer.encode(vectors)
        self.graph.extend(codes, 1, len(codes))

    def set_effort(self, effort: int) -> None:
        """Set the number of candidates of the searches that follow."""
        self.effort = effort

    def search(self, queries: Vectors, count: int) -> Numbers:
        """Return the nearest rows `(q, count)` to queries `(q, d)`, best first."""
        rows: Numbers = self.graph.search(self.reducer.reduce_queries(queries), count, self.effort)[0]
        return rows

    @property
    def bytes(self) -> int:
        """Size of the graph with its codes."""
        return int(self.graph.bytes)

    def save(self, path: Path) -> None:
        """Write the graph with its codes."""
        with path.open("w+b") as file:
            self.graph.save(file)


class RabitqGraph(Graph):
    """Graph over RaBitQ of all dimensions, rotated at random."""

    def __init__(self, bits: int, m: int, ef_construction: int, seed: int) -> None:
        super().__init__(m, ef_construction, seed)
        self.bits = bits

    def _build(self, vectors: Vectors) -> None:
        faiss: Any = import_module("faiss")
        axes = find_axes(draw_rows(vectors, self.seed), vectors.shape[1], self.seed)
        self.index = faiss.IndexHNSWRaBitQ(vectors.shape[1], self.m, self.bits)
        self.index.hnsw.efConstruction = self.ef_construction
        faiss.downcast_index(self.index.storage).qb = 4
        self.index.train(draw_rows(vectors, self.seed) @ axes)
        self.index.add(vectors @ axes)
        self._map_by(axes)


class ReducedHnswlib:
    """hnswlib's graph over principal axes as floats."""

    def __init__(self, dimensions: int, m: int, ef_construction: int, seed: int) -> None:
        self.dimensions, self.m, self.ef_construction, self.seed = dimensions, m, ef_construction, seed
        self.index: Any = None

    def build(self, vectors: Vectors) -> None:
        """Build the index over vectors `(n, d)`, on one thread."""
        import hnswlib

        sample = draw_rows(vectors, self.seed)
        self.axes = find_axes(sample, self.dimensions, None)
        self.index = hnswlib.Index("ip", self.dimensions)
        self.index.init_index(len(vectors), self.m, self.ef_construction, self.seed)
        self.index.add_items((vectors - sample.mean(0)) @ self.axes, num_threads=1)

    def set_effort(self, effort: int) -> None:
        """Set the number of candidates of the searches that follow."""
        self.index.set_ef(effort)

    def search(self, queries: Vectors, count: int) -> Numbers:
        """Return the nearest rows `(q, count)` to queries `(q, d)`, best first."""
        return np.asarray(self.index.knn_query(queries @ self.axes, count, num_threads=1)[0], np.int64)

    @property
    def bytes(self) -> int:
        """Size of the graph with its vectors."""
        return int(self.index.index_file_size())

    def save(self, path: Path) -> None:
        """Write the graph with its vectors."""
        self.index.save_index(str(path))


class Usearch:
    """USearch's graph over rotated principal axes as int8, or over the signs of the centred vectors.

    Args:
        dimensions: number of axes; None stores signs of all dimensions.
        m: number of links of a node.
        ef_construction: number of candidates for links.
        seed: seed of the drawn rows and the rotation.
    """

    def __init__(self, dimensions: int | None, m: int, ef_construction: int, seed: int) -> None:
        self.dimensions, self.m, self.ef_construction, self.seed = dimensions, m, ef_construction, seed
        self.index: Any = None

    def build(self, vectors: Vectors) -> None:
        """Build the index over vectors `(n, d)`, on one thread."""
        from usearch.index import Index

        sample = draw_rows(vectors, self.seed)
        self.axes = find_axes(sample, self.dimensions or vectors.shape[1], self.seed)
        self.middle = sample.mean(0) @ self.axes if self.dimensions is None else np.float32(0)
        self.index = Index(
            ndim=self.axes.shape[1],
            metric="hamming" if self.dimensions is None else "cos",
            dtype="b1" if self.dimensions is None else "i8",
            connectivity=self.m,
            expansion_add=self.ef_construction,
        )
        self.index.add(np.arange(len(vectors)), self._encode(vectors), threads=1)

    def _encode(self, vectors: Vectors) -> Any:
        """Encode vectors `(n, d)` as USearch takes them: packed bits, or floats."""
        reduced = vectors @ self.axes - self.middle
        return np.packbits(reduced > 0, axis=1) if self.dimensions is None else reduced

    def set_effort(self, effort: int) -> None:
        """Set the number of candidates of the searches that follow."""
        self.index.expansion_search = effort

    def search(self, queries: Vectors, count: int) -> Numbers:
        """Return the nearest rows `(q, count)` to queries `(q, d)`, best first."""
        return np.asarray(self.index.search(self._encode(queries), count, threads=1).keys, np.int64).reshape(-1, count)

    @property
    def bytes(self) -> int:
        """Size of the graph with its codes, as it is written."""
        return int(self.index.serialized_length)

    def save(self, path: Path) -> None:
        """Write the graph with its codes."""
        self.index.save(str(path))


Compressed = Graph | CodesGraph | ReducedHnswlib | Usearch


def make_compressed(name: str, m: int, ef_construction: int, seed: int) -> Compressed | None:
    """Return an engine of the table above by its name, or None for any other name."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    kind, value = next((kind, value) for kind, value in match.groupdict().items() if value is not None)
    settings = (m, ef_construction, seed)
    if kind == "pca":
        return ScalarGraph(int(value), int(match["bits"]), *settings)
    if kind == "signs":
        return Usearch(None, *settings)
    number = int(value)
    kinds: dict[str, Any] = {
        "byte": ByteGraph,
        "codes": CodesGraph,
        "rabitq": RabitqGraph,
        "floats": ReducedHnswlib,
        "usearch": Usearch,
    }
    engine: Compressed = kinds[kind](number, *settings)
    return engine
