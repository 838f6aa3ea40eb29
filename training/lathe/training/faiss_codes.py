"""FAISS indexes that search the byte codes of Lathe's quantizers, and the transforms that FAISS applies before.

quantizer                     FAISS index            transform before the index
Int8                          IndexScalarQuantizer   none; FAISS counts codes from 0 instead of −128
Binary                        IndexPQ                zeros are appended, so that dimensions fill whole bytes
TransformCoding and           IndexPQ                linear maps from documents and from queries to the coordinates of
subclasses (ProductCoding)                           the codes
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import ExportError
from lathe.transforms.codes import Binary, Int8, ProductCoding, Quantizer, TransformCoding
from lathe.transforms.errors import InputError

BYTE = 8
"""Number of bits in a byte, and of the dimensions of FAISS's product quantizer that a byte of a code encodes."""

BYTE_VALUES = np.arange(256)
"""Values of a byte."""

MIN_RELATIVE_SIZE = 1e-5
"""Minimum of the magnitudes of a dimension in `IndexPQ`, relative to the largest magnitude."""


@dataclass(frozen=True)
class CodeIndex:
    """Empty FAISS index for the byte codes of a quantizer, and the transforms before it.

    Attributes:
        index: trained index with inner products, whose codes are the codes of the quantizer.
        documents: FAISS transform of documents before the index encodes them; None for no transform.
        queries: FAISS transform of queries before the search; the same object as `documents` if the two are alike.
        offset: number that FAISS's codes have more than the quantizer's codes in each byte, modulo 256.
    """

    index: Any
    documents: Any = None
    queries: Any = None
    offset: int = 0

    def pack(self, codes: NDArray[Any]) -> NDArray[np.uint8]:
        """Convert the quantizer's byte codes `(n, bytes)` to the bytes that the index stores, by adding `offset`."""
        return codes.view(np.uint8) + np.uint8(self.offset)


NEVER_NEAREST = 1e6
"""Entry of a centroid that FAISS must not assign to any vector: it is farther from all vectors than any other."""


def build_code_index(faiss: Any, quantizer: Quantizer) -> CodeIndex:
    """Build an empty FAISS index, with transforms, that searches codes of a quantizer. Other kinds of codes raise.

    Raises:
        ExportError: if FAISS has no index for this quantizer or for its codes.
    """
    match quantizer:
        case Int8():
            return _index_int8(faiss, quantizer)
        case Binary():
            return _index_binary(faiss, quantizer)
        case TransformCoding():
            return _index_transform_coding(faiss, quantizer)
    raise ExportError(f"FAISS has no index of {quantizer.kind} codes: use another format")


def _index_int8(faiss: Any, step: Int8) -> CodeIndex:
    """Build an empty `IndexScalarQuantizer` with the cells of a fitted `Int8`.

    The codes of the index count from 0 instead of −128.
    """
    scale, zero_point = (tensor.float().cpu().numpy() for tensor in (step.scale, step.zero_point))
    kind = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexScalarQuantizer(len(scale), kind, faiss.METRIC_INNER_PRODUCT)
    # FAISS stores the lower end of the lowest cell and the length of all cells together; decoded values are the middles
    # of cells.
    ranges = np.concatenate([(-128.5 - zero_point) * scale, 255 * scale])
    faiss.copy_array_to_vector(ranges.astype(np.float32), index.sq.trained)
    index.is_trained = True

    return CodeIndex(index, offset=128)


def _index_binary(faiss: Any, step: Binary) -> CodeIndex:
    """Build an empty `IndexPQ` for codes of one sign per dimension, eight to a byte.

    The transform before the index appends zeros, so that the dimensions fill whole bytes.
    """
    # A bit stands for ± the magnitude of its dimension: magnitudes (bytes, 1, 8), signs (256, 8).
    magnitudes = np.zeros((step.code_bytes(len(step.size)), 1, BYTE), np.float32)
    size = step.size.float().cpu().numpy()
    # FAISS compares distances in float32, in which a tiny magnitude would be lost. The minimum changes no score.
    magnitudes.reshape(-1)[: len(size)] = np.maximum(size, MIN_RELATIVE_SIZE * size.max())
    signs = np.unpackbits(BYTE_VALUES.astype(np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1
    padding = faiss.RemapDimensionsTransform(len(step.size), magnitudes.size, False)
    return CodeIndex(_build_product_index(faiss, signs * magnitudes), padding, padding)


def _index_transform_coding(faiss: Any, step: TransformCoding) -> CodeIndex:
    """Build an empty `IndexPQ`, with linear maps, that searches codes of a fitted step. Two-byte coordinates raise.

    Each byte of a code is a centroid number of the product quantizer. The map of documents is the encoder, and the map
    of queries is the transposed decoder, so that inner products of the mapped vectors are scores.

    Raises:
        ExportError: if a coordinate of the codes is stored in two bytes.
    """
    try:
        centroids, positions = (tensor.cpu().numpy() for tensor in step.product_centroids())
    except InputError as error:
        raise ExportError(
            f"FAISS cannot search codes of {step.bytes} bytes in which a coordinate is stored in two bytes: fit "
            f"another budget or equal bits (codes:{step.bytes},bits=4), or export with --format numpy"
        ) from error

    encoder, decoder = (np.zeros((BYTE * step.bytes, len(step.mean)), np.float32) for _ in range(2))
    encoder[positions], decoder[positions] = step.encoder.float().cpu().numpy(), step.decoder.float().cpu().numpy()
    if isinstance(step, ProductCoding):
        # FAISS assigns the centroid with the smallest Euclidean distance, so coordinates are scaled to units in which
        # that distance is the error of the scores.
        scale = np.ones(len(encoder), np.float32)
        scale[positions] = step.deviations.float().cpu().numpy()
        encoder, decoder = encoder * scale[:, None], decoder / scale[:, None]
        centroids = centroids * scale.reshape(step.bytes, 1, BYTE)
        # No vector may get 0 in the last byte, since the code of zeros means the zero vector.
        centroids[int(step.layout[1].max()), 0] = NEVER_NEAREST

    shift = -encoder.astype(np.float64) @ step.mean.double().cpu().numpy()
    return CodeIndex(
        _build_product_index(faiss, centroids),
        build_linear_transform(faiss, encoder, shift),
        # ⟨q, μ⟩ is left out of the scores: it is the same for all codes.
        build_linear_transform(faiss, decoder, None),
    )


def _build_product_index(faiss: Any, centroids: NDArray[np.float32]) -> Any:
    """Build an empty `IndexPQ` with inner products from centroids `(bytes, 256, 8)`."""
    code_bytes = len(centroids)
    index = faiss.IndexPQ(BYTE * code_bytes, code_bytes, BYTE, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.ascontiguousarray(centroids, np.float32).ravel(), index.pq.centroids)
    index.is_trained = True
    return index


def build_linear_transform(faiss: Any, weight: NDArray[np.float32], bias: NDArray[Any] | None) -> Any:
    """Build FAISS's `LinearTransform` x ↦ Wx + b, for a weight `(k, d)` and a bias `(k,)` or None."""
    linear = faiss.LinearTransform(weight.shape[1], weight.shape[0], bias is not None)
    faiss.copy_array_to_vector(np.ascontiguousarray(weight, np.float32).ravel(), linear.A)
    if bias is not None:
        faiss.copy_array_to_vector(bias.astype(np.float32), linear.b)
    linear.is_trained = True
    linear.set_is_orthonormal()
    return linear
