"""Engines that search vectors: graphs, codes and exact search.

Each is built on one thread, except for the training of codes. An engine is built on unit vectors `(n, k)` and finds
rows by inner product. Its effort is what it trades speed for: candidates of a graph (`ef`), lists of an inverted file
(`nprobe`), nothing for exact search.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from benchmarks.ann.compressed import NAME, make_compressed
from benchmarks.ann.data import Numbers, Vectors

EFS = (10, 20, 40, 80, 120, 200, 400)
PROBES = (2, 4, 8, 16, 32, 64, 128)
TRAINED_ON = 20_000
GPU = "flat-gpu"
"""Exact search on a GPU, where FAISS is installed with one."""
ROTATIONS = 8
"""Of OPQ's training; FAISS's own 50 take a quarter of an hour on two cores."""


class Engine(Protocol):
    """An engine that is built once and searched at many efforts."""

    def build(self, vectors: Vectors) -> None:
        """Build the index over vectors `(n, k)`."""

    def set_effort(self, effort: int) -> None:
        """Set the effort of the searches that follow."""

    def search(self, queries: Vectors, count: int) -> Numbers:
        """Return the nearest rows `(q, count)` to queries `(q, k)`, the best first.

        Missing rows are −1.
        """

    @property
    def bytes(self) -> int:
        """Bytes of the index."""


class Hnswlib:
    """hnswlib's graph over float32."""

    def __init__(self, m: int, ef_construction: int, seed: int) -> None:
        self.m, self.ef_construction, self.seed = m, ef_construction, seed
        self.index: Any = None

    def build(self, vectors: Vectors) -> None:
        """Build the graph over vectors on one thread, so that the same seed gives the same graph."""
        import hnswlib

        self.index = hnswlib.Index("ip", vectors.shape[1])
        self.index.init_index(len(vectors), self.m, self.ef_construction, self.seed)
        self.index.add_items(vectors, num_threads=1)

    def set_effort(self, effort: int) -> None:
        """Set `ef`."""
        self.index.set_ef(effort)

    def search(self, queries: Vectors, count: int) -> Numbers:
        """Search the graph."""
        rows, _ = self.index.knn_query(queries, count, num_threads=1)
        return np.asarray(rows, np.int64)

    @property
    def bytes(self) -> int:
        """Bytes of the graph with its vectors."""
        return int(self.index.index_file_size())


class Faiss:
    """A FAISS index by its factory string.

    Args:
        factory: factory string, such as `HNSW16`, `HNSW16,SQ8`, `Flat`, `IVF512,RaBitQ`, `OPQ48,IVF512,PQ48`.
        ef_construction: candidates for links, of a graph.
        seed: seed of the rows that codes are trained on.
        gpu: whether to search on a GPU.
    """

    def __init__(self, factory: str, ef_construction: int, seed: int, gpu: bool = False) -> None:
        self.factory, self.ef_construction, self.seed, self.gpu = factory, ef_construction, seed, gpu
        self.index: Any = None

    def build(self, vectors: Vectors) -> None:
        """Train codes on some of the vectors with all threads, as users do, then add all vectors with one thread."""
        import faiss

        self.index = faiss.index_factory(vectors.shape[1], self.factory, faiss.METRIC_INNER_PRODUCT)
        if "HNSW" in self.factory:
            faiss.ParameterSpace().set_index_parameter(self.index, "efConstruction", self.ef_construction)
        if not self.index.is_trained:
            if "OPQ" in self.factory:
                rotation: Any = faiss.downcast_VectorTransform(self.index.chain.at(0))
                rotation.niter = ROTATIONS
            rows = np.random.default_rng(self.seed).permutation(len(vectors))[:TRAINED_ON]
            self.index.train(vectors[np.sort(rows)])
        # After the training, which may use all threads: builds are compared on one.
        faiss.omp_set_num_threads(1)
        self.index.add(vectors)
        if self.gpu:
            self.index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, self.index)

    def set_effort(self, effort: int) -> None:
        """Set `efSearch` of a graph, or `nprobe` of an inverted file."""
        import faiss

        name = "efSearch" if "HNSW" in self.factory else "nprobe"
        if name == "efSearch" or "IVF" in self.factory:
            faiss.ParameterSpace().set_index_parameter(self.index, name, effort)

    def search(self, queries: Vectors, count: int) -> Numbers:
        """Search the index."""
        _, rows = self.index.search(queries, count)
        return np.asarray(rows, np.int64)

    @property
    def bytes(self) -> int:
        """Bytes of the index as it is written."""
        import faiss

        index = faiss.index_gpu_to_cpu(self.index) if self.gpu else self.index
        return int(faiss.serialize_index(index).nbytes)


def make_engine(name: str, rows: int, m: int, ef_construction: int, seed: int) -> Engine:
    """Return an engine by its name.

    Args:
        name: `hnswlib`, `faiss-hnsw`, `faiss-hnsw-sq8`, `flat`, `flat-gpu`, `opq48` (that many bytes), `rabitq`,
            `ivf-pq96` (that many codes of 4 bits, by FastScan), or one of `benchmarks.ann.compressed`.
        rows: number of rows to build on; an inverted file has about twice their square root of lists.
        m: links of a node of a graph.
        ef_construction: candidates when it is linked.
        seed: seed of all random choices.
    """
    if name == "hnswlib":
        return Hnswlib(m, ef_construction, seed)
    if (compressed := make_compressed(name, m, ef_construction, seed)) is not None:
        return compressed
    lists = 2 ** round(np.log2(2 * np.sqrt(rows)))
    size = name.removeprefix("opq").removeprefix("ivf-pq")
    factories = {
        "faiss-hnsw": f"HNSW{m}",
        "faiss-hnsw-sq8": f"HNSW{m},SQ8",
        "flat": "Flat",
        GPU: "Flat",
        "rabitq": f"IVF{lists},RaBitQ",
        f"opq{size}": f"OPQ{size},IVF{lists},PQ{size}",
        f"ivf-pq{size}": f"IVF{lists},PQ{size}x4fs",
    }
    return Faiss(factories[name], ef_construction, seed, gpu=name == GPU)


def is_graph(name: str) -> bool:
    """Return whether an engine is a graph, whose effort is `ef`."""
    return "hnsw" in name or name.startswith("usearch")


def compresses(name: str) -> bool:
    """Return whether an engine compresses full vectors itself, as an alternative to a reduction."""
    return name.startswith(("opq", "rabitq", "ivf-pq")) or NAME.fullmatch(name) is not None


def list_efforts(name: str, efs: Sequence[int]) -> list[int]:
    """Return the efforts at which an engine is searched."""
    if name == "lathe":  # a request takes milliseconds
        return list(efs)[1::2] or list(efs)
    if is_graph(name):
        return list(efs)
    return [1] if name.startswith("flat") else list(PROBES)
