"""What requests that are meant to harm cost a server, and those who use it meanwhile.

Each attack meets a server of its own, with one encoder process of one thread. Beside it somebody asks `/health/live`
and embeds a short text, again and again; the longest wait of each is told. With `--before NAME=COMMAND`, another
installation is attacked in the same rounds.
"""

import json
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server
from benchmarks.start import Installation, chosen_installations, descendants, describe_process

LEAST_SECONDS = 2.0
MOST_SECONDS = 300.0
SETTINGS = {"LATHE_WORKERS": "1", "LATHE_THREADS": "1", "LATHE_CACHE_BYTES": "0", "LATHE_DTYPE": "float32"}
JSON = {"content-type": "application/json"}

Attack = Callable[[Server], str]
"""Attacks a server; returns what it answered."""


def post(path: str, content: bytes) -> Attack:
    """Return an attack of one request."""

    def attack(server: Server) -> str:
        return str(server.client.post(path, content=content, headers=JSON, timeout=MOST_SECONDS).status_code)

    return attack


def send(*pieces: bytes) -> Attack:
    """Return an attack that sends bytes on one connection until they are sent or refused."""

    def attack(server: Server) -> str:
        with socket.create_connection(address(server), MOST_SECONDS) as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                connection.settimeout(LEAST_SECONDS)
                return status_of(connection.recv(12))
            except OSError as error:
                with suppress(OSError):
                    return status_of(connection.recv(12))
                return type(error).__name__

    return attack


def unfinished_bodies(server: Server) -> str:
    """Send 60 bodies of 30 MB, each but for its last megabyte."""
    head = b"POST /reduce HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: 31000000\r\n\r\n"
    connections, answers = [], []
    for _ in range(60):
        connections.append(socket.create_connection(address(server), MOST_SECONDS))
        with suppress(OSError):
            connections[-1].sendall(head + b" " * 30_000_000)
    for connection in connections:
        connection.settimeout(0.05)
        try:
            answers.append(status_of(connection.recv(12)))
        except OSError as error:
            answers.append("waits" if isinstance(error, TimeoutError) else type(error).__name__)
        connection.close()
    return ", ".join(f"{answers.count(answer)} × {answer}" for answer in sorted(set(answers)))


def together(path: str, content: bytes, count: int) -> Attack:
    """Return an attack of the same request many times at once."""

    def attack(server: Server) -> str:
        with ThreadPoolExecutor(count) as callers:
            answers = list(callers.map(lambda _: post(path, content)(server), range(count)))
        return ", ".join(f"{answers.count(answer)} × {answer}" for answer in sorted(set(answers)))

    return attack


ROWS = b",".join([b"[" + b"-9," * 16_383 + b"-9]"] * 610)
LONG_ROW = json.dumps({"chain": "compact", "vectors": [["a" * 250_000, *[1] * 5000]]}).encode()
HEADERS = [b"".join(b"a%07d: b\r\n" % n for n in range(start, start + 1000)) for start in range(0, 1_500_000, 1000)]
ATTACKS: dict[str, Attack] = {
    "a long text among numbers, 0.3 MB": post("/reduce", LONG_ROW),
    "one text of short words, 31 MB": post("/embed", json.dumps({"inputs": "a b " * 7_700_000}).encode()),
    "one text of white space, 31 MB": post("/embed", json.dumps({"inputs": "a" + " " * 31_000_000 + "b"}).encode()),
    "256 texts of 120 kB": post("/embed", json.dumps({"inputs": ["a b " * 30_000] * 256}).encode()),
    "1.5 million headers": send(b"GET / HTTP/1.1\r\n", *HEADERS),
    "one header of 150 MB": send(b"GET / HTTP/1.1\r\na: ", *[b"x" * 1_000_000] * 150),
    "60 bodies of 30 MB, unfinished": unfinished_bodies,
    "7 bodies of 30 MB at once": together("/reduce", b'{"chain": "compact", "vectors": [' + ROWS + b"]}", 7),
}


