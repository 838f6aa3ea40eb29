"""A chain fitted anew on other text, shadowed beside `compact`: how they compare, and what a shadow costs requests."""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.load import Target, closed_loop
from benchmarks.reduce_load import NPY, npy_of
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server
from lathe.service.chains.registry import Registry
from lathe.service.home import Home
from lathe.service.monitoring.shadow.shadow import REPORT_SECONDS
from lathe.service.registries import open_local_registry
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.sources.source import open_source
from lathe.transforms import Chain, parse_steps
from lathe.transforms.vectors import FloatArray

NAME, STEPS = "compact", "r2,geopres:128,nested=true"
SHARES = (0.0, 0.1, 1.0)
BATCH = 64
TAP_SECONDS = 0.3
"""Until the thread that rows pass by has done its work."""

Figures = dict[str, Any]


def main() -> None:
    """Measure, print tables, write the raw figures."""
    options = read_options()
    encoder = Encoder(DEFAULT_ENCODER)
    own, other = texts_of(options.source, options.texts), texts_of(options.other, options.rows)
    vectors = {"own": encoder.encode(own).vectors, "other": encoder.encode(other).vectors}
    held_out = min(options.rows, len(own) // 3)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        publish_refit(Home(home), vectors["own"][held_out:])
        server = Server(home, LATHE_CACHE_BYTES="0", LATHE_WORKERS="1", LATHE_DRIFT="false")
        try:
            traffic = {name: rows[:held_out] for name, rows in vectors.items()}
            figures: Figures = {
                "source": open_source(options.source).name,
                "other": open_source(options.other).name,
                "fitted_on": len(own) - held_out,
                "compared": {name: compared(server, rows) for name, rows in traffic.items()},
                "rounds": options.rounds,
            }
            show_compared(figures)
            figures["cost"] = cost(server, own[:held_out], traffic["own"], options.rounds)
            show_cost(figures["cost"])
        finally:
            server.stop()
    print("raw figures:", write_report(options.out, "shadow", figures), file=sys.stderr)


def read_options() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts to fit the candidate on, and to send")
    options.add_argument("--other", default="pydoc:topics", help="texts to send that nobody fitted on")
    options.add_argument("--texts", type=int, default=8000, help="how many of a source at most, spread over it")
    options.add_argument("--rows", type=int, default=2000, help="of a source that no fit sees, and a shadow holds")
    options.add_argument("--rounds", type=int, default=8, help="each measures every share once")
    given = options.parse_args()
    if given.quick:
        given.texts, given.rows, given.rounds = 900, 300, 2
    return given


def texts_of(written: str, most: int) -> list[str]:
    """Different texts of a source, in an order of chance that is always the same."""
    batches = (batch.values for batch in open_source(written).batches())
    texts = list(dict.fromkeys(str(text) for values in batches for text in values if str(text).strip()))
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:most]]


def publish_refit(home: Home, rows: FloatArray) -> None:
    """The starters in a new state folder, and beside `compact` a version fitted on these rows."""
    registry, _ = open_local_registry(home)
    chain = Chain(parse_steps(STEPS)).fit(rows)
    chain.metadata = {"encoder": Registry(home.chains).manifest(NAME, 1)["encoder"]}
    registry.publish(chain, NAME, promote=False)


