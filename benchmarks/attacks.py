"""Cost of harmful requests for a server, and for the clients that use it meanwhile.

Each attack is made on a server of its own, with one encoder process of one thread. Meanwhile a client repeatedly
requests `/health/live` and embeds a short text; the longest wait of each is reported. With `--before NAME=COMMAND`,
another installation is attacked in the same rounds.
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
from benchmarks.start import Installation, describe_process, list_descendants, list_installations

MIN_SECONDS = 2.0
MAX_SECONDS = 300.0
SETTINGS = {"LATHE_WORKERS": "1", "LATHE_THREADS": "1", "LATHE_CACHE_BYTES": "0", "LATHE_DTYPE": "float32"}
JSON = {"content-type": "application/json"}

Attack = Callable[[Server], str]
"""Function that attacks a server and returns the status of its response."""


def make_request_attack(path: str, content: bytes) -> Attack:
    """Return an attack of one request."""

    def attack(server: Server) -> str:
        return str(server.client.post(path, content=content, headers=JSON, timeout=MAX_SECONDS).status_code)

    return attack


def make_raw_attack(*pieces: bytes) -> Attack:
    """Return an attack that sends bytes on one connection until all are sent or the server refuses."""

    def attack(server: Server) -> str:
        with socket.create_connection(get_address(server), MAX_SECONDS) as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                connection.settimeout(MIN_SECONDS)
                return parse_status(connection.recv(12))
            except OSError as error:
                with suppress(OSError):
                    return parse_status(connection.recv(12))
                return type(error).__name__

    return attack


def send_unfinished_bodies(server: Server) -> str:
    """Send 60 bodies of 30 MB without their last megabyte, and describe the responses."""
    head = b"POST /reduce HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: 31000000\r\n\r\n"
    connections, answers = [], []
    for _ in range(60):
        connections.append(socket.create_connection(get_address(server), MAX_SECONDS))
        with suppress(OSError):
            connections[-1].sendall(head + b" " * 30_000_000)
    for connection in connections:
        connection.settimeout(0.05)
        try:
            answers.append(parse_status(connection.recv(12)))
        except OSError as error:
            answers.append("waits" if isinstance(error, TimeoutError) else type(error).__name__)
        connection.close()
    return ", ".join(f"{answers.count(answer)} × {answer}" for answer in sorted(set(answers)))


def make_parallel_attack(path: str, content: bytes, count: int) -> Attack:
    """Return an attack of the same request many times at once."""

    def attack(server: Server) -> str:
        with ThreadPoolExecutor(count) as callers:
            answers = list(callers.map(lambda _: make_request_attack(path, content)(server), range(count)))
        return ", ".join(f"{answers.count(answer)} × {answer}" for answer in sorted(set(answers)))

    return attack


ROWS = b",".join([b"[" + b"-9," * 16_383 + b"-9]"] * 610)
LONG_ROW = json.dumps({"chain": "compact", "vectors": [["a" * 250_000, *[1] * 5000]]}).encode()
HEADERS = [b"".join(b"a%07d: b\r\n" % n for n in range(start, start + 1000)) for start in range(0, 1_500_000, 1000)]
ATTACKS: dict[str, Attack] = {
    "a long text among numbers, 0.3 MB": make_request_attack("/reduce", LONG_ROW),
    "one text of short words, 31 MB": make_request_attack(
        "/embed", json.dumps({"inputs": "a b " * 7_700_000}).encode()
    ),
    "one text of white space, 31 MB": make_request_attack(
        "/embed", json.dumps({"inputs": "a" + " " * 31_000_000 + "b"}).encode()
    ),
    "256 texts of 120 kB": make_request_attack("/embed", json.dumps({"inputs": ["a b " * 30_000] * 256}).encode()),
    "1.5 million headers": make_raw_attack(b"GET / HTTP/1.1\r\n", *HEADERS),
    "one header of 150 MB": make_raw_attack(b"GET / HTTP/1.1\r\na: ", *[b"x" * 1_000_000] * 150),
    "60 bodies of 30 MB, unfinished": send_unfinished_bodies,
    "7 bodies of 30 MB at once": make_parallel_attack(
        "/reduce", b'{"chain": "compact", "vectors": [' + ROWS + b"]}", 7
    ),
}


def main() -> None:
    """Run the attacks, print a table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--before", metavar="NAME=COMMAND", help="another `lathe` program, attacked in turns")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for _ in range(1 if arguments.quick else arguments.rounds):
            for attack in ATTACKS:
                for installation in list_installations(arguments, Path(folder)):
                    figures = measure(installation, ATTACKS[attack])
                    runs.setdefault(installation.name, {}).setdefault(attack, []).append(figures)
                    print(f"{installation.name}: {attack}: {figures}", file=sys.stderr)
    print(format_table(runs))
    print("raw figures:", write_report(arguments.out, "attacks", runs), file=sys.stderr)


