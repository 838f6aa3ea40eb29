"""Scoring of rows by FAISS: codes as a product quantizer or as a byte for each dimension, or floats."""

from abc import ABC, abstractmethod
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.index.embedded.vector_formats import CodeFormat, VectorFormat
from lathe.service.index.reducer import Vectors
from lathe.training.faiss_codes import BYTE, build_code_index
from lathe.transforms.codes import Int8, TransformCoding
from lathe.transforms.errors import InputError

MULTIPLE = 32
"""The number of bytes of a row is a multiple of this number, for which FAISS compares bytes fastest."""
MIDDLE = 128.5
"""Byte of 0 plus a half: FAISS rounds down."""


class LinkBytes:
    """Byte storage of FAISS, in whole numbers, by which new rows of a graph find their neighbours.

    Vectors are scaled and rounded to bytes. A comparison takes a fifth of the time that the tables of a product
    quantizer take, and finds the same links.

    Args:
        positions: positions of the coordinates that vary, `(k,)`; the others are left out.
        extreme: largest absolute value of a coordinate.
    """

    def __init__(self, positions: NDArray[np.int64], extreme: float) -> None:
        faiss: Any = import_module("faiss")  # its types lack what its classes have
        self.positions = positions
        self.scale = 127 / extreme if extreme else 0.0
        self.width = -(-len(positions) // MULTIPLE) * MULTIPLE
        kind = faiss.ScalarQuantizer.QT_8bit_direct
        self.storage = faiss.IndexScalarQuantizer(self.width, kind, faiss.METRIC_L2)

    def convert(self, vectors: Vectors) -> Vectors:
        """Scale and round vectors `(n, d)` to whole numbers from 1 to 255, as floats `(n, width)` padded by 0."""
        # ⌊x · 127 / extreme + 128.5⌋ is between 1 and 255. One scale for all coordinates keeps the order of distances.
        rounded = np.zeros((len(vectors), self.width), np.float32)
        rounded[:, : len(self.positions)] = np.floor(vectors[:, self.positions] * self.scale + MIDDLE)
        return rounded

    @property
    def bytes(self) -> int:
        """Memory of the stored rows, in bytes."""
        return int(self.storage.ntotal * self.width)


class RowScoring(ABC):
    """How FAISS stores the rows of one format, and how its inner products become scores.

    The score of a row is `factors[row, 0]` · inner product + `factors[row, 1]` · shift of the query; see
    `compute_factors` and `map_queries`. By default queries are not mapped, and codes are compared directly.

    Attributes:
        by_distance: whether scores are negated Euclidean distances instead; then there are no factors.
    """

    engine: str = "codes"
    code_bytes: int
    by_distance: bool = False

    @abstractmethod
    def create_graph(self, m: int) -> Any:
        """Return an empty FAISS HNSW graph with `m` links per node, to which rows can be added."""

    @abstractmethod
    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the float vectors `(n, k)` of rows `(n, width)`, which FAISS would encode to the same byte codes."""

    @abstractmethod
    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return two factors for each row, `(n, 2)`: of the inner product, and of the query's shift."""

    def create_links(self) -> LinkBytes | None:
        """Return an empty byte storage to link many new rows by, or None if byte codes are compared as fast."""
        return None

    def prepare_comparisons(self, storage: Any) -> None:  # noqa: B027
        """Prepare a graph's storage to compare its byte codes with each other. By default nothing needs to be done."""

    def comparison_bytes(self, storage: Any) -> int:
        """Return the bytes of the tables that compare a storage's byte codes with each other, by default 0."""
        return 0

    def map_queries(self, queries: Vectors) -> tuple[Vectors, NDArray[np.float32]]:
        """Return reduced queries `(q, d)` in FAISS's coordinates `(q, k)`, and the shift `(q,)` of each query's scores.

        By default the coordinates are the same, and shifts are 0.
        """
        return np.ascontiguousarray(queries), np.zeros(len(queries), np.float32)


class _ProductScoring(RowScoring):
    """Byte codes of the transforms `codes` and `product_codes`, as a product quantizer with 256 centroids a byte.

    Coordinates are scaled by the lengths of their axes, so that distances between codes equal the distances between the
    decoded vectors, as far as the axes are orthogonal.
    """

    def __init__(self, vector_format: CodeFormat, step: TransformCoding) -> None:
        self.vector_format = vector_format
        self.step = step
        self.code_bytes = step.bytes
        # Centroids `(bytes, 256, 8)`, and the position of each coordinate of the codes among FAISS's 8 of each byte.
        centroids, self.positions = (tensor.cpu().numpy() for tensor in step.product_centroids())

        decoder = step.decoder.cpu().numpy()
        lengths = np.linalg.norm(decoder, axis=1)
        # Unit axes and the mean in columns, `(d, k + 1)`: one product gives a query's coordinates and its shift.
        self.axes = np.vstack([decoder / lengths[:, None], step.mean.cpu().numpy()]).T.copy()

        # Scaled by the lengths of the decoder's rows, so that distances between centroids are those of vectors.
        scale = np.zeros(BYTE * step.bytes, np.float32)
        scale[self.positions] = lengths
        self.centroids = centroids * scale.reshape(step.bytes, 1, BYTE)

    def create_graph(self, m: int) -> Any:
        faiss: Any = import_module("faiss")
        graph = faiss.IndexHNSWPQ(BYTE * self.code_bytes, self.code_bytes, m)
        quantizer = faiss.downcast_index(graph.storage).pq
        faiss.copy_array_to_vector(self.centroids.ravel(), quantizer.centroids)
        graph.is_trained = graph.storage.is_trained = True
        return graph

    def create_links(self) -> LinkBytes:
        return LinkBytes(self.positions, float(np.abs(self.centroids).max()))

    def prepare_comparisons(self, storage: Any) -> None:
        """Compute the table of distances between the 256 centroids of each code byte, unless it was computed."""
        if not self.comparison_bytes(storage):
            storage.pq.compute_sdc_table()

    def comparison_bytes(self, storage: Any) -> int:
        """Return the bytes of the table of centroid distances, 262 kB a code byte, or 0 before it is computed."""
        return int(4 * storage.pq.sdc_table.size())

    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the vectors `(n, k)` that byte codes `(n, b)` stand for: the centroids of each row's bytes, joined."""
        centroids: Vectors = self.centroids[np.arange(self.code_bytes), rows]
        return centroids.reshape(len(rows), -1)

    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return two factors for each row of byte codes, `(n, 2)`: of the inner product, and of the query's shift.

        They are the norm factor and 1, divided for cosine by the norm of the decoded vector. They are 0 for a zero
        vector.
        """
        factors = np.stack([self.step.norm_factors(rows), np.ones(len(rows), np.float32)], axis=1)
        factors[~rows.any(axis=1)] = 0
        return _divide_by_norms(factors, self.vector_format, rows)

    def map_queries(self, queries: Vectors) -> tuple[Vectors, NDArray[np.float32]]:
        """Return the queries in the product quantizer's coordinates `(q, k)`, and each query's shift ⟨q, μ⟩ `(q,)`."""
        products = queries @ self.axes
        coordinates = np.zeros((len(queries), BYTE * self.code_bytes), np.float32)
        coordinates[:, self.positions] = products[:, :-1]
        return coordinates, products[:, -1]


class _ByteScoring(RowScoring):
    """Byte codes of the transform `int8`: a byte for each dimension, which has its own range."""

    def __init__(self, vector_format: CodeFormat, step: Int8) -> None:
        self.vector_format = vector_format
        self.step = step
        self.code_bytes = vector_format.width

    def create_graph(self, m: int) -> Any:
        faiss: Any = import_module("faiss")
        graph = faiss.IndexHNSWSQ(self.code_bytes, faiss.ScalarQuantizer.QT_8bit, m)
        fitted = build_code_index(faiss, self.step)  # named, or it would be freed before its ranges are copied
        faiss.downcast_index(graph.storage).sq = fitted.index.sq
        graph.is_trained = graph.storage.is_trained = True
        return graph

    def decode(self, rows: NDArray[Any]) -> Vectors:
        decoded: Vectors = self.step.inverse_transform(self.vector_format.reducer.view_codes(rows))
        return np.ascontiguousarray(decoded)

    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return two factors for each row, `(n, 2)`: 1 for the inner product and 0 for the query's shift.

        For cosine the 1 is divided by the norm of the decoded vector.
        """
        factors = np.stack([np.ones(len(rows), np.float32), np.zeros(len(rows), np.float32)], axis=1)
        return _divide_by_norms(factors, self.vector_format, rows)


class FloatScoring(RowScoring):
    """Rows of floats, or of byte codes that FAISS cannot score, which are decoded to floats."""

    engine = "faiss"

    def __init__(self, vector_format: VectorFormat, dimensions: int) -> None:
        self.vector_format = vector_format
        self.dimensions = dimensions
        self.code_bytes = 4 * dimensions
        self.by_distance = vector_format.metric == "l2"

    def create_graph(self, m: int) -> Any:
        """Return an empty FAISS HNSW graph with `m` links over floats."""
        faiss: Any = import_module("faiss")
        return faiss.IndexHNSWFlat(self.dimensions, m)

    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the rows as floats `(n, k)`. Byte codes are decoded."""
        return np.ascontiguousarray(self.vector_format.decode(rows))

    def compute_factors(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return two factors for each row, `(n, 2)`: 1 for the inner product and 0 for the query's shift."""
        return np.tile(np.array([1, 0], np.float32), (len(rows), 1))


def _divide_by_norms(
    factors: NDArray[np.float32], vector_format: CodeFormat, rows: NDArray[Any]
) -> NDArray[np.float32]:
    """Return the factors `(n, 2)`, for cosine divided by the norms of the decoded vectors."""
    if vector_format.metric != "cosine":
        return factors
    norms = vector_format.quantizer.decoded_norms(vector_format.reducer.view_codes(rows))
    norms[norms == 0] = 1
    divided: NDArray[np.float32] = factors / norms[:, None]
    return divided


def choose_scoring(vector_format: CodeFormat) -> RowScoring | None:
    """Return the FAISS scoring for byte codes of this format, or None if FAISS cannot score them.

    It cannot score bits, coordinates that cross bytes, and any codes by l2.
    """
    if vector_format.metric == "l2":
        return None
    if isinstance(vector_format.quantizer, Int8):
        return _ByteScoring(vector_format, vector_format.quantizer)
    if isinstance(vector_format.quantizer, TransformCoding):
        with suppress(InputError):  # coordinates that cross bytes are not a product quantizer
            return _ProductScoring(vector_format, vector_format.quantizer)
    return None
