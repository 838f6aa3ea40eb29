"""Load on a server by a client that costs little: it writes whole requests to sockets and only measures answers.

On a machine whose cores the server needs too, a client that takes as long as the server halves what is measured.
"""

import selectors
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from benchmarks.load import Load

RECEIVED = 1 << 20


def closed_loop(
    url: str, bodies: Iterator[bytes] | list[bytes], concurrency: int, seconds: float = 600.0, accept: str = "*/*"
) -> Load:
    """Post bodies of JSON, a number of them at a time, each as soon as an earlier one is answered.

    This ends when no bodies are left or time is up. An empty body is a GET. The load has no bodies and no times of the
    server.
    """
    parts = urlsplit(url)
    head = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\nAccept: {accept}\r\n"
    remaining, load = iter(bodies), Load()
    with selectors.DefaultSelector() as ready:
        connections = [_Connection(parts.hostname or "", parts.port or 80) for _ in range(concurrency)]
        begun = time.perf_counter()
        for connection in connections:
            if (body := next(remaining, None)) is not None:
                connection.send(_build_request(parts.path, head, body))
                ready.register(connection.socket, selectors.EVENT_READ, connection)
        while ready.get_map():
            for key, _ in ready.select():
                status = key.data.receive()
                if status is None:
                    continue
                now = time.perf_counter()
                load.statuses[status] += 1
                if status == 200:
                    load.latencies.append(now - key.data.begun)
                body = next(remaining, None) if now - begun < seconds else None
                if body is None:
                    ready.unregister(key.fileobj)
                else:
                    key.data.send(_build_request(parts.path, head, body))
        load.seconds = time.perf_counter() - begun
        for connection in connections:
            connection.socket.close()
    return load


def _build_request(path: str, head: str, body: bytes) -> bytes:
    """Return the bytes of a request."""
    method = "POST" if body else "GET"
    return f"{method} {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def find_free_port() -> int:
    """Return a port of this machine that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


class _Connection:
    """A connection, and the answer that is being received on it."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.begun = 0.0
        self.received = self.wanted = self.status = 0
        self.head = b""

    def send(self, request: bytes) -> None:
        """Send a request."""
        self.begun = time.perf_counter()
        self.received, self.wanted, self.head = 0, 0, b""
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """Receive the available bytes.

        Returns:
            The status once the answer is complete, else None; 0 if the server closed the connection.
        """
        data = self.socket.recv(RECEIVED)
        if not data:
            return 0
        self.received += len(data)
        if not self.wanted:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return None
            lines = self.head[:end].lower().split(b"\r\n")
            self.status = int(lines[0].split()[1])
            length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
            self.wanted = end + 4 + length
        return self.status if self.received >= self.wanted else None
