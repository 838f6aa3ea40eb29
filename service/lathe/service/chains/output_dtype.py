"""Encodings of answered vectors, `output_dtype`: floats, bytes, bits, or the chain's own codes.

Values and packing are those of Cohere's and Voyage's APIs. Another encoding is a function here, with its name in
`OutputDtype` and in `ENCODINGS`.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.codes import Int8, Quantizer

OutputDtype = Literal["float", "int8", "uint8", "binary", "ubinary", "codes"]

INT8_RANGE = 12.0
"""Half-width of the range of int8, in units of 1/√k, the root mean square of a unit vector's k values.

A range that depends on k only keeps a vector's code independent of other vectors, and inner products of codes
proportional to those of the vectors. MiniLM, e5 and WordLlama reach 5; SmolLM2 has single dimensions that reach 20, of
which 12 clips one value in 8,000. A wider range costs the others precision."""

Encoding = Callable[[NDArray[np.float32], Quantizer | None], NDArray[Any]]


def encode_output(floats: NDArray[np.float32], dtype: OutputDtype, quantizer: Quantizer | None) -> NDArray[Any]:
    """Encode floats `(n, k)` as a request's output dtype.

    The result is `(n, k)` for float, int8 and uint8, `(n, ⌈k/8⌉)` for bits, `(n, bytes)` for codes.

    Args:
        floats: what the chain answers, decoded if it has a quantizer.
        dtype: the encoding, one that `find_dtype_problem` finds no problem with.
        quantizer: the chain's last step if it is a quantizer.
    """
    return ENCODINGS[dtype](floats, quantizer)


def find_dtype_problem(dtype: OutputDtype, quantizer: Quantizer | None, is_query: bool, normalized: bool) -> str | None:
    """Return a sentence why a chain's outputs cannot be encoded as `dtype`, or None if they can.

    Codes need a quantizer and no query; int8 and uint8 need norms of at most 1, or a chain that ends in int8.

    Args:
        dtype: the encoding.
        quantizer: the chain's last step if it is a quantizer.
        is_query: whether the floats are those of queries, which have no codes.
        normalized: whether their norm is at most 1.
    """
    if dtype == "codes" and quantizer is None:
        return "output_dtype codes needs a chain that ends in a quantizer: codes, int8 or binary"
    if dtype == "codes" and is_query:
        return "queries have no codes: they are compared as floats with the codes of documents (input_type query)"
    if dtype in ("int8", "uint8") and not normalized and not isinstance(quantizer, Int8):
        return f"output_dtype {dtype} needs vectors of norm 1, or a chain that ends in int8, which fits the ranges"
    return None


def _as_int8(floats: NDArray[np.float32], quantizer: Quantizer | None) -> NDArray[np.int8]:
    """Encode floats `(n, k)` as signed bytes `(n, k)`.

    A chain that ends in int8 encodes them with its fitted ranges. Otherwise values are multiplied by a factor that only
    k decides, and clipped.
    """
    if isinstance(quantizer, Int8):
        return np.asarray(quantizer.transform(floats), np.int8)
    scaled = np.rint(floats * np.float32(127 * np.sqrt(floats.shape[1]) / INT8_RANGE))
    return np.asarray(scaled.clip(-127, 127), np.int8)


def _as_bits(floats: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a bit for each dimension, 1 where it is above 0.

    The first dimension is the highest bit of a byte.
    """
    return np.packbits(floats > 0, axis=1)


def _offset(octets: NDArray[Any]) -> NDArray[Any]:
    """Return int8 as uint8, 128 higher, or uint8 as int8, 128 lower: either flips the highest bit."""
    return (octets.view(np.uint8) ^ 128).view(np.uint8 if octets.dtype == np.int8 else np.int8)


def _as_codes(floats: NDArray[np.float32], quantizer: Quantizer | None) -> NDArray[Any]:
    """Encode floats `(n, k)`, which are decoded codes, as the chain's own codes again."""
    assert quantizer is not None  # `find_dtype_problem` has seen to it
    return np.asarray(quantizer.recode(floats))


ENCODINGS: dict[OutputDtype, Encoding] = {
    "float": lambda floats, _: floats,
    "int8": _as_int8,
    "uint8": lambda floats, quantizer: _offset(_as_int8(floats, quantizer)),
    "binary": lambda floats, _: _offset(_as_bits(floats)),
    "ubinary": lambda floats, _: _as_bits(floats),
    "codes": _as_codes,
}
