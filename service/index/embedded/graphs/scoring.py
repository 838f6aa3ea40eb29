"""How FAISS scores rows: codes as a product quantizer or as a byte for each dimension, or floats."""

from abc import ABC, abstractmethod
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.index.embedded.graphs.link_bytes import LinkBytes
from service.index.embedded.vector_formats import CodeFormat, VectorFormat
from service.index.reducer import Vectors
from training.export.faiss_codes import BYTE, build_code_index
from transforms.codes import Int8, TransformCoding
from transforms.errors import InputError


class RowScoring(ABC):
    """Rows in terms of FAISS: a score is `factors[:, 0]` · inner product + `factors[:, 1]` · shift.

    By default rows are compared with each other as they are, and queries are taken as they are.

    Attributes:
        engine: name of the graph's engine.
        code_bytes: number of bytes of a row.
        by_distance: whether a score is the negated Euclidean distance instead.
    """

    engine: str = "codes"
    code_bytes: int
    by_distance: bool = False

    @abstractmethod
    def create_graph(self, m: int) -> Any:
        """Return FAISS's empty graph, with `m` links per node, whose storage is fitted."""

    @abstractmethod
    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return what FAISS takes for rows `(n, width)`, floats `(n, k)`: it finds the same codes for them."""

    @abstractmethod
    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return two factors for each row, `(n, 2)`."""

    def create_links(self) -> LinkBytes | None:
        """Return an empty storage by which many rows are linked; None if the codes are compared as fast themselves."""
        return None

    def prepare_comparisons(self, storage: Any) -> None:  # noqa: B027
        """Prepare the storage of a graph for comparisons of its codes with each other."""

    def comparison_bytes(self, storage: Any) -> int:
        """Return the memory that comparisons of codes with each other take once for all rows."""
        return 0

    def map_queries(self, queries: Vectors) -> tuple[Vectors, NDArray[np.float32]]:
        """Return reduced queries `(q, d)` as FAISS takes them, `(q, k)`, and the shift of each, `(q,)`."""
        return np.ascontiguousarray(queries), np.zeros(len(queries), np.float32)


class ProductScoring(RowScoring):
    """Codes of `codes` and `product_codes` as a product quantizer of 256 entries a byte.

    Coordinates are scaled by the lengths of their axes, so that distances between codes are those of the vectors that
    they stand for, as far as the axes are orthogonal.
    """

    def __init__(self, vectors: CodeFormat, step: TransformCoding) -> None:
        self.vectors = vectors
        self.step = step
        self.code_bytes = step.bytes
        centroids, places = (found.cpu().numpy() for found in step.product_centroids())
        self.places = places
        decoder = step.decoder.cpu().numpy()
        lengths = np.linalg.norm(decoder, axis=1)
        self.mean = step.mean.cpu().numpy()
        self.weight = np.zeros((decoder.shape[1], BYTE * step.bytes), np.float32)
        self.weight[:, places] = (decoder / lengths[:, None]).T
        scale = np.zeros(BYTE * step.bytes, np.float32)
        scale[places] = lengths
        self.centroids = centroids * scale.reshape(step.bytes, 1, BYTE)

    def create_graph(self, m: int) -> Any:
        """Return a graph over a product quantizer with the step's centroids."""
        faiss: Any = import_module("faiss")
        graph = faiss.IndexHNSWPQ(BYTE * self.code_bytes, self.code_bytes, m)
        quantizer = faiss.downcast_index(graph.storage).pq
        faiss.copy_array_to_vector(self.centroids.ravel(), quantizer.centroids)
        graph.is_trained = graph.storage.is_trained = True
        return graph

    def create_links(self) -> LinkBytes:
        """Return an empty storage of the coordinates."""
        return LinkBytes(self.places, float(np.abs(self.centroids).max()))

    def prepare_comparisons(self, storage: Any) -> None:
        """Compute the distances between all entries of each byte, unless they are there."""
        if not self.comparison_bytes(storage):
            storage.pq.compute_sdc_table()

    def comparison_bytes(self, storage: Any) -> int:
        """Return the memory of the distances between entries, 262 kB a byte of a code; 0 before they are used."""
        return int(4 * storage.pq.sdc_table.size())

    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the centroids that the bytes name, one after the other."""
        centroids: Vectors = self.centroids[np.arange(self.code_bytes), rows]
        return centroids.reshape(len(rows), -1)

    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the norm factor and 1, over the norm of the decoded vector for cosine; zeros for a zero vector."""
        factors = np.stack([self.step.norm_factors(rows), np.ones(len(rows), np.float32)], axis=1)
        factors[~rows.any(axis=1)] = 0
        return _divide_by_norms(factors, self.vectors, rows)

    def map_queries(self, queries: Vectors) -> tuple[Vectors, NDArray[np.float32]]:
        """Return the queries' coordinates at the places of the product quantizer, and ⟨q, μ⟩."""
        return queries @ self.weight, queries @ self.mean


