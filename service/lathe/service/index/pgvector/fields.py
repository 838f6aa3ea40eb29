"""Vectors in the binary format in which PostgreSQL's COPY and pgvector exchange them."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from lathe.service.errors import BadValueError
from lathe.service.index.pgvector.column_types import VectorType
from lathe.service.index.reducer import Vectors

NUMBERS: dict[VectorType, np.dtype[Any]] = {"vector": np.dtype(">f4"), "halfvec": np.dtype(">f2")}
"""Dtype of the numbers of each type of floats, in network byte order."""

_HEADER = struct.Struct(">HH")
"""Number of dimensions, and zero: they precede the numbers of `vector` and `halfvec`."""


def encode_vectors(vectors: Vectors, column_type: VectorType) -> list[bytes]:
    """Encode each row of vectors `(n, d)` as bytes in PostgreSQL's binary format of the column type.

    A `bit` is 1 where a number is above 0.
    """
    if column_type == "bit":
        length = struct.pack(">i", vectors.shape[1])
        return [length + row.tobytes() for row in np.packbits(vectors > 0, axis=1)]
    header = _HEADER.pack(vectors.shape[1], 0)
    with np.errstate(over="ignore"):  # PostgreSQL refuses inf with a message of its own
        return [header + row.tobytes() for row in vectors.astype(NUMBERS[column_type])]


def decode_vectors(fields: Sequence[bytes], column_type: VectorType, dimensions: int) -> Vectors:
    """Decode binary fields of a `vector` or `halfvec` column to float32 vectors `(n, dimensions)`.

    Raises:
        BadValueError: if one has another number of dimensions; the error's `param` is its position in `fields`.
    """
    for position, field in enumerate(fields):
        field_dimensions = _HEADER.unpack_from(field)[0]
        if field_dimensions != dimensions:
            raise BadValueError(f"a vector of {field_dimensions} dimensions, not {dimensions}", param=str(position))
    numbers = np.frombuffer(b"".join(field[_HEADER.size :] for field in fields), NUMBERS[column_type])
    return np.asarray(numbers.reshape(len(fields), dimensions), np.float32)