def compared(server: Server, rows: FloatArray) -> Figures:
    """What a shadow of the new version says after these rows."""
    server.call("PUT", f"/chains/{NAME}/shadow", version=2, share=1.0, rows=len(rows))
    target = Target(f"{server.url}/reduce?chain={NAME}", NPY, NPY)
    closed_loop(target, [npy_of(part) for part in np.array_split(rows, max(1, len(rows) // BATCH))], 1)
    while server.call("GET", f"/chains/{NAME}/shadow")["seen"] < len(rows):
        time.sleep(0.2)  # they pass by beside the requests
    time.sleep(REPORT_SECONDS)
    found = server.call("GET", f"/chains/{NAME}/shadow")
    kept = ("rows", "k", "agreement_at_k", "raw_recall_at_k", "recall_ratio", "latency_ms", "problems")
    server.call("DELETE", f"/chains/{NAME}/shadow")
    return {name: found[name] for name in kept}


def cost(server: Server, texts: list[str], rows: FloatArray, rounds: int) -> Figures:
    """The server's processor time, and the time, of a request without a shadow, and with one of each share.

    In each round every share has its turn, in an order that moves on.
    """
    loads = requests(server, texts, rows)
    taken: dict[str, dict[float, list[Figures]]] = {name: {share: [] for share in SHARES} for name in loads}
    for turn in range(rounds):
        for share in SHARES[turn % 3 :] + SHARES[: turn % 3]:
            if share:
                server.call("PUT", f"/chains/{NAME}/shadow", version=2, share=share)
            for name, (target, bodies) in loads.items():
                closed_loop(target, bodies[:1], 1)
                taken[name][share].append(timed(server.process.pid, target, bodies))
            if share:
                server.call("DELETE", f"/chains/{NAME}/shadow")
    return {
        name: {f"share {share:g}": medians(found) | against(found, by_share[0.0]) for share, found in by_share.items()}
        for name, by_share in taken.items()
    }


def timed(pid: int, target: Target, bodies: list[bytes]) -> Figures:
    """Milliseconds of some requests, one after the other: of the server's processor for each, and their median time.

    The server's process is where a shadow works; its workers, which encode, are processes of their own.
    """
    before = processor_seconds(pid)
    elapsed = closed_loop(target, bodies, 1).percentile(50)
    time.sleep(TAP_SECONDS)
    return {"server_ms": 1000 * (processor_seconds(pid) - before) / len(bodies), "elapsed_ms": elapsed}


def processor_seconds(pid: int) -> float:
    """What one process has used, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def medians(found: list[Figures]) -> Figures:
    """Of the rounds."""
    return {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}


def against(found: list[Figures], without: list[Figures]) -> Figures:
    """What the server's processor time gained in each round, in ms: median, least and greatest."""
    gains = [one["server_ms"] - none["server_ms"] for one, none in zip(found, without, strict=True)]
    words = ("added_ms", "added_least", "added_greatest")
    return dict(zip(words, (round(f(gains), 3) for f in (statistics.median, min, max)), strict=True))


def requests(server: Server, texts: list[str], rows: FloatArray) -> dict[str, tuple[Target, list[bytes]]]:
    """The kinds of requests, each with its bodies."""

    def bodies(size: int, count: int) -> list[bytes]:
        parts = ([texts[(start + i) % len(texts)] for i in range(size)] for start in range(0, size * count, size))
        return [orjson.dumps({"inputs": part, "chain": NAME}) for part in parts]

    embed, reduce = Target(f"{server.url}/embed"), Target(f"{server.url}/reduce?chain={NAME}", NPY, NPY)
    return {
        "1 text": (embed, bodies(1, 60)),
        f"{BATCH} texts": (embed, bodies(BATCH, 3)),
        f"{BATCH} vectors": (reduce, [npy_of(rows[:BATCH])] * 200),
    }


def show_compared(figures: Figures) -> None:
    """How the two versions compare, as a table."""
    rows = []
    for name, found in figures["compared"].items():
        recall = found["raw_recall_at_k"]
        shares = (found["agreement_at_k"], recall["live"], recall["candidate"], recall["difference"])
        cells = [f"{share['value']:.3f} ({share['low']:.3f} to {share['high']:.3f})" for share in shares]
        source = figures["source" if name == "own" else "other"]
        rows.append([source, str(found["rows"]), *cells, f"{found['latency_ms']['ratio']:.2f}"])
    header = ["traffic", "rows", "agreement@10", "live", "candidate", "difference", "latency ratio"]
    print(markdown_table(header, rows), "\n", flush=True)


def show_cost(found: Figures) -> None:
    """What a shadow costs, as a table."""
    rows = []
    for name, by_share in found.items():
        none, *others = by_share.values()
        cells = [f"{o['added_ms']:.2f} ({o['added_least']:.2f} to {o['added_greatest']:.2f})" for o in others]
        rows.append([name, f"{none['server_ms']:.2f}", *cells])
    print(markdown_table(["request", "server's processor, ms", *(f"share {s:g} adds" for s in SHARES[1:])], rows))


if __name__ == "__main__":
    main()