class ByteScoring(RowScoring):
    """Codes of `int8`: a byte for each dimension, on a scale of its own."""

    def __init__(self, vectors: CodeFormat, step: Int8) -> None:
        self.vectors = vectors
        self.step = step
        self.code_bytes = vectors.width

    def create_graph(self, m: int) -> Any:
        """Return a graph over FAISS's scalar quantizer of 8 bits with the step's ranges."""
        faiss: Any = import_module("faiss")
        graph = faiss.IndexHNSWSQ(self.code_bytes, faiss.ScalarQuantizer.QT_8bit, m)
        fitted = build_code_index(faiss, self.step)  # named, or it would be freed before its ranges are copied
        faiss.downcast_index(graph.storage).sq = fitted.index.sq
        graph.is_trained = graph.storage.is_trained = True
        return graph

    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the values that codes stand for."""
        decoded: Vectors = self.step.inverse_transform(self.vectors.reducer.view_codes(rows))
        return np.ascontiguousarray(decoded)

    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return 1, over the norm of the decoded vector for cosine, and 0."""
        factors = np.stack([np.ones(len(rows), np.float32), np.zeros(len(rows), np.float32)], axis=1)
        return _divide_by_norms(factors, self.vectors, rows)


class FloatScoring(RowScoring):
    """Rows of floats, or of codes that FAISS cannot score, which are decoded to floats.

    Args:
        vectors: format of the rows.
        dimensions: number of floats of a row.
    """

    engine = "faiss"

    def __init__(self, vectors: VectorFormat, dimensions: int) -> None:
        self.vectors = vectors
        self.dimensions = dimensions
        self.code_bytes = 4 * dimensions
        self.by_distance = vectors.metric == "l2"

    def create_graph(self, m: int) -> Any:
        """Return a graph over floats."""
        faiss: Any = import_module("faiss")
        return faiss.IndexHNSWFlat(self.dimensions, m)

    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the floats of rows."""
        return np.ascontiguousarray(self.vectors.decode(rows))

    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return 1 and 0 for each row."""
        return np.tile(np.array([1, 0], np.float32), (len(rows), 1))


def _divide_by_norms(factors: NDArray[np.float32], vectors: CodeFormat, rows: NDArray[Any]) -> NDArray[np.float32]:
    """Divide factors `(n, 2)` by the norms of what the codes stand for, if the metric is cosine."""
    if vectors.metric != "cosine":
        return factors
    norms = vectors.quantizer.decoded_norms(vectors.reducer.view_codes(rows))
    norms[norms == 0] = 1
    divided: NDArray[np.float32] = factors / norms[:, None]
    return divided


def choose_scoring(vectors: CodeFormat) -> RowScoring | None:
    """Return how FAISS scores the codes of a format; None if it cannot: bits, coordinates that cross bytes, l2."""
    if vectors.metric == "l2":
        return None
    if isinstance(vectors.quantizer, Int8):
        return ByteScoring(vectors, vectors.quantizer)
    if isinstance(vectors.quantizer, TransformCoding):
        with suppress(InputError):  # coordinates that cross bytes are no product quantizer
            return ProductScoring(vectors, vectors.quantizer)
    return None
