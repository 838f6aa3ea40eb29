"""A parser of HTTP/1.1 requests that ignores offers to change the protocol.

Java's `HttpClient` and `curl --http2` send `Upgrade: h2c` with a first request, WebSocket clients `Upgrade: websocket`.
A server may ignore an offer and answer over HTTP/1.1 (RFC 9110, section 7.8). httptools takes the bytes after the head
for those of the other protocol and reads no body; the next bytes that arrive would be parsed as a request.

head with an offer ──► httptools pauses ──► a new parser: the head without the offer ──► body, next request
"""

from typing import Any

import httptools


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
        """Whether the request in progress offers another protocol.

        CONNECT demands one, and is no offer.
        """
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        """Parse received bytes, ignoring a request's offer to change the protocol.

        Raises:
            httptools.HttpParserError: if they are no valid request.
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
