"""Conversion of vectors to and from JSON, base64 and .npy.

Call it off the event loop, except for small responses.
"""

import base64
import binascii
import io
import math
from array import array
from typing import Any, Literal, assert_never

import numpy as np
import orjson
from numpy.typing import NDArray

from lathe.service.errors import BadValueError, TooLargeError, WrongShapeError
from lathe.transforms.npy import read_npy_header

NPY = "application/x-npy"
EncodingFormat = Literal["float", "base64"]
"""How vectors are written in JSON."""

JSON = "application/json"

MAX_DIMENSIONS = 16_384
"""Maximum dimensions of a vector; encoders output up to 12,288. A fit squares them: 2 GB of second moments."""


def dump_json(content: Any) -> bytes:
    """Return the content as JSON bytes. NumPy arrays are written without being converted to lists."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def dump_npy(vectors: NDArray[Any]) -> bytes:
    """Return the bytes of a .npy file that holds an array."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(vectors), allow_pickle=False)
    return buffer.getvalue()


def _dump_base64(rows: NDArray[Any]) -> list[str]:
    little = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in little]


def _parse_base64(rows: list[Any], dimensions: int | None) -> NDArray[np.float32]:
    """Return an array `(n, dimensions)` from rows of base64 text, each of which encodes the bytes of float32 numbers.

    Args:
        rows: the rows.
        dimensions: dimensions that each row must have; None takes those of the first row.

    Raises:
        WrongShapeError: if a row is not base64 of float32, or its dimensions differ.
    """
    decoded = []
    for position, row in enumerate(rows):
        try:
            decoded.append(binascii.a2b_base64(row, strict_mode=True))
        except (TypeError, ValueError):
            raise _build_not_numbers_error(position) from None
        count, excess_bytes = divmod(len(decoded[-1]), 4)
        if excess_bytes:
            raise _build_not_numbers_error(position)
        dimensions = count if dimensions is None else dimensions
        _require_dimensions(position, count, dimensions)
    return np.frombuffer(b"".join(decoded), "<f4").reshape(len(rows), -1)


def encode_rows(rows: NDArray[Any], encoding_format: EncodingFormat) -> Any:
    """Return rows `(n, d)` as `dump_json` writes them: an array for "float", a list of base64 texts for "base64"."""
    match encoding_format:
        case "float":
            return np.ascontiguousarray(rows)
        case "base64":
            return _dump_base64(rows)
        case _:
            assert_never(encoding_format)  # mypy names a format that is not handled


Body = bytes | memoryview
"""The bytes of a request's body: a large one is a view of the buffer that it was received into."""

MAX_NPY_HEADER = 1 << 17
"""Bytes of a .npy body in which its header must end; that of format 1.0 has at most 65,546."""


def parse_npy(body: Body, max_rows: int) -> NDArray[np.float32]:
    """Return the float32 vectors `(n, d)` in the body of a .npy file, once its header's shape agrees with its length.

    Raises:
        BadValueError: if the body is not a .npy file, its length does not match its header, or as in `as_vectors`.
        WrongShapeError: if the array is not of floats in two dimensions, or rows are empty or over `MAX_DIMENSIONS`.
        TooLargeError: as in `as_vectors`.
    """
    file = io.BytesIO(memoryview(body)[:MAX_NPY_HEADER])  # a copy of the header alone
    try:
        shape, fortran, dtype = read_npy_header(file)
    except Exception as error:  # NumPy parses the header as Python source, with that parser's errors
        raise BadValueError(f"the body is not a .npy file: {error!r}", code="malformed_body") from None
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise WrongShapeError(f"vectors must be float16, float32 or float64, not {dtype}", param="vectors")
    if len(shape) != 2 or bool in map(type, shape):
        raise WrongShapeError(f"vectors must have the shape (n, d), not {shape}", param="vectors")
    values = memoryview(body)[file.tell() :]
    if min(shape) < 0 or shape[0] * shape[1] * dtype.itemsize != len(values):
        raise BadValueError(
            f"the .npy header names the shape {shape} of {dtype}, but {len(values)} bytes of values follow",
            code="malformed_body",
        )
    require_rows(shape[0], max_rows, "vectors")
    _require_dimensions(0, shape[1], shape[1])  # NumPy cannot reshape an array without rows or dimensions
    return _convert_finite(np.frombuffer(values, dtype=dtype).reshape(shape, order="F" if fortran else "C"))


