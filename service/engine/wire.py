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
        OSError, EOFError: if the other side is gone.
    """
    head: dict[str, Any] = orjson.loads(connection.recv_bytes())
    arrays = [np.frombuffer(connection.recv_bytes(), dtype).reshape(shape) for dtype, shape in head.pop("arrays")]
    return head, arrays
