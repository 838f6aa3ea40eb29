"""What a running fit takes from serving, and how fast a fit is on a server that nobody asks.

    git worktree add /tmp/before REVISION
    python -m benchmarks.beside_jobs --texts FILE --before /tmp/before

Each side's server is measured with a fit that encodes long texts and without, in turns. 32 connections send single
texts of 25 words. Vectors are neither cached nor stored.
"""

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.front import ROOT, measure_load, repeat_bodies, start
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server
from benchmarks.texts import read_texts

CONNECTIONS = 32
WORDS = 25
BESIDE_TEXTS, IDLE_TEXTS = 4000, 500
"""Texts of the fit that runs beside the load, which is cancelled, and of the fit on an idle server."""
WARM_SECONDS = 3.0

Figures = dict[str, Any]


def main() -> None:
    """Measure both sides, write the raw JSON, and print the table."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="folder of another checkout")
    options.add_argument("--texts", required=True, help="source of long texts")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 2.0
    texts = read_texts(arguments.texts, BESIDE_TEXTS)
    sides = {"now": ROOT} | ({"before": arguments.before.resolve()} if arguments.before else {})
    figures: Figures = {"mean_characters": round(statistics.mean(map(len, texts)))}
    with tempfile.TemporaryDirectory() as folder:
        for name, checkout in sides.items():  # one at a time, as two servers would share the cores
            with ExitStack() as stack:
                off = {"LATHE_CACHE_BYTES": "0", "LATHE_ENCODED_BYTES": "0"}
                server = start(stack, checkout, Path(folder) / name, **off)
                server.wait_for_workers(2)
                figures[name] = measure_side(server, texts, arguments.rounds, arguments.seconds)
    path = write_report(arguments.out, "beside-jobs", figures)
    print(format_table(figures))
    print(f"\n{path}", file=sys.stderr)


def measure_side(server: Server, texts: list[str], rounds: int, seconds: float) -> Figures:
    """Measure the rate of a server alone and beside a fit, in turns, and then a fit on the idle server."""
    short = [" ".join(text.split()[:WORDS]) for text in texts]

    def measure() -> float:
        load = measure_load(server, "/v1/embeddings", repeat_bodies(short, 1), CONNECTIONS, seconds)
        return float(load["rate"])

    measure_load(server, "/v1/embeddings", repeat_bodies(short, 1), CONNECTIONS, WARM_SECONDS)
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(measure())
        job = begin_fit(server, texts)
        beside.append(measure())
        if server.call("GET", job)["finished_at"]:
            sys.exit("the fit ended before the measurement: it needs more texts")
        server.call("DELETE", job)
    begun = time.perf_counter()
    job = begin_fit(server, texts[:IDLE_TEXTS])
    while not server.call("GET", job)["finished_at"]:
        time.sleep(0.1)
    return {
        "alone": alone,
        "beside_a_fit": beside,
        "left": [round(value / other, 3) for value, other in zip(beside, alone, strict=True)],
        "idle_texts_per_second": round(IDLE_TEXTS / (time.perf_counter() - begun), 1),
    }


def begin_fit(server: Server, texts: list[str]) -> str:
    """Begin a fit, wait until it encodes, and return the path of its job."""
    body = {"name": "beside", "steps": [{"kind": "r2"}], "source": {"texts": texts}}
    job = str(server.call("POST", "/fit-transform", **body)["status_url"])
    while "encoded" not in (state := server.call("GET", job))["message"]:
        if state["finished_at"]:
            break
        time.sleep(0.05)
    return job


def format_table(figures: Figures) -> str:
    """Format the rates of both sides."""
    rows = []
    for name, side in figures.items():
        if isinstance(side, dict):
            alone, beside, left = (statistics.median(side[key]) for key in ("alone", "beside_a_fit", "left"))
            shares = f"{left:.2f} ({min(side['left']):.2f} to {max(side['left']):.2f})"
            rows.append([name, f"{alone:.0f}", f"{beside:.0f}", shares, f"{side['idle_texts_per_second']:.0f}"])
    header = ["", "texts a second alone", "beside a fit", "of that left", "texts a second of a fit on an idle server"]
    return markdown_table(header, rows)


if __name__ == "__main__":
    main()