def measure(installation: Installation, attack: Attack) -> dict[str, Any]:
    """Attack a new server, and return its response with the cost for it and for others."""
    server = Server(installation.home, lathe=installation.command, **SETTINGS)
    try:
        processes = [server.process.pid, *list_descendants(server.process.pid)]
        encoder_processes = [
            process for process in processes if "lathe.service.encoders.engine.worker" in describe_process(process)
        ]
        time_request(server, lambda client: client.post("/embed", json={"inputs": "a short text"}))  # warm
        for process in processes:
            Path(f"/proc/{process}/clear_refs").write_text("5")
        before = {process: read_megabytes(process, "VmRSS") for process in processes}
        with observe_clients(server) as waits:
            begun = time.monotonic()
            try:
                answer = attack(server)
            except httpx.HTTPError as error:
                answer = type(error).__name__
            seconds = time.monotonic() - begun
            time.sleep(max(0.0, MIN_SECONDS - seconds))
        return {
            "answer": answer,
            "seconds": round(seconds, 3),
            "server lifted by MB": compute_growth(server.process.pid, before),
            "encoder lifted by MB": compute_growth(encoder_processes[0], before),
            "survived": server.process.poll() is None,
        } | {f"longest wait for {name}": round(max(waited_seconds), 3) for name, waited_seconds in waits.items()}
    finally:
        server.stop()


@contextmanager
def observe_clients(server: Server) -> Iterator[Mapping[str, list[float]]]:
    """Send requests of two clients repeatedly while the block runs, and yield the seconds that each response took.

    The result has a list for each client, which grows during the block.
    """
    waits: dict[str, list[float]] = {"/health/live": [], "an embedding": []}
    requests = {
        "/health/live": lambda client: client.get("/health/live"),
        "an embedding": lambda client: client.post("/embed", json={"inputs": "a short text"}),
    }
    done = threading.Event()

    def watch(name: str) -> None:
        while not done.is_set():
            waits[name].append(time_request(server, requests[name]))
            time.sleep(0.02)

    threads = [threading.Thread(target=watch, args=(name,)) for name in requests]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    try:
        yield waits
    finally:
        done.set()
        for thread in threads:
            thread.join()


def time_request(server: Server, send: Callable[[httpx.Client], httpx.Response]) -> float:
    """Return the seconds until a client has a response, or none."""
    begun = time.monotonic()
    with httpx.Client(base_url=server.url, timeout=MAX_SECONDS) as client, suppress(httpx.HTTPError):
        send(client)
    return time.monotonic() - begun


def get_address(server: Server) -> tuple[str, int]:
    """Return the host and port of a server."""
    url = httpx.URL(server.url)
    return url.host, url.port or 80


def parse_status(head: bytes) -> str:
    """Return the status code that a response begins with, or "closed" if it is empty."""
    return head[9:12].decode() or "closed"


def read_megabytes(process: int, field: str) -> float:
    """Return a field of a process's memory status in megabytes, or 0 if the process has ended."""
    with suppress(OSError):
        match = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(match[1]) / 1000 if match else 0.0
    return 0.0


def compute_growth(process: int, before: Mapping[int, float]) -> float | None:
    """Return the megabytes from a process's memory before to its peak, or None if it has ended."""
    peak = read_megabytes(process, "VmHWM")
    return round(peak - before[process]) if peak else None


def format_table(found: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> str:
    """Format the medians as a table with a row for each attack and installation."""
    columns = ["answer", "seconds", "server lifted by MB", "encoder lifted by MB"]
    columns += ["longest wait for /health/live", "longest wait for an embedding"]
    rows = [
        [attack, name, *(summarize_values([figures[column] for figures in found[name][attack]]) for column in columns)]
        for attack in ATTACKS
        for name in found
    ]
    return markdown_table(["attack", "", *columns], rows)


def summarize_values(values: list[Any]) -> str:
    """Return the median of numbers, or the distinct values if some are no numbers."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        return f"{statistics.median(numbers):.3g}"
    return " / ".join(sorted({"gone" if value is None else str(value) for value in values}))


if __name__ == "__main__":
    main()
