"""Receiving of a large body into its own memory, without the pieces that uvicorn passes on.

The parser hands a body on in pieces of 64 KB: for each, reading is paused, the application wakes, and the bytes are
copied twice. That takes longer than the product for which vectors are sent. Where the head says how long the body is,
the connection's transport writes what remains of it to one buffer, as many bytes at a time as the system has.

head ──► Connection: first bytes ──► WholeBody: the rest, to a buffer ──► Connection: the next head
"""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.requests import ClientDisconnect


class WholeBody(asyncio.BufferedProtocol):
    """The protocol of a connection while the rest of a request's body is received.

    Args:
        connection: protocol of the connection before and afterwards, a `lathe.service.http.connection.Connection`.
        length: bytes of the whole body.
        begun: bytes of it that were received.
        on_size: called with the bytes received so far; if it raises, so does `wait`, and the connection goes on to
            read the body in pieces.
    """

    def __init__(self, connection: Any, length: int, begun: bytes | bytearray, on_size: Callable[[int], None]) -> None:
        self.connection = connection
        self.on_size = on_size
        self.body = np.empty(length, np.uint8).data  # unlike a bytearray, it is not filled with zeros first
        self.body[: len(begun)] = begun
        self.parsed = self.size = len(begun)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> memoryview:
        """Receive the rest of the body, and return the whole.

        Raises:
            ClientDisconnect: if the client disconnects, or the connection refuses the request.
            Exception: what `on_size` raises.
        """
        self._change_protocol(self)
        try:
            await self.done
        finally:
            if not self.done.done() or self.done.cancelled():
                self.stop()
        return self.body

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the part of the body that is not received yet."""
        return self.body[self.size :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count received bytes, and give the connection back after the last."""
        self.size += nbytes
        try:
            self.on_size(self.size)
        except Exception as error:
            self._finish(error)
            return
        if self.size == len(self.body):
            self._finish(None)

    def stop(self) -> None:
        """Give the connection back, as the request has ended."""
        self._finish(ClientDisconnect())

    def eof_received(self) -> None:
        """End the request, as uvicorn does when its client ends its side."""

    def connection_lost(self, error: Exception | None) -> None:
        """End the request and the connection."""
        if not self.done.done():
            self.done.set_exception(ClientDisconnect())
        self.connection.whole_body = None
        self.connection.connection_lost(error)

    def pause_writing(self) -> None:
        """Pass on that the client does not read."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client reads again."""
        self.connection.resume_writing()

    def _finish(self, error: Exception | None) -> None:
        """Give the connection back, and end `wait`. Does nothing the second time."""
        if self.connection.whole_body is not self:
            return
        self.connection.whole_body = None
        self._change_protocol(self.connection)
        if error is None:
            self.connection.end_whole_body()
        else:
            self.connection.skip_body(self.body[self.parsed : self.size])
        if not self.done.done():
            self.done.set_result(None) if error is None else self.done.set_exception(error)

    def _change_protocol(self, protocol: Any) -> None:
        """Let a protocol receive what comes next.

        uvloop chooses how it reads when reading begins, so it is begun again.
        """
        transport = self.connection.transport
        if transport.is_closing():
            return
        self.connection.flow.pause_reading()
        transport.set_protocol(protocol)
        self.connection.flow.resume_reading()
