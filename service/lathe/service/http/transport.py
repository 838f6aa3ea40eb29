"""What a connection does in addition to uvicorn: a large body in its own memory, no change of protocol, joined writes.

The parser hands a body on in pieces of 64 KB: for each, reading is paused, the application wakes, and the bytes are
copied twice. That takes longer than the product for which vectors are sent. Where the head says how long the body is,
the connection's transport writes what remains of it to one buffer, as many bytes at a time as the system has.

head ──► Connection: first bytes ──► WholeBody: the rest, to a buffer ──► Connection: the next head

Java's `HttpClient` and `curl --http2` send `Upgrade: h2c` with a first request, WebSocket clients `Upgrade:
websocket`. A server may ignore an offer and answer over HTTP/1.1 (RFC 9110, section 7.8). httptools takes the bytes
after the head for those of the other protocol and reads no body; the next bytes that arrive would be parsed as a
request.

head with an offer ──► httptools pauses ──► a new parser: the head without the offer ──► body, next request

The head and the body of a response are sent together.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
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
        """Receive the rest of the body, and return the whole body.

        Raises:
            ClientDisconnect: if the client disconnects, or the connection refuses the request.
            Exception: what `on_size` raises.
        """
        self._change_protocol(self)
        try:
            await self.done
        finally:
            # The route was cancelled: the connection must get its own protocol back.
            if not self.done.done() or self.done.cancelled():
                self.stop()
        return self.body

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the part of the body's buffer that is not received yet, for the transport to write to."""
        return self.body[self.size :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count received bytes, and return the connection to its own protocol after the last of them."""
        self.size += nbytes
        try:
            self.on_size(self.size)
        except Exception as error:
            self._finish(error)
            return
        if self.size == len(self.body):
            self._finish(None)

    def stop(self) -> None:
        """Return the connection to its own protocol because the request has ended. `wait` raises `ClientDisconnect`."""
        self._finish(ClientDisconnect())

    def eof_received(self) -> None:
        """Return None, so that the transport closes itself when the client ends its side."""

    def connection_lost(self, error: Exception | None) -> None:
        """End the request with `ClientDisconnect`, and pass the end of the connection on to its protocol."""
        if not self.done.done():
            self.done.set_exception(ClientDisconnect())
        self.connection.whole_body = None
        self.connection.connection_lost(error)

    def pause_writing(self) -> None:
        """Pass on to the connection that the client does not read."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass on to the connection that the client reads again."""
        self.connection.resume_writing()

    def _finish(self, error: Exception | None) -> None:
        """Return the connection to its own protocol, and let `wait` return or raise `error`. Later calls do nothing."""
        if self.connection.whole_body is not self:
            return
        self.connection.whole_body = None
        self._change_protocol(self.connection)
        if error is None:
            self.connection.end_whole_body()
        else:
            # The parser still expects these bytes before the next request's head.
            self.connection.skip_body(self.body[self.parsed : self.size])
        if not self.done.done():
            self.done.set_result(None) if error is None else self.done.set_exception(error)

    def _change_protocol(self, protocol: Any) -> None:
        """Let a protocol receive the bytes that come next from the transport.

        uvloop chooses how it reads when reading begins, so reading is paused and resumed.
        """
        transport = self.connection.transport
        if transport.is_closing():
            return
        self.connection.flow.pause_reading()
        transport.set_protocol(protocol)
        self.connection.flow.resume_reading()


class Parser(httptools.HttpRequestParser):
    """A parser that gives a head with an offer to a new parser, without the offer.

    While `has_offer`, the protocol must begin no request in `on_headers_complete` and end none in
    `on_message_complete`: the new parser calls both again.

    Args:
        protocol: protocol of the connection, with the `url` and `headers` of the request in progress. Its `parser` is
            replaced after an offer.
    """

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self._protocol = protocol
        # As uvicorn's own parser: what a client sends after `Connection: close` is dropped without an error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    @property
    def has_offer(self) -> bool:
        """Whether the request in progress offers another protocol. CONNECT demands one, and is not an offer."""
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        """Parse received bytes, ignoring a request's offer to change the protocol.

        Raises:
            httptools.HttpParserError: if they are not a valid request.
        """
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            head = self._build_head_without_offer() if self.has_offer else b""
            unparsed = bytes(data[pause.args[0] :])
            # This parser takes the request for ended, and after `Connection: close` would drop what follows.
            self._protocol.parser = Parser(self._protocol)
            self._protocol.parser.feed_data(head + unparsed)

    def _build_head_without_offer(self) -> bytes:
        method, version = self.get_method(), self.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self._protocol.url, version)]
        lines += [b"%s: %s" % header for header in self._protocol.headers if header[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"


class JoinedWrites:
    """A transport that sends the first bytes written to it together with the next, in one system call.

    Bytes that none follow are sent when the event loop's iteration ends. A response that is larger than the socket's
    buffer still takes several calls. Everything but writing is left to the transport.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._unsent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffer the first bytes written, and send them together with the next ones in one system call.

        Buffered bytes that no others follow are sent when the event loop's iteration ends.
        """
        # uvicorn writes a response's head first and its body right after it: both go in one call.
        self._unsent.append(data)
        if len(self._unsent) > 1:
            self._send()
        else:
            self._loop.call_soon(self._send)

    def write_eof(self) -> None:
        """Send the buffered bytes, and close the writing side."""
        self._send()
        self._transport.write_eof()

    def close(self) -> None:
        """Send the buffered bytes, and close the connection."""
        self._send()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that were written but not sent yet."""
        return sum(map(len, self._unsent)) + int(self._transport.get_write_buffer_size())

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.writelines(unsent)