def main() -> None:
    """Attack, print a table, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--before", metavar="NAME=COMMAND", help="another `lathe` program, attacked in turns")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for _ in range(1 if given.quick else given.rounds):
            for attack in ATTACKS:
                for installation in chosen_installations(given, Path(folder)):
                    figures = measure(installation, ATTACKS[attack])
                    found.setdefault(installation.name, {}).setdefault(attack, []).append(figures)
                    print(f"{installation.name}: {attack}: {figures}", file=sys.stderr)
    print(as_table(found))
    print("raw figures:", write_report(given.out, "attacks", found), file=sys.stderr)


def measure(installation: Installation, attack: Attack) -> dict[str, Any]:
    """Attack a new server; return what it answered, and what that took of it and of others."""
    server = Server(installation.home, lathe=installation.command, **SETTINGS)
    try:
        processes = [server.process.pid, *descendants(server.process.pid)]
        of_encoder = [
            one for one in processes if "lathe.service.encoders.engine.worker" in describe_process(one)
        ]  # one
        bystander(server, lambda client: client.post("/embed", json={"inputs": "a short text"}))  # warm
        for process in processes:
            Path(f"/proc/{process}/clear_refs").write_text("5")
        before = {process: megabytes(process, "VmRSS") for process in processes}
        with watched(server) as waits:
            begun = time.monotonic()
            try:
                answer = attack(server)
            except httpx.HTTPError as error:
                answer = type(error).__name__
            seconds = time.monotonic() - begun
            time.sleep(max(0.0, LEAST_SECONDS - seconds))
        return {
            "answer": answer,
            "seconds": round(seconds, 3),
            "server lifted by MB": grown(server.process.pid, before),
            "encoder lifted by MB": grown(of_encoder[0], before),
            "survived": server.process.poll() is None,
        } | {f"longest wait for {name}": round(max(found), 3) for name, found in waits.items()}
    finally:
        server.stop()


@contextmanager
def watched(server: Server) -> Iterator[Mapping[str, list[float]]]:
    """Ask again and again while the block runs; give the seconds that each answer took."""
    waits: dict[str, list[float]] = {"/health/live": [], "an embedding": []}
    asked = {
        "/health/live": lambda client: client.get("/health/live"),
        "an embedding": lambda client: client.post("/embed", json={"inputs": "a short text"}),
    }
    done = threading.Event()

    def watch(name: str) -> None:
        while not done.is_set():
            waits[name].append(bystander(server, asked[name]))
            time.sleep(0.02)

    threads = [threading.Thread(target=watch, args=(name,)) for name in asked]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    try:
        yield waits
    finally:
        done.set()
        for thread in threads:
            thread.join()


def bystander(server: Server, ask: Callable[[httpx.Client], httpx.Response]) -> float:
    """Return the seconds until somebody has an answer, or none."""
    begun = time.monotonic()
    with httpx.Client(base_url=server.url, timeout=MOST_SECONDS) as client, suppress(httpx.HTTPError):
        ask(client)
    return time.monotonic() - begun


def address(server: Server) -> tuple[str, int]:
    """Return the host and port of a server."""
    url = httpx.URL(server.url)
    return url.host, url.port or 80


def status_of(head: bytes) -> str:
    """Return the status code that an answer begins with."""
    return head[9:12].decode() or "closed"


def megabytes(process: int, field: str) -> float:
    """Return a field of what the system says of a process's memory; 0 of one that is gone."""
    with suppress(OSError):
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found[1]) / 1000 if found else 0.0
    return 0.0


def grown(process: int, before: Mapping[int, float]) -> float | None:
    """Return by how much a process's memory was lifted at most; None of one that is gone."""
    peak = megabytes(process, "VmHWM")
    return round(peak - before[process]) if peak else None


def as_table(found: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> str:
    """Return the medians as a table, a row for each attack and installation."""
    columns = ["answer", "seconds", "server lifted by MB", "encoder lifted by MB"]
    columns += ["longest wait for /health/live", "longest wait for an embedding"]
    rows = [
        [attack, name, *(summary([one[column] for one in found[name][attack]]) for column in columns)]
        for attack in ATTACKS
        for name in found
    ]
    return markdown_table(["attack", "", *columns], rows)


def summary(values: list[Any]) -> str:
    """Return the median of numbers, or what was said."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        return f"{statistics.median(numbers):.3g}"
    return " / ".join(sorted({"gone" if value is None else str(value) for value in values}))


if __name__ == "__main__":
    main()
