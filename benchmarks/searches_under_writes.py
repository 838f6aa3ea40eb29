"""Time single searches by vector at fixed times, while rows are written, for this checkout and another one.

    python -m benchmarks.searches_under_writes --vectors FILE.npy --before CHECKOUT

The file holds unit vectors, and its last 1,024 rows are queries. A search counts from the time at which it was due, so
that one that is answered late also delays those behind it. The two servers are measured in blocks that alternate.
"""

import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server, encode_base64, fill_index

ROOT = Path(__file__).parent.parent
QUERIES, K, EFFORT = 1024, 10, 40
INTERVAL = 0.02
"""Seconds between two searches."""
WRITTEN, WRITE_SECONDS = 64, 0.1
"""Rows of a request to write, and seconds between two of them."""
SHARES = {"p50": 50, "p95": 95, "p99": 99}


class Side:
    """A server with an index of the base vectors, to which rows are written while it is searched."""

    def __init__(self, checkout: Path, home: Path, base: NDArray[np.float32]) -> None:
        self.base, self.written = base, 0
        self.server = Server(home, checkout=str(checkout.resolve()))
        fill_index(self.server, base, chain="none", encoder="all-MiniLM-L6-v2", originals="float16")

    def connect(self) -> HTTPConnection:
        """Return a connection to the server."""
        return HTTPConnection(self.server.client.base_url.host, self.server.client.base_url.port)

    def write_on(self, stop: threading.Event) -> None:
        """Write new rows, with vectors of the base, until `stop` is set."""
        connection = self.connect()
        while not stop.wait(WRITE_SECONDS):
            numbers = range(self.written, self.written + WRITTEN)
            vectors = self.base[[number % len(self.base) for number in numbers]]
            ids = [f"w{number}" for number in numbers]
            ask(connection, "upsert", {"ids": ids, "vectors": encode_base64(vectors)})
            self.written += WRITTEN

    def measure(self, queries: list[str], seconds: float) -> list[float]:
        """Return the ms of searches that are due at fixed times, while rows are written."""
        connection, stop, latencies = self.connect(), threading.Event(), []
        writer = threading.Thread(target=self.write_on, args=(stop,))
        writer.start()
        begun = time.perf_counter()
        for number in range(int(seconds / INTERVAL)):
            due = begun + number * INTERVAL
            time.sleep(max(0.0, due - time.perf_counter()))
            ask(connection, "search", {"k": K, "ef": EFFORT, "vectors": [queries[number % len(queries)]]})
            latencies.append(1000 * (time.perf_counter() - due))
        stop.set()
        writer.join()
        return latencies


def ask(connection: HTTPConnection, action: str, body: dict[str, Any]) -> None:
    """Send a request to the index, and read its answer."""
    connection.request("POST", f"/indexes/bench/{action}", orjson.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{action}: {answer.status} {answer.read()[:500]!r}")
    answer.read()


def main() -> None:
    """Measure both sides, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, required=True, help=".npy of unit vectors; the last are the queries")
    options.add_argument("--before", type=Path, required=True, help="folder of another checkout")
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--seconds", type=float, default=6.0, help="of each block")
    arguments = options.parse_args()
    vectors = np.load(arguments.vectors)
    base, queries = vectors[: 3000 if arguments.quick else arguments.rows], encode_base64(vectors[-QUERIES:])
    blocks: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = {}
        for name, checkout in (("before", arguments.before), ("now", ROOT)):
            sides[name] = Side(checkout, Path(folder) / name, base)
            stack.callback(sides[name].server.stop)
        for turn in range(2 if arguments.quick else arguments.rounds):
            for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
                latencies = sides[name].measure(queries, arguments.seconds)
                block = {label: round(float(np.percentile(latencies, share)), 2) for label, share in SHARES.items()}
                blocks[name].append(block)
                print(name, block, file=sys.stderr)
                time.sleep(2)  # until what was written is linked
    medians = {
        name: {label: round(float(np.median([block[label] for block in measured])), 2) for label in SHARES}
        for name, measured in blocks.items()
    }
    print(markdown_table(["server", *SHARES], [[name, *map(str, block.values())] for name, block in medians.items()]))
    figures = {"rows": len(base), "dimensions": base.shape[1], "medians_ms": medians, "blocks_ms": blocks}
    print("raw figures:", write_report(arguments.out, "searches_under_writes", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
