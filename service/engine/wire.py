"""What a server and its workers say to each other: a JSON head, and arrays as bytes after it.

server → worker   {"spec", "options"}, once
                  {"parts": [{texts, rows, options, chain, keep_raw}]}
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
"""Bytes of a message's head, or of one of its arrays: 8,192 rows 16,384 wide are half of it."""


class MessageError(OSError):
    """What came over the connection is no message."""


def send(connection: Connection, head: dict[str, Any], arrays: list[Array] | None = None) -> None:
    """Send a message.

    Raises:
        OSError: if the other side is gone.
    """
    arrays = arrays or []
    shapes = [[array.dtype.str, array.shape] for array in arrays]
    connection.send_bytes(orjson.dumps(head | {"arrays": shapes}))
    for array in arrays:
        connection.send_bytes(np.ascontiguousarray(array).data.cast("B") if array.size else b"")


def receive(connection: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Wait for a message.

    Raises:
        MessageError: for bytes that are none; the connection is of no use then, as nobody knows where the next begins.
        OSError, EOFError: if the other side is gone.
    """
    try:
        head: dict[str, Any] = orjson.loads(connection.recv_bytes(MAX_BYTES))
        arrays = [receive_array(connection, dtype, shape) for dtype, shape in head.pop("arrays")]
    except (OSError, EOFError):
        raise
    except Exception as error:  # orjson and NumPy refuse what they cannot read in a dozen ways
        raise MessageError(f"not a message: {type(error).__name__}") from None
    return head, arrays


def receive_array(connection: Connection, dtype: str, shape: list[int]) -> Array:
    """Wait for an array that a message announced.

    Raises:
        TypeError, ValueError: if its bytes are no numbers of that dtype and shape.
    """
    numbers = np.dtype(dtype)
    if numbers.kind not in "fiu":
        raise TypeError(f"arrays hold numbers, not {numbers}")
    return np.frombuffer(connection.recv_bytes(MAX_BYTES), numbers).reshape(shape)
