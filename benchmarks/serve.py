"""Compares serving with Infinity, the bare library and other engines: same model, texts and cores, no caches, all warm.

Rounds alternate; each figure is the median of the rounds, each ratio the median of the rounds' ratios with the smallest
and the largest. All servers run all the time; those that are not measured idle. The client costs little (`sockets`).
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks import rivals, sockets
from benchmarks.load import Load, Target, closed_loop, open_loop
from benchmarks.peers import BareEncode, EngineProcess, Infinity, Rival, export_graph, install_engines, install_infinity
from benchmarks.reduce_load import measure_memory, measure_reduce
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.roofline import measure_roofline
from benchmarks.server import Server
from benchmarks.texts import read_texts
from lathe.training.encoder.devices import has_bfloat16

CONCURRENCY = 32
BATCH = 32
BATCH_CONCURRENCY = 4
QUEUE_LIMIT = 128
"""Number of texts that may be queued in the overload measurement."""

OVERLOAD = 4
MIN_AGREEMENT = 0.99
"""Cosine of every vector to the peer's; bfloat16 and the truncation of long texts allow no more."""

Figures = dict[str, Any]


def main() -> None:
    """Measure, write the raw JSON, and print the table."""
    options = read_options()
    texts = read_texts(options.texts, options.count)
    if options.only_engines:
        engines = options.engines_python or install_engines(Path("build/peers/engines"))
        dtypes = ["bfloat16", "float32"] if has_bfloat16("cpu") else ["float32"]
        with tempfile.TemporaryDirectory() as folder:
            engine_figures = measure_engines(texts, dtypes, engines, Path(folder) / "rivals", options.rounds)
        print(write_report(options.out, "serve-engines", engine_figures), file=sys.stderr)
        return
    peer = options.peer_python or install_infinity(Path("build/peers/infinity"))
    dtypes = ["bfloat16", "float32"] if has_bfloat16("cpu") else ["float32"]
    figures: Figures = {
        "texts": {"count": len(texts), "mean_characters": round(statistics.mean(map(len, texts)), 1)},
        "rounds": options.rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        for dtype in dtypes:
            figures[dtype] = measure_peers(texts, dtype, peer, Path(folder) / dtype, options)
            figures[dtype]["roofline"] = compare_to_limit(figures[dtype], measure_roofline(texts, dtype))
        if not options.only_servers:
            engines = options.engines_python or install_engines(Path("build/peers/engines"))
            figures["rivals"] = measure_engines(texts, dtypes, engines, Path(folder) / "rivals", options.rounds)
            figures["overload"] = measure_overload(texts, Path(folder) / "overload")
            figures["reduce"] = measure_reduce(Path(folder) / "reduce", options.rounds)
            figures["memory"] = measure_memory(Path(folder) / "memory", options.requests)
    path = write_report(options.out, options.name, figures)
    print(format_table(figures, dtypes))
    print(f"\n{path}", file=sys.stderr)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__)
    options.add_argument("--texts", default="pydoc:", help="source of texts; pydoc: is there on every machine")
    options.add_argument("--count", type=int, default=1500, help="texts sent in each round")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--requests", type=int, default=100_000, help="of /reduce, over which memory must not grow")
    options.add_argument("--peer-python", type=Path, help="Python with infinity-emb; installed if not given")
    options.add_argument("--engines-python", type=Path, help="Python with the other engines; installed if not given")
    options.add_argument("--name", default="serve", help="name of the raw figures' file")
    options.add_argument("--only-servers", action="store_true", help="compare Lathe, Infinity and the library alone")
    options.add_argument("--only-engines", action="store_true", help="leave all but the other engines out")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.count, chosen.rounds, chosen.requests = 300, 2, 5000
    return chosen


def measure_peers(texts: list[str], dtype: str, peer: Path, home: Path, options: argparse.Namespace) -> Figures:
    """Measure Lathe, Infinity and the bare library in one dtype, alternating."""
    lathe = Server(home, LATHE_CACHE_BYTES="0", LATHE_DTYPE=dtype)
    infinity = Infinity(peer, dtype)
    bare = BareEncode(dtype, texts)
    try:
        lathe.wait_for_workers(2)
        ours, theirs = make_target(lathe.url, "/v1/embeddings"), make_target(infinity.url, "/embeddings")
        names = {ours: "all-MiniLM-L6-v2", theirs: "encoder"}
        least = compare_vectors(texts[:256], ours, theirs, names)

        def throughput(target: Target, size: int, concurrency: int) -> Callable[[], float]:
            bodies = make_bodies(texts, names[target], size)
            return lambda: len(texts) / require_answers(sockets.closed_loop(target.url, bodies, concurrency)).seconds

        sides = {
            "singles": (throughput(ours, 1, CONCURRENCY), throughput(theirs, 1, CONCURRENCY)),
            "batches": (throughput(ours, BATCH, BATCH_CONCURRENCY), throughput(theirs, BATCH, BATCH_CONCURRENCY)),
        }
        figures: Figures = {"least_cosine_to_infinity": least}
        for name, (our, their) in sides.items():
            figures[name] = measure_alternating(
                {"lathe": our, "infinity": their, "bare": bare.texts_per_second}, options.rounds
            )
        rate = figures["singles"]["infinity"]["median"] / 2
        figures["latency"] = measure_latency(texts, ours, theirs, names, rate, options.rounds)
        own_rate = figures["singles"]["lathe"]["median"] / 2
        load = require_answers(open_loop(ours, make_bodies(texts, names[ours], 1)[: int(20 * own_rate)], own_rate))
        figures["latency_at_half_of_own_load"] = {"rate": round(own_rate, 1)} | compute_percentiles(load)
        return figures
    finally:
        for side in (lathe, infinity, bare):
            side.stop()


