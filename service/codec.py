"""Conversion of vectors to and from JSON, base64 and .npy; large bodies are never converted on the event loop."""

import base64
import binascii
import io
from array import array
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.errors import BadValueError, MalformedError, TooLargeError, WrongShapeError

NPY = "application/x-npy"
JSON = "application/json"

MAX_WIDTH = 16_384
"""Maximum dimensions of a vector; encoders output up to 12,288. A fit squares them: 2 GB of second moments."""

FREE_CONTAINERS = 131_072
BYTES_PER_CONTAINER = 32
"""A JSON body may hold `FREE_CONTAINERS` lists and objects, plus one for every `BYTES_PER_CONTAINER` of its bytes.

Parsed, an empty list takes 64 bytes and the smallest object 192, of 3 and 7 bytes of JSON: a body of nothing else would
take 30 times its size. Numbers and texts take at most 16 times their size, and need no limit of their own."""


def dump_json(content: Any) -> bytes:
    """Serialize the content to JSON bytes, writing NumPy arrays directly, without converting them to lists."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def dump_npy(vectors: NDArray[Any]) -> bytes:
    """Serialize an array to the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(vectors), allow_pickle=False)
    return buffer.getvalue()


def dump_base64(vectors: NDArray[np.float32]) -> list[str]:
    """Encode each row's little-endian float32 bytes as a base64 string, OpenAI's alternative to lists of floats."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]


def parse_base64(rows: list[Any], width: int | None) -> NDArray[np.float32]:
    """Decode base64 rows, as `dump_base64` writes them, to `(n, width)`; None takes the width of the first row.

    Raises:
        WrongShapeError: if a row is not base64 of float32, or its dimensions differ.
    """
    decoded = []
    for place, row in enumerate(rows):
        try:
            decoded.append(binascii.a2b_base64(row, strict_mode=True))
        except (TypeError, ValueError):
            raise not_numbers(place) from None
        found, rest = divmod(len(decoded[-1]), 4)
        if rest:
            raise not_numbers(place)
        width = found if width is None else width
        require_width(place, found, width)
    return np.frombuffer(b"".join(decoded), "<f4").reshape(len(rows), -1)


def encode_rows(vectors: NDArray[np.float32], encoding_format: str) -> Any:
    """Return rows in the form that `dump_json` serializes: base64 strings for the format "base64", else the array."""
    return dump_base64(vectors) if encoding_format == "base64" else np.ascontiguousarray(vectors)


def parse_json(body: bytes) -> Any:
    """Parse a JSON body; if a key is repeated, its last value counts.

    Raises:
        MalformedError: if the body is not valid JSON; NaN and Infinity are not.
        TooLargeError: if the body has so many lists and objects that it would take many times its size in memory.
    """
    require_few_containers(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the body is not JSON: {error.msg} at character {error.pos}") from None


def require_few_containers(body: bytes) -> None:
    """Raise `TooLargeError` if an unparsed JSON body holds more lists and objects than its size allows."""
    allowed = FREE_CONTAINERS + len(body) // BYTES_PER_CONTAINER
    if body.count(b"[") + body.count(b"{") <= allowed:  # brackets inside texts count here, so this only clears a body
        return
    found = count_containers(body)
    if found > allowed:
        raise TooLargeError(f"the body holds {found} lists and objects; one of its size may hold {allowed}")


def count_containers(body: bytes) -> int:
    """Count the lists and objects of an unparsed JSON body by the opening brackets outside its strings."""
    unescaped = body.replace(rb"\\", b"  ").replace(rb"\"", b"  ")  # what is left of the quotes begins or ends a text
    characters = np.frombuffer(unescaped, np.uint8)
    outside = np.cumsum(characters == ord('"'), dtype=np.uint8) % 2 == 0
    return int(np.count_nonzero(outside & ((characters == ord("[")) | (characters == ord("{")))))


def parse_npy(body: bytes, most: int) -> NDArray[np.float32]:
    """Parse the vectors `(n, d)` of a .npy body to float32, checking the sizes in its header against the body.

    Args:
        body: bytes of the file.
        most: maximum number of rows.

    Raises:
        MalformedError: if the body is not a .npy file, or its length does not match its header.
        WrongShapeError: if the array is not of floats in two dimensions.
        BadValueError, TooLargeError: as in `as_vectors`.
    """
    file = io.BytesIO(body)
    try:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = readers[version](file)
    except Exception as error:  # NumPy parses the header as Python source, with that parser's errors
        raise MalformedError(f"the body is not a .npy file: {error!r}") from None
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise WrongShapeError(f"vectors must be float16, float32 or float64, not {dtype}", param="vectors")
    if len(shape) != 2 or bool in map(type, shape):
        raise WrongShapeError(f"vectors must have the shape (n, d), not {shape}", param="vectors")
    values = memoryview(body)[file.tell() :]
    if min(shape) < 0 or shape[0] * shape[1] * dtype.itemsize != len(values):
        raise MalformedError(f"the .npy header says {shape} of {dtype}, the body has {len(values)} bytes of values")
    require_rows(shape[0], most, "vectors")
    require_width(0, shape[1], shape[1])  # of no rows, or rows of nothing, NumPy could not make any shape
    return as_finite(np.frombuffer(values, dtype=dtype).reshape(shape, order="F" if fortran else "C"))


def as_vectors(values: list[Any], most: int, width: int | None = None) -> NDArray[np.float32]:
    """Convert rows of parsed JSON to vectors `(n, d)` in float32.

    Args:
        values: lists of numbers, or base64 strings as `dump_base64` writes them.
        most: maximum number of rows.
        width: dimensions that each row must have; None for those of the first row.

    Raises:
        WrongShapeError: if rows differ in dimensions or hold entries that are not numbers.
        BadValueError: if there are no rows, or numbers are NaN, inf or beyond float32.
        TooLargeError: if there are more rows than allowed.
    """
    require_rows(len(values), most, "vectors")
    return as_finite(parse_base64(values, width) if isinstance(values[0], str) else parse_numbers(values, width))


def parse_numbers(rows: list[Any], width: int | None) -> NDArray[np.float32]:
    """Convert lists of numbers to an array `(n, width)`; raise `WrongShapeError` for other rows.

    The array is allocated only once each row is known to be a list of the right length.
    """
    if width is None:
        width = len(rows[0]) if isinstance(rows[0], list) else 0
    for place, row in enumerate(rows):
        if not isinstance(row, list):
            raise not_numbers(place)
        require_width(place, len(row), width)
    vectors = np.empty((len(rows), width), np.float32)
    for place, row in enumerate(rows):
        try:
            vectors[place] = array("f", row)  # takes numbers alone: NumPy makes texts of all where one is a text
        except (TypeError, OverflowError):
            raise not_numbers(place) from None
    doubtful = np.flatnonzero(((vectors == 0) | (vectors == 1)).any(axis=1))  # `array` takes true for 1, false for 0
    for place in doubtful.tolist():
        if bool in map(type, rows[place]):
            raise not_numbers(place)
    return vectors


def require_width(place: int, found: int, width: int) -> None:
    """Raise `WrongShapeError` unless row number `place` has `width` numbers, at least 1 and at most `MAX_WIDTH`."""
    if found == 0:
        raise WrongShapeError(f"vector {place} holds no numbers", param="vectors")
    if found != width:
        raise WrongShapeError(f"vector {place} is {found} wide and must be {width} wide", param="vectors")
    if found > MAX_WIDTH:
        raise WrongShapeError(f"vector {place} is {found} wide; at most {MAX_WIDTH} are taken", param="vectors")


def not_numbers(place: int) -> WrongShapeError:
    """Build the error for row number `place`, which holds something other than numbers."""
    return WrongShapeError(
        f"vector {place} is not a list of numbers: vectors must be lists of numbers, or all of them base64 strings of "
        "float32",
        param="vectors",
    )


def as_finite(numbers: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Convert an array `(n, d)` to float32.

    Raises:
        BadValueError: if a number is NaN, inf or beyond float32.
    """
    with np.errstate(over="ignore"):
        vectors = numbers.astype(np.float32, copy=False)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int((~finite).argmax())
        raise BadValueError(f"vector {row} holds NaN, inf, or a number beyond float32", param="vectors")
    return vectors


def require_rows(count: int, most: int, param: str) -> None:
    """Raise `BadValueError` if the number of rows is 0, `TooLargeError` if it is above the maximum."""
    if count == 0:
        raise BadValueError(f"{param} must not be empty", param=param)
    if count > most:
        raise TooLargeError(f"{count} {param} in one request; at most {most} are taken", param=param)
