"""Overhead of the server's front: cached texts beside `/health/live`, and uncached single texts beside batches.

    git worktree add /tmp/before REVISION
    python -m benchmarks.front --before /tmp/before

With `--before`, the server of another checkout is measured alternating with this one. Besides the rate, the processor
time of the server's own process is counted for each request: on a busy machine it says more.
"""

import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server
from benchmarks.sockets import closed_loop
from benchmarks.texts import read_texts

ROOT = Path(__file__).parent.parent
TEXT = "What is a lathe, and what is it for, in a workshop of some size?"
CACHED = {
    "/health/live": ("/health/live", b""),
    "/embed": ("/embed", orjson.dumps({"inputs": TEXT})),
    "/v1/embeddings": ("/v1/embeddings", orjson.dumps({"input": TEXT})),
    "/v1/embeddings, base64": ("/v1/embeddings", orjson.dumps({"input": TEXT, "encoding_format": "base64"})),
    "/embed, 128 dimensions": ("/embed", orjson.dumps({"inputs": TEXT, "dimensions": 128})),
}
UNCACHED = {"single texts, 32 at a time": (1, 32), "batches of 32, 4 at a time": (32, 4), "one text at a time": (1, 1)}

Figures = dict[str, Any]


def main() -> None:
    """Measure both sides, write the raw JSON, and print the table."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="folder of another checkout, measured in turns with this one")
    options.add_argument("--texts", default="pydoc:", help="source of texts")
    options.add_argument("--dtype", default="bfloat16", help="of the uncached texts")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 2, 1.0
    sides = {"now": ROOT} | ({"before": arguments.before.resolve()} if arguments.before else {})
    texts = read_texts(arguments.texts, 1500)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        warm = {name: start(stack, place, Path(folder) / f"warm-{name}") for name, place in sides.items()}
        figures: Figures = {"cached": measure_cached(warm, arguments.rounds, arguments.seconds)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        off = {"LATHE_CACHE_BYTES": "0", "LATHE_DTYPE": arguments.dtype}
        cold = {name: start(stack, place, Path(folder) / f"cold-{name}", **off) for name, place in sides.items()}
        figures["uncached"] = measure_uncached(cold, texts, arguments.rounds, arguments.seconds)
    path = write_report(arguments.out, "front", figures)
    print(format_table(figures))
    print(f"\n{path}", file=sys.stderr)


def start(stack: ExitStack, checkout: Path, home: Path, **settings: str) -> Server:
    """Start the server of a checkout, which ends with the stack."""
    program = "from lathe.service.cli.main import main; main()"
    server = Server(home, checkout=str(checkout), lathe=[sys.executable, "-P", "-c", program], **settings)
    stack.callback(server.stop)
    server.wait_for_workers(1)
    return server


def measure_cached(servers: dict[str, Server], rounds: int, seconds: float) -> Figures:
    """Measure each request with each number of connections on each side, alternating."""
    figures_by_load: dict[tuple[str, int, str], list[Figures]] = {}
    for (what, (path, body)), connections in itertools.product(CACHED.items(), (1, 32)):
        for server in servers.values():
            measure_load(server, path, itertools.repeat(body), 32, 1.0)
        for number in range(rounds):
            for name, server in order_sides(servers, number):
                figures = measure_load(server, path, itertools.repeat(body), connections, seconds)
                figures_by_load.setdefault((what, connections, name), []).append(figures)
    return summarize(figures_by_load)


def measure_uncached(servers: dict[str, Server], texts: list[str], rounds: int, seconds: float) -> Figures:
    """Measure single texts and batches on each side, in texts, and their ratio in each round."""
    figures_by_load: dict[tuple[str, int, str], list[Figures]] = {}
    for server in servers.values():
        server.wait_for_workers(2)
        for size, connections in UNCACHED.values():
            measure_load(server, "/v1/embeddings", repeat_bodies(texts, size), connections, seconds)
    for number in range(rounds):
        for name, server in order_sides(servers, number):
            for what, (size, connections) in UNCACHED.items():
                figures = measure_load(
                    server, "/v1/embeddings", repeat_bodies(texts, size), connections, 2 * seconds, size
                )
                figures_by_load.setdefault((what, connections, name), []).append(figures)
    singles, batches, _ = UNCACHED.items()
    summary = summarize(figures_by_load)
    for name in servers:
        pairs = zip(
            figures_by_load[singles[0], singles[1][1], name],
            figures_by_load[batches[0], batches[1][1], name],
            strict=True,
        )
        ratios = [single["rate"] / batch["rate"] for single, batch in pairs]
        summary[f"singles to batches, {name}"] = [round(value, 3) for value in (statistics.median(ratios), *ratios)]
    return summary


def order_sides(servers: dict[str, Server], number: int) -> list[tuple[str, Server]]:
    """Return the sides in the order of a round, which is reversed every second time."""
    return list(servers.items()) if number % 2 == 0 else list(reversed(servers.items()))


def repeat_bodies(texts: list[str], size: int) -> Iterator[bytes]:
    """Yield requests of a number of texts without end."""
    parts = [texts[place : place + size] for place in range(0, len(texts) - size + 1, size)]
    return itertools.cycle([orjson.dumps({"input": part[0] if size == 1 else part}) for part in parts])


def measure_load(
    server: Server, path: str, bodies: Iterator[bytes], connections: int, seconds: float, texts: int = 1
) -> Figures:
    """Measure texts a second, the median latency in ms, and µs of the server's and its workers' cores for each text."""
    server_before, workers_before = read_cpu(server.process.pid)
    load = closed_loop(server.url + path, bodies, connections, seconds)
    if set(load.statuses) != {200}:
        sys.exit(f"not every request was answered: {dict(load.statuses)}")
    server_after, workers_after = read_cpu(server.process.pid)
    count = texts * load.statuses[200]
    return {
        "rate": round(count / load.seconds, 1),
        "p50_ms": load.percentile(50),
        "server_us": round(1e6 * (server_after - server_before) / count),
        "workers_us": round(1e6 * (workers_after - workers_before) / count),
    }


def read_cpu(server: int) -> tuple[float, float]:
    """Return the seconds of CPU time of a process, and of its descendants."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents, seconds = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        process = int(stat.parent.name)
        parents[process], seconds[process] = int(fields[1]), (int(fields[11]) + int(fields[12])) / ticks
    descendants = {server}
    while children := {process for process, parent in parents.items() if parent in descendants} - descendants:
        descendants |= children
    return seconds[server], sum(seconds[process] for process in descendants - {server})


def summarize(found: dict[tuple[str, int, str], list[Figures]]) -> Figures:
    """Return the median of each figure, and the range of the rates, by request, connections and side."""
    summary: Figures = {}
    for (what, connections, name), rounds in found.items():
        rates = [figures["rate"] for figures in rounds]
        medians = {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
        by_side = summary.setdefault(what, {}).setdefault(str(connections), {})
        by_side[name] = medians | {"least_rate": min(rates), "greatest_rate": max(rates)}
    return summary


def format_table(figures: Figures) -> str:
    """Format the medians as a table."""
    rows = [
        [
            what,
            connections,
            name,
            f"{figures_of_side['rate']:.0f}",
            f"{figures_of_side['p50_ms']:.2f}",
            str(figures_of_side["server_us"]),
        ]
        for kind in figures.values()
        for what, sides in kind.items()
        if isinstance(sides, dict)
        for connections, by_name in sides.items()
        for name, figures_of_side in by_name.items()
    ]
    return markdown_table(["request", "connections", "side", "texts/s", "p50 ms", "server µs"], rows)


if __name__ == "__main__":
    main()