def compare_to_limit(figures: Figures, limit: Figures) -> Figures:
    """Return the limit of the machine's products, and the share of it that the server reaches."""
    rates = {kind: figures[kind]["lathe"]["median"] for kind in ("singles", "batches")}
    return limit | {f"{kind}_to_limit": round(r / limit["limit_texts_per_second"], 3) for kind, r in rates.items()}


def measure_engines(texts: list[str], dtypes: list[str], engines: Path, home: Path, rounds: int) -> Figures:
    """Measure the texts per second of Lathe's batches and of other engines, alternating.

    The cosines of their vectors to the library's in float32 are measured too.
    """
    home.mkdir()
    export_graph(engines, home / "graph")
    lathes = {f"lathe {dtype}": Server(home / dtype, LATHE_CACHE_BYTES="0", LATHE_DTYPE=dtype) for dtype in dtypes}
    engine_processes: dict[str, EngineProcess] = {
        f"sentence-transformers {dtype}": BareEncode(dtype, texts) for dtype in dtypes
    }
    engine_processes |= {name: Rival(engines, name, home / "graph", texts) for name in rivals.ENGINES}
    try:
        sides: dict[str, Callable[[], float]] = {}
        vectors: dict[str, NDArray[np.float64]] = {}
        for lathe in lathes.values():
            lathe.wait_for_workers(2)
        bodies = make_bodies(texts, "all-MiniLM-L6-v2", BATCH)
        for name, lathe in lathes.items():
            target = make_target(lathe.url, "/v1/embeddings")
            vectors[name] = embed(target, bodies)
            sides[name] = partial(measure_rate, target, bodies, len(texts))
        for name, engine in engine_processes.items():
            vectors[name] = engine.vectors().astype(np.float64)
            sides[name] = engine.texts_per_second
        unit = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in vectors.items()}
        cosines = {name: (rows * unit["sentence-transformers float32"]).sum(axis=1) for name, rows in unit.items()}
        figures = measure_alternating(sides, rounds)
        for name, values in cosines.items():
            figures[name] |= {
                "least_cosine": round(float(values.min()), 6),
                "mean_cosine": round(float(values.mean()), 6),
            }
        return figures
    finally:
        for server in lathes.values():
            server.stop()
        for engine in engine_processes.values():
            engine.stop()


def measure_rate(target: Target, bodies: list[bytes], count: int) -> float:
    """Return the texts per second of a server that is sent batches."""
    return count / require_answers(sockets.closed_loop(target.url, bodies, BATCH_CONCURRENCY)).seconds


def embed(target: Target, bodies: list[bytes]) -> NDArray[np.float64]:
    """Encode all texts by a server, and return their vectors in order, `(n, d)`."""
    load = require_answers(closed_loop(target, bodies, BATCH_CONCURRENCY, keep=True))
    answers = [orjson.loads(load.bodies[index]) for index in range(len(load.bodies))]
    return np.array([item["embedding"] for answer in answers for item in answer["data"]], dtype=np.float64)


def make_target(url: str, path: str) -> Target:
    """Return the target of JSON requests to a path."""
    return Target(url + path)


def make_bodies(texts: list[str], model: str, size: int) -> list[bytes]:
    """Make requests in OpenAI's shape, which both servers accept."""
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    return [orjson.dumps({"input": part[0] if size == 1 else part, "model": model}) for part in parts]


def compare_vectors(texts: list[str], ours: Target, theirs: Target, names: dict[Target, str]) -> float:
    """Warm both servers up, and return the smallest cosine between their vectors.

    Raises:
        SystemExit: if vectors have a wrong shape or norm, or differ too much.
    """
    cosines = []
    for target in (ours, theirs):
        cosines.append(embed(target, make_bodies(texts, names[target], BATCH)))
        closed_loop(target, make_bodies(texts, names[target], 1), CONCURRENCY)
    for vectors in cosines:
        if vectors.shape != (len(texts), 384) or np.abs(np.linalg.norm(vectors, axis=1) - 1).max() > 1e-2:
            sys.exit(f"an answer has the wrong shape or norm: {vectors.shape}")
    least = float((cosines[0] * cosines[1]).sum(axis=1).min())
    if least < MIN_AGREEMENT:
        sys.exit(f"the servers do not agree: cosine {least:.4f}")
    return round(least, 6)


