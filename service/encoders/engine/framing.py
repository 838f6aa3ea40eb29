"""Message protocol between a server and its workers: a JSON header, followed by arrays as bytes.

server → worker   {"spec", "options"}, once
                  {"parts": [{texts, positions, options, chain, keep_raw}]}
worker → server   {"state": "ready", …} or {"state": "failed", "problem"}, once
                  {"results": [{arrays} or {"error", "message"}], "batches": […]}, for each list of parts
"""

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Array = NDArray[Any]

MAX_BYTES = 2**30
"""Maximum bytes of a message's header, or of one of its arrays: 8,192 rows of 16,384 dimensions are half of it."""


class MessageError(OSError):
    """Bytes received that are not a message."""


def send(connection: Connection, head: dict[str, Any], arrays: list[Array] | None = None) -> None:
    """Send a message: the header as JSON, then each array.

    Raises:
        OSError: if the connection is closed.
    """
    arrays = arrays or []
    shapes = [[array.dtype.str, array.shape] for array in arrays]
    connection.send_bytes(orjson.dumps(head | {"arrays": shapes}))
    for array in arrays:
        connection.send_bytes(np.ascontiguousarray(array).data.cast("B") if array.size else b"")


def receive(connection: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Wait for a message and return its header and arrays.

    Raises:
        MessageError: if the bytes are no message; the connection is then unusable, as the start of the next is unknown.
        OSError, EOFError: if the connection is closed.
    """
    try:
        head: dict[str, Any] = orjson.loads(connection.recv_bytes(MAX_BYTES))
        arrays = [_receive_array(connection, dtype, shape) for dtype, shape in head.pop("arrays")]
    except (OSError, EOFError):
        raise
    except Exception as error:  # orjson and NumPy refuse what they cannot read in a dozen ways
        raise MessageError(f"not a message: {type(error).__name__}") from None
    return head, arrays


def _receive_array(connection: Connection, dtype: str, shape: list[int]) -> Array:
    """Wait for an array that a header announced, and return it.

    Raises:
        TypeError, ValueError: if the bytes do not match a numeric dtype and the shape.
    """
    numbers = np.dtype(dtype)
    if numbers.kind not in "fiu":
        raise TypeError(f"arrays hold numbers, not {numbers}")
    return np.frombuffer(connection.recv_bytes(MAX_BYTES), numbers).reshape(shape)
