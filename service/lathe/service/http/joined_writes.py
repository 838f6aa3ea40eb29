"""A transport that sends the head and the body of a response together."""

import asyncio
from typing import Any


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
        """Buffer the first bytes, and send them together with the next bytes in one system call.

        Buffered bytes that no others follow are sent when the event loop's iteration ends.
        """
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
        """Return the number of bytes that were written but not sent."""
        return sum(map(len, self._unsent)) + int(self._transport.get_write_buffer_size())

    def _send(self) -> None:
        """Send the buffered bytes, or drop them if the connection is closing."""
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            self._transport.writelines(unsent)