def require_answers(load: Load) -> Load:
    """Return the load if every request of it was answered, else end the program."""
    if set(load.statuses) != {200}:
        sys.exit(f"not every request was answered: {dict(load.statuses)}")
    return load


def measure_alternating(sides: dict[str, Callable[[], float]], rounds: int) -> Figures:
    """Measure each side in every round, in an order that alternates.

    Returns:
        The median and range of each side, and of the ratios of the first side to each other, round by round.
    """
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        # So that no side always runs on a machine that another has just warmed up.
        names = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in names:
            measured[name].append(sides[name]())
            print(f"  round {number + 1} {name}: {measured[name][-1]:.1f}", file=sys.stderr)
    first, *compared = sides
    figures: Figures = {name: summarize_values(values) for name, values in measured.items()}
    for name in compared:
        pairs = zip(measured[first], measured[name], strict=True)
        figures[f"{first}/{name}"] = summarize_values([numerator / denominator for numerator, denominator in pairs])
    return figures


def summarize_values(values: list[float]) -> dict[str, float]:
    """Return the median and the range of values."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "greatest": round(max(values), 3),
    }


def measure_latency(
    texts: list[str], ours: Target, theirs: Target, names: dict[Target, str], rate: float, rounds: int
) -> Figures:
    """Measure the latencies of single texts at random moments for each server alternately.

    The load is half of Infinity's rate.
    """
    loads: dict[str, list[Load]] = {"lathe": [], "infinity": []}
    for number in range(rounds):
        for name, target in (("lathe", ours), ("infinity", theirs)):
            bodies = make_bodies(texts, names[target], 1)[: int(10 * rate)]
            loads[name].append(require_answers(open_loop(target, bodies, rate, seed=number)))
    figures: Figures = {"rate": round(rate, 1)}
    for name, several in loads.items():
        joined = Load(latencies=[value for load in several for value in load.latencies])
        figures[name] = compute_percentiles(joined)
    return figures


def compute_percentiles(load: Load) -> dict[str, float]:
    """Return percentiles of the latencies, in milliseconds."""
    return {f"p{percent}_ms": load.percentile(percent) for percent in (50, 95, 99)}


def measure_overload(texts: list[str], home: Path) -> Figures:
    """Send four times the load that a server sustains, and measure what it answers and refuses.

    The time that the answered requests waited is measured too.
    """
    seconds = 8
    lathe = Server(home, LATHE_CACHE_BYTES="0", LATHE_MAX_QUEUED_TEXTS=str(QUEUE_LIMIT))
    try:
        lathe.wait_for_workers(2)
        target = make_target(lathe.url, "/v1/embeddings")
        bodies = make_bodies(texts, "all-MiniLM-L6-v2", 1)
        closed_loop(target, bodies, CONCURRENCY)
        rate = OVERLOAD * len(bodies) / require_answers(closed_loop(target, bodies, CONCURRENCY)).seconds
        many = [bodies[index % len(bodies)] for index in range(int(seconds * rate))]
        load = open_loop(target, many, rate, from_due=False)
        pace = load.statuses[200] / load.seconds
        return {
            "rate": round(rate, 1),
            "queue_limit": QUEUE_LIMIT,
            "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
            "answered_per_second": round(pace, 1),
            "queue_limit_at_that_pace_ms": round(1000 * QUEUE_LIMIT / pace, 1),
            "p99_from_acceptance_to_answer_ms": round(float(np.percentile(load.inside, 99)), 1),
        } | compute_percentiles(load)
    finally:
        lathe.stop()


def format_table(figures: Figures, dtypes: list[str]) -> str:
    """Format the tables that the README shows."""
    rows = []
    for dtype in dtypes:
        figure = figures[dtype]
        for kind, words in (("singles", "single texts, 32 at a time"), ("batches", "batches of 32, 4 at a time")):
            side = figure[kind]
            rates = [f"{side[name]['median']:.0f}" for name in ("lathe", "infinity", "bare")]
            ratios = [f"{side[f'lathe/{name}']['median']:.2f}" for name in ("infinity", "bare")]
            rows.append([dtype, words, *rates, *ratios])
    rate_table = markdown_table(
        ["dtype", "texts a second", "Lathe", "Infinity", "bare encode", "to Infinity", "to bare"], rows
    )
    if "rivals" in figures:
        engines = [
            [name, f"{side['median']:.0f}", f"{side['least_cosine']:.4f}"]
            for name, side in figures["rivals"].items()
            if "least_cosine" in side
        ]
        rate_table += "\n\n" + markdown_table(["engine", "texts a second", "least cosine to float32"], engines)
    latencies = [
        [dtype, f"{figure['rate']} a second", f"{figure['lathe']['p99_ms']} ms", f"{figure['infinity']['p99_ms']} ms"]
        for dtype, figure in ((dtype, figures[dtype]["latency"]) for dtype in dtypes)
    ]
    return rate_table + "\n\n" + markdown_table(["dtype", "load", "p99 Lathe", "p99 Infinity"], latencies)


if __name__ == "__main__":
    main()
