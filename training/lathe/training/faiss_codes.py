"""FAISS indexes that store the codes of Lathe's quantizers, and the transforms in front of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import ExportError
from lathe.transforms.codes import Binary, Int8, ProductCoding, Quantizer, TransformCoding
from lathe.transforms.errors import InputError

BYTE = 8
"""Number of bits in a byte, and of FAISS dimensions that a byte of a code gets."""

BYTE_VALUES = np.arange(256)
"""Values of a byte."""

MIN_RELATIVE_SIZE = 1e-5
"""Smallest size of a bit that FAISS is given, relative to the largest."""


@dataclass(frozen=True)
class CodeIndex:
    """Empty FAISS index for the byte codes of a quantizer, and the transforms before it.

    Attributes:
        index: trained index of inner products, with the same codes as the quantizer.
        documents: transform of floats that the index encodes; None takes them as they are.
        queries: transform of floats that search; the same object as `documents` if both sides are alike.
        offset: what FAISS adds to the bytes of the quantizer's codes, modulo 256.
    """

    index: Any
    documents: Any = None
    queries: Any = None
    offset: int = 0

    def pack(self, codes: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the quantizer's byte codes `(n, bytes)` as the index stores them."""
        return codes.view(np.uint8) + np.uint8(self.offset)


NEVER_NEAREST = 1e6
"""Entry of a centroid that no vector may get: its distance from all vectors is larger than any other's."""


def build_code_index(faiss: Any, quantizer: Quantizer) -> CodeIndex:
    """Build an empty FAISS index that can search the byte codes of a fitted quantizer.

    The transforms that documents and queries need before it are returned with it.

    Raises:
        ExportError: if FAISS has no such index.
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
    """Build an empty `IndexScalarQuantizer` with the cells of a fitted `Int8`, whose codes count from 0, not −128."""
    scale, zero_point = (tensor.float().cpu().numpy() for tensor in (step.scale, step.zero_point))
    kind = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexScalarQuantizer(len(scale), kind, faiss.METRIC_INNER_PRODUCT)
    # FAISS keeps the lower end of the lowest cell and the width of all cells; values stand in the middle of a cell.
    ranges = np.concatenate([(-128.5 - zero_point) * scale, 255 * scale])
    faiss.copy_array_to_vector(ranges.astype(np.float32), index.sq.trained)
    index.is_trained = True

    return CodeIndex(index, offset=128)


def _index_binary(faiss: Any, step: Binary) -> CodeIndex:
    """Build an empty `IndexPQ` for codes of one sign per dimension, eight to a byte.

    The transform before it fills up the last byte with zeros.
    """
    sizes = np.zeros((step.code_bytes(len(step.size)), 1, BYTE), np.float32)
    size = step.size.float().cpu().numpy()
    # FAISS compares distances in float32, where a tiny size would not decide; so enlarged, it changes no score.
    sizes.reshape(-1)[: len(size)] = np.maximum(size, MIN_RELATIVE_SIZE * size.max())
    signs = np.unpackbits(BYTE_VALUES.astype(np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1
    padding = faiss.RemapDimensionsTransform(len(step.size), sizes.size, False)
    return CodeIndex(_product_index(faiss, signs * sizes), padding, padding)


def _index_transform_coding(faiss: Any, step: TransformCoding) -> CodeIndex:
    """Build an empty `IndexPQ` that can search the codes of a fitted step.

    It comes with linear maps from documents and from queries to the coordinates of the codes. Each byte of a code is a
    centroid number of the product quantizer. Documents are mapped to coordinates by the encoder; queries by the
    decoder's transpose, so that inner products of both are scores.

    Raises:
        ExportError: if a coordinate of the codes lies in two bytes.
    """
    try:
        centroids, positions = (tensor.cpu().numpy() for tensor in step.product_centroids())
    except InputError as error:
        raise ExportError(
            f"FAISS cannot search codes of {step.bytes} bytes in which coordinates cross bytes: fit another budget or "
            f"equal bits (codes:{step.bytes},bits=4), or export with --format numpy"
        ) from error

    encoder, decoder = (np.zeros((BYTE * step.bytes, len(step.mean)), np.float32) for _ in range(2))
    encoder[positions], decoder[positions] = step.encoder.float().cpu().numpy(), step.decoder.float().cpu().numpy()
    if isinstance(step, ProductCoding):
        # FAISS takes the nearest centroid by plain distance, so coordinates go in units of the metric of scores.
        scale = np.ones(len(encoder), np.float32)
        scale[positions] = step.deviations.float().cpu().numpy()
        encoder, decoder = encoder * scale[:, None], decoder / scale[:, None]
        centroids = centroids * scale.reshape(step.bytes, 1, BYTE)
        # No vector gets 0 in its last byte, since the code of zeros is the zero vector's.
        centroids[int(step.layout[1].max()), 0] = NEVER_NEAREST

    shift = -encoder.astype(np.float64) @ step.mean.double().cpu().numpy()
    return CodeIndex(
        _product_index(faiss, centroids),
        build_linear_transform(faiss, encoder, shift),
        # ⟨q, μ⟩ is left out of the scores: it is the same for all codes.
        build_linear_transform(faiss, decoder, None),
    )


def _product_index(faiss: Any, centroids: NDArray[np.float32]) -> Any:
    code_bytes = len(centroids)
    index = faiss.IndexPQ(BYTE * code_bytes, code_bytes, BYTE, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.ascontiguousarray(centroids, np.float32).ravel(), index.pq.centroids)
    index.is_trained = True
    return index


def build_linear_transform(faiss: Any, weight: NDArray[np.float32], bias: NDArray[Any] | None) -> Any:
    """Return FAISS's `LinearTransform` of the map x ↦ Wx + b, for a weight `(k, d)` and a bias `(k,)` or None."""
    linear = faiss.LinearTransform(weight.shape[1], weight.shape[0], bias is not None)
    faiss.copy_array_to_vector(np.ascontiguousarray(weight, np.float32).ravel(), linear.A)
    if bias is not None:
        faiss.copy_array_to_vector(bias.astype(np.float32), linear.b)
    linear.is_trained = True
    linear.set_is_orthonormal()
    return linear
