"""Vectors as bytes and back: JSON, base64, npy. Never called on the event loop for large bodies."""

import base64
import binascii
import io
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.errors import BadValueError, MalformedError, TooLargeError, WrongShapeError

NPY = "application/x-npy"
JSON = "application/json"


def dump_json(content: Any) -> bytes:
    """JSON; NumPy arrays inside are written without becoming lists."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def dump_npy(vectors: NDArray[Any]) -> bytes:
    """The .npy file of an array."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(vectors), allow_pickle=False)
    return buffer.getvalue()


def dump_base64(vectors: NDArray[np.float32]) -> list[str]:
    """Each row's little-endian float32 bytes in base64: OpenAI's other encoding."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]


def parse_base64(rows: list[Any]) -> NDArray[np.float32]:
    """The vectors `(n, d)` that `dump_base64` wrote.

    Raises:
        ValueError: for what is not base64, or rows of several lengths.
    """
    if not all(isinstance(row, str) and len(row) == len(rows[0]) for row in rows):
        raise ValueError("rows differ")
    decoded = [binascii.a2b_base64(row, strict_mode=True) for row in rows]
    if len({len(row) for row in decoded}) > 1:
        raise ValueError("rows differ")
    return np.frombuffer(b"".join(decoded), "<f4").reshape(len(rows), -1)


def encode_rows(vectors: NDArray[np.float32], encoding_format: str) -> Any:
    """The rows as `dump_json` takes them."""
    return dump_base64(vectors) if encoding_format == "base64" else np.ascontiguousarray(vectors)


def parse_json(body: bytes) -> Any:
    """What a JSON body says.

    Raises:
        MalformedError: if it is not JSON; NaN and Infinity are not.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedError(f"the body is not JSON: {error.msg} at character {error.pos}") from None


def parse_npy(body: bytes) -> NDArray[Any]:
    """The array of a .npy body, without copying and without trusting its header's sizes.

    Raises:
        MalformedError: if it is not a .npy file, or its length is not what its header says.
        WrongShapeError: if it holds anything but floats.
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
    values = memoryview(body)[file.tell() :]
    count = 1
    for size in shape:
        count *= size
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(values):
        raise MalformedError(f"the .npy header says {shape} of {dtype}, the body has {len(values)} bytes of values")
    return np.frombuffer(values, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def as_vectors(values: Any, most: int) -> NDArray[np.float32]:
    """Vectors `(n, d)` in float32 from parsed JSON or npy.

    Args:
        values: a list of lists of numbers, a list of base64 strings as `dump_base64` writes them, or an array.
        most: rows allowed.

    Raises:
        WrongShapeError: for ragged rows, other shapes, or entries that are not numbers.
        BadValueError: for no rows, NaN, inf, or numbers beyond float32.
        TooLargeError: for more rows than allowed.
    """
    wrong = WrongShapeError(
        "vectors must be a list of lists of numbers (or of base64 strings of float32), all of one length",
        param="vectors",
    )
    if isinstance(values, list):
        require_rows(len(values), most, "vectors")
    try:
        array = parse_base64(values) if isinstance(values, list) and isinstance(values[0], str) else np.asarray(values)
    except (ValueError, OverflowError):
        raise wrong from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or array.shape[1] == 0:
        raise wrong
    require_rows(len(array), most, "vectors")
    with np.errstate(over="ignore"):
        vectors = array.astype(np.float32, copy=False)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int((~finite).argmax())
        raise BadValueError(f"vector {row} holds NaN, inf, or a number beyond float32", param="vectors")
    return vectors


def require_rows(count: int, most: int, param: str) -> None:
    """Raise unless there is something, and no more than allowed."""
    if count == 0:
        raise BadValueError(f"{param} must not be empty", param=param)
    if count > most:
        raise TooLargeError(f"{count} {param} in one request; at most {most} are taken", param=param)
