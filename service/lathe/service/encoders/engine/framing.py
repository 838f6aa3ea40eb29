"""Message protocol between a server and its workers.

A message is a JSON header, followed by the bytes of all arrays in one piece.

server → worker   {"spec", "options"}, once
                  {"parts": [{texts, positions, options, chain, keep_raw}]}
worker → server   {"state": "ready", …} or {"state": "failed", "problem"}, once
                  {"results": [{arrays} or {"error", "message"}], "batches": […]}, for each list of parts
"""

import math
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Array = NDArray[Any]

MAX_FRAME_BYTES = 2**31
"""Maximum bytes of a message's header, or of its arrays: 8,192 rows of 16,384 dimensions are a quarter of it."""


def send(connection: Connection, head: dict[str, Any], arrays: list[Array] | None = None) -> None:
    """Send a message to the other process: a header as JSON, then the arrays as one block of bytes.

    Args:
        connection: connection to the other process.
        head: header, sent as JSON.
        arrays: arrays to send after it, joined to one block of bytes.

    Raises:
        OSError: if the connection is closed.
    """
    arrays = arrays or []
    shapes = [[array.dtype.str, array.shape] for array in arrays]
    connection.send_bytes(orjson.dumps(head | {"arrays": shapes}))
    if arrays:  # one write, however many texts of single requests are answered
        connection.send_bytes(b"".join([array.tobytes() for array in arrays]))


def receive(connection: Connection) -> tuple[dict[str, Any], list[Array]]:
    """Wait for a message from the other process, and return its header and its arrays.

    Raises:
        OSError: if the bytes are not a message; the connection is then unusable, as the start of the next is unknown.
        OSError, EOFError: if the connection is closed.
    """
    try:
        head: dict[str, Any] = orjson.loads(connection.recv_bytes(MAX_FRAME_BYTES))
        announced = head.pop("arrays")
        arrays = _split_arrays(connection.recv_bytes(MAX_FRAME_BYTES), announced) if announced else []
    except (OSError, EOFError):
        raise
    except Exception as error:  # orjson and NumPy refuse what they cannot read in a dozen ways
        raise OSError(f"not a message: {type(error).__name__}") from None
    return head, arrays


def _split_arrays(block: bytes, announced: list[tuple[str, list[int]]]) -> list[Array]:
    """Return the arrays in a block of bytes, which have the announced dtypes and shapes and follow one another.

    Raises:
        TypeError, ValueError: if a dtype is not numeric, or the shapes do not match the block.
    """
    arrays, start = [], 0
    for dtype, shape in announced:
        numbers, count = np.dtype(dtype), math.prod(shape)
        if numbers.kind not in "fiu":
            raise TypeError(f"arrays hold numbers, not {numbers}")
        end = start + count * numbers.itemsize
        arrays.append(np.frombuffer(block[start:end], numbers).reshape(shape))
        start = end
    if start != len(block):
        raise ValueError(f"arrays take {start} bytes, not {len(block)}")
    return arrays