def as_vectors(values: list[Any], max_rows: int, dimensions: int | None = None) -> NDArray[np.float32]:
    """Return vectors of parsed JSON, lists of numbers or base64 texts, as an array `(n, d)` in float32.

    Args:
        values: lists of numbers, or base64 strings as `_dump_base64` writes them.
        max_rows: maximum number of rows.
        dimensions: dimensions that each row must have; None for those of the first row.

    Raises:
        WrongShapeError: if rows differ in dimensions, are empty or over `MAX_DIMENSIONS`, or hold other than numbers.
        BadValueError: if there are no rows, or numbers are NaN, inf or beyond float32.
        TooLargeError: if there are more rows than allowed.
    """
    require_rows(len(values), max_rows, "vectors")
    parse = _parse_base64 if isinstance(values[0], str) else _parse_numbers
    return _convert_finite(parse(values, dimensions))


def _parse_numbers(rows: list[Any], dimensions: int | None) -> NDArray[np.float32]:
    """Return an array `(n, dimensions)` in float32 from lists of numbers, once their lengths and types are checked.

    Args:
        rows: the lists.
        dimensions: dimensions that each row must have; None takes those of the first row.

    Raises:
        WrongShapeError: if a row is not a list of numbers, or its dimensions differ; nothing is allocated before its
            lists have the right lengths.
    """
    if dimensions is None:
        dimensions = len(rows[0]) if isinstance(rows[0], list) else 0
    for position, row in enumerate(rows):
        if not isinstance(row, list):
            raise _build_not_numbers_error(position)
        _require_dimensions(position, len(row), dimensions)

    # Allocated only now that all rows have the right length: a caller cannot claim more than was sent.
    vectors = np.empty((len(rows), dimensions), np.float32)
    for position, row in enumerate(rows):
        try:
            vectors[position] = array("f", row)  # refuses a row with a text, where NumPy would convert all to texts
        except (TypeError, OverflowError):
            raise _build_not_numbers_error(position) from None

    maybe_bool = np.flatnonzero(((vectors == 0) | (vectors == 1)).any(axis=1))  # `array` accepts true as 1, false as 0
    for position in maybe_bool.tolist():
        # Only rows with a 0 or 1 can hold a boolean, so the others are not searched again.
        if bool in map(type, rows[position]):
            raise _build_not_numbers_error(position)
    return vectors


def _require_dimensions(position: int, count: int, dimensions: int) -> None:
    """Raise `WrongShapeError` if a vector's number of dimensions is 0, too large, or not the expected one.

    `position` is the vector's place in the request, and `count` its number of dimensions.
    """
    if count == 0:
        raise WrongShapeError(f"vector {position} holds no numbers", param="vectors")
    if count != dimensions:
        raise WrongShapeError(f"vector {position} has {count} dimensions and must have {dimensions}", param="vectors")
    if count > MAX_DIMENSIONS:
        raise WrongShapeError(
            f"vector {position} has {count} dimensions; at most {MAX_DIMENSIONS} are allowed", param="vectors"
        )


def _build_not_numbers_error(position: int) -> WrongShapeError:
    return WrongShapeError(
        f"vector {position} is not a list of numbers: vectors must be lists of numbers, or all of them base64 strings "
        "of float32",
        param="vectors",
    )


def _convert_finite(numbers: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return an array `(n, d)` as float32. Raise `BadValueError` if a number is NaN, inf or too large for float32.

    There is no copy if it is float32 already.
    """
    with np.errstate(over="ignore"):
        vectors = numbers if numbers.dtype == np.float32 else numbers.astype(np.float32)
    # The sum of squares takes a third of the time, and is finite only if every number is; it may also overflow.
    flat = vectors.ravel("K")
    if math.isfinite(np.vdot(flat, flat)):  # `vdot` warns of nothing
        return vectors
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int((~finite).argmax())
        raise BadValueError(f"vector {row} holds NaN, inf, or a number beyond float32", param="vectors")
    return vectors


def require_rows(count: int, max_rows: int, param: str) -> None:
    """Raise `BadValueError` if a request has no rows, `TooLargeError` if it has more than `max_rows`."""
    if count == 0:
        raise BadValueError(f"{param} must not be empty", param=param)
    if count > max_rows:
        raise TooLargeError(f"there are {count} {param}; at most {max_rows} are allowed in one request", param=param)
