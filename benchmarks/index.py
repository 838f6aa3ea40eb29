"""Cost and results of an index: filling, searching over HTTP against bare hnswlib, rescoring, reindexing.

A real server in a process of its own answers; the graph that bare hnswlib searches is the server's own snapshot.
Queries are rows of the source that are not in the index.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from benchmarks.ann.data import find_nearest
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server, encode_base64
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import encode_source
from lathe.training.sources.source import open_source
from lathe.transforms import Chain

BATCH = 2000
QUERIES = 64
K = 10
EFS = (50, 100, 200)
RESCORES = (None, 2, 4, 8)
SHARES = (0.9, 0.5, 0.2, 0.05, 0.01)

Vectors = NDArray[np.float32]


def main() -> None:
    """Measure, print the tables, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts or vectors; the last 1,024 rows are the queries")
    options.add_argument("--rows", type=int, default=100_000, help="rows to index")
    options.add_argument("--chain", default="compact", help="a chain that ships with Lathe")
    arguments = options.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    vectors = read_vectors(arguments.source)
    rows = min(3000 if arguments.quick else arguments.rows, len(vectors) - 1024)
    base, queries = vectors[:rows], vectors[-1024:]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        server = Server(home)
        try:
            figures: dict[str, Any] = {"source": Path(arguments.source).name, "rows": rows, "chain": arguments.chain}
            figures["filling"] = fill(server, base, arguments.chain, home)
            chain = Chain.load(next((home / "chains" / arguments.chain).glob("[0-9]*")))
            truth = find_nearest(queries, base, K)
            figures["searching"] = measure_search_speed(
                server, home, rows, chain, queries, 5 if arguments.quick else 40
            )
            figures["rescoring"] = measure_rescoring(server, queries, truth)
            figures["filtering"] = measure_filtering(server, base, queries, chain)
            figures["reindexing"] = measure_reindexing(server, queries)
        finally:
            server.stop()
    print(format_tables(figures))
    print("raw figures:", write_report(arguments.out, "index", figures), file=sys.stderr)


def read_vectors(written: str) -> Vectors:
    """Return all distinct vectors of a source, in its order."""
    source = open_source(written)
    with tempfile.TemporaryDirectory() as folder:
        encoder = Encoder(DEFAULT_ENCODER) if source.kind() == "texts" else None
        vectors = np.array(encode_source(source, encoder, Path(folder), print_progress).vectors)
    _, first = np.unique(vectors, axis=0, return_index=True)
    return np.ascontiguousarray(vectors[np.sort(first)])


def fill(server: Server, base: Vectors, chain: str, home: Path) -> dict[str, Any]:
    """Upsert all rows from one client, and measure rates, memory and sizes.

    An acknowledged row is on the disk.
    """
    before = server.memory()
    server.call("PUT", "/indexes/bench", chain=chain)
    begun = time.monotonic()
    for start in range(0, len(base), BATCH):
        part = base[start : start + BATCH]
        numbers = range(start, start + len(part))
        server.call(
            "POST",
            "/indexes/bench/upsert",
            ids=[str(number) for number in numbers],
            vectors=encode_base64(part),
            metadata=[make_metadata(number, len(base)) for number in numbers],
        )
        print_progress(0.5 * (start + len(part)) / len(base), "upserting")
    acknowledged = time.monotonic() - begun
    while (index := server.call("GET", "/indexes/bench"))["in_graph"] < len(base):
        print_progress(0.5 + 0.5 * index["in_graph"] / len(base), "linking")
        time.sleep(0.2)
    linked = time.monotonic() - begun
    time.sleep(2)
    sizes = {
        path.relative_to(home).as_posix(): path.stat().st_size
        for path in (home / "indexes").rglob("*")
        if path.is_file()
    }
    return {
        "rows_a_second_acknowledged": len(base) / acknowledged,
        "rows_a_second_linked": len(base) / linked,
        "memory_before": before,
        "memory_most": server.memory(),
        "bytes": index["bytes"],
        "disk": sum(sizes.values()),
    }


def make_metadata(number: int, rows: int) -> dict[str, Any]:
    """Make the metadata of a row: a number, spread evenly over [0, 1) and the same in every run."""
    return {"share": (number * 7919 % rows) / rows}


def measure_search_speed(
    server: Server, home: Path, rows: int, chain: Chain, queries: Vectors, rounds: int
) -> list[dict[str, Any]]:
    """Time batches of 64 queries over HTTP and by bare hnswlib on the same graph, alternating."""
    import hnswlib

    bare = hnswlib.Index("ip", chain.output_dimensions)
    bare.load_index(str(wait_for_snapshot(home, rows)))
    bare.set_num_threads(os.cpu_count() or 1)
    connection = HTTPConnection(server.client.base_url.host, server.client.base_url.port)

    def search_by_http_client(fields: dict[str, Any]) -> Any:
        # Python's own client adds a quarter of a millisecond, httpx more than one.
        connection.request("POST", "/indexes/bench/search", orjson.dumps(fields), {"content-type": "application/json"})
        return orjson.loads(connection.getresponse().read())["results"]

    figures = []
    for ef in EFS:
        bare.set_ef(ef)
        seconds: dict[str, list[float]] = {"bare": [], "http": [], "http_rescored": [], "httpx": []}
        for turn in range(-3, rounds):
            part = queries[(turn * QUERIES) % (len(queries) - QUERIES) :][:QUERIES]
            reduced, sent = chain.floats(part), encode_base64(part)
            fields = {"vectors": sent, "k": K, "ef": ef}
            runs: dict[str, Callable[[], Any]] = {
                "bare": partial(bare.knn_query, reduced, K),
                "http": partial(search_by_http_client, fields),
                "http_rescored": partial(search_by_http_client, fields | {"rescore": 4}),
                "httpx": partial(server.call, "POST", "/indexes/bench/search", **fields),
            }
            for name, run in runs.items():
                begun = time.perf_counter()
                run()
                if turn >= 0:  # the first three warm up
                    seconds[name].append(time.perf_counter() - begun)
            print_progress((turn + 1) / rounds, f"searching at ef {ef}")
        ratios = [bare_seconds / http for bare_seconds, http in zip(seconds["bare"], seconds["http"], strict=True)]
        figures.append(
            {"ef": ef, "batch": QUERIES, "k": K}
            | {f"{name}_ms": 1000 * statistics.median(values) for name, values in seconds.items()}
            | {"http_of_bare": statistics.median(ratios), "http_of_bare_quartiles": statistics.quantiles(ratios, n=4)}
        )
    return figures


def measure_rescoring(server: Server, queries: Vectors, truth: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Measure recall@10 relative to exact search of the originals, by candidates and rescoring."""
    return [
        {"ef": ef, "rescore": rescore}
        | measure_search(server, queries, truth, ef=ef, **({"rescore": rescore} if rescore else {}))
        for ef in EFS
        for rescore in RESCORES
    ]


def measure_filtering(server: Server, base: Vectors, queries: Vectors, chain: Chain) -> list[dict[str, Any]]:
    """Measure recall@10 of filtered searches relative to exact search of the same rows in the same reduced space."""
    reduced_base, reduced = chain.floats(base), chain.floats(queries)
    shares = np.array([make_metadata(number, len(base))["share"] for number in range(len(base))])
    figures = []
    for share in SHARES:
        matching = np.flatnonzero(shares < share)
        truth = matching[find_nearest(reduced, reduced_base[matching], K)]
        for attempt in ("cold", "warm"):
            found = measure_search(server, queries, truth, ef=100, filter={"share": {"lt": share}})
            figures.append({"share": share, "filter": attempt} | found)
    return figures


def measure_search(server: Server, queries: Vectors, truth: NDArray[np.int64], **options: Any) -> dict[str, Any]:
    """Search once with all queries, and return recall@10 with half its 95 % interval, and the time of a query."""
    begun = time.perf_counter()
    answers = search(server, queries, **options)
    seconds = time.perf_counter() - begun
    recalls = compute_recalls(answers, truth)
    return {
        "recall_at_10": float(recalls.mean()),
        "ci95": compute_half_interval(recalls),
        "ms_a_query": 1000 * seconds / len(queries),
    }


def measure_reindexing(server: Server, queries: Vectors) -> dict[str, Any]:
    """Reindex with another number of links, then to raw vectors, while one client searches all the time."""
    figures: dict[str, Any] = {"runs": []}
    for change in ({"m": 24}, {"chain": "none"}):
        spaces = {server.call("GET", "/indexes/bench")["space_id"]}
        answers: list[tuple[float, str, int]] = []
        ended = threading.Event()

        def keep_searching(answers: list[tuple[float, str, int]] = answers, ended: threading.Event = ended) -> None:
            with httpx.Client(base_url=server.client.base_url, timeout=60) as client:
                while not ended.is_set():
                    begun = time.perf_counter()
                    body = {"vectors": encode_base64(queries[:QUERIES]), "k": K}
                    answer = client.post("/indexes/bench/search", json=body)
                    space_id = answer.json().get("space_id", "") if answer.status_code == 200 else ""
                    answers.append((time.perf_counter() - begun, space_id, answer.status_code))

        searching = threading.Thread(target=keep_searching)
        searching.start()
        begun = time.monotonic()
        job = server.call("POST", "/indexes/bench/reindex", **change)
        while (state := server.call("GET", job["status_url"]))["state"] in ("queued", "running"):
            print_progress(state["progress"], f"reindexing: {state['message']}")
            time.sleep(0.3)
        seconds = time.monotonic() - begun
        time.sleep(1)
        ended.set()
        searching.join()
        spaces.add(server.call("GET", "/indexes/bench")["space_id"])
        order = [space for _, space, _ in answers]
        changes = sum(space != following for space, following in zip(order, order[1:], strict=False))
        figures["runs"].append(
            {
                "change": change,
                "state": state["state"],
                "seconds": seconds,
                "searches": len(answers),
                "failed": sum(status != 200 for _, _, status in answers),
                "of_neither_space": sum(space not in spaces for space in order),
                "changes_of_space": changes,
                "median_ms": 1000 * statistics.median(took for took, _, _ in answers),
                "slowest_ms": 1000 * max(took for took, _, _ in answers),
            }
        )
    return figures


def search(server: Server, queries: Vectors, **fields: Any) -> list[list[int]]:
    """Search in batches of 64 queries, and return the ids found for each."""
    ids_found: list[list[int]] = []
    for start in range(0, len(queries), QUERIES):
        rows = encode_base64(queries[start : start + QUERIES])
        answer = server.call("POST", "/indexes/bench/search", vectors=rows, k=K, **fields)
        ids_found += [[int(hit["id"]) for hit in hits] for hits in answer["results"]]
    return ids_found


def compute_recalls(found: list[list[int]], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of the true neighbours that were found, for each query."""
    return np.array([len(set(ids) & set(true)) / K for ids, true in zip(found, truth.tolist(), strict=True)])


def compute_half_interval(values: NDArray[np.float64]) -> float:
    """Return half the width of the 95 % interval of a mean over queries."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def wait_for_snapshot(home: Path, rows: int) -> Path:
    """Wait until the server's graph on the disk has every row, and return its path.

    Snapshots are written once a minute.
    """
    while not (snapshots := list((home / "indexes" / "bench").glob(f"graph-*/graph.{rows}.hnsw"))):
        print_progress(0.0, "waiting for the snapshot")
        time.sleep(1)
    return snapshots[0]


def format_tables(figures: dict[str, Any]) -> str:
    """Format the figures as tables."""
    filling = figures["filling"]
    lines = [
        f"{figures['rows']:,} rows: {filling['rows_a_second_acknowledged']:,.0f} a second acknowledged, "
        f"{filling['rows_a_second_linked']:,.0f} a second until all are in the graph; "
        f"{(filling['memory_most'] - filling['memory_before']) / 1e6:.0f} MB more memory, "
        f"{filling['disk'] / 1e6:.0f} MB on disk",
        "",
        markdown_table(
            ["ef", "bare hnswlib, ms", "over HTTP, ms", "of bare", "rescored 4×, ms", "by httpx, ms"],
            [
                [
                    str(f["ef"]),
                    f"{f['bare_ms']:.2f}",
                    f"{f['http_ms']:.2f}",
                    f"{f['http_of_bare']:.2f}",
                    f"{f['http_rescored_ms']:.2f}",
                    f"{f['httpx_ms']:.2f}",
                ]
                for f in figures["searching"]
            ],
        ),
        "",
        markdown_table(
            ["ef", "rescore", "recall@10", "ms a query"],
            [
                [
                    str(f["ef"]),
                    str(f["rescore"] or "–"),
                    f"{f['recall_at_10']:.3f} ± {f['ci95']:.3f}",
                    f"{f['ms_a_query']:.2f}",
                ]
                for f in figures["rescoring"]
            ],
        ),
        "",
        markdown_table(
            ["share that matches", "filter", "recall@10 of exact", "ms a query"],
            [
                [str(f["share"]), f["filter"], f"{f['recall_at_10']:.3f} ± {f['ci95']:.3f}", f"{f['ms_a_query']:.2f}"]
                for f in figures["filtering"]
            ],
        ),
        "",
        json.dumps(figures["reindexing"], indent=1),
    ]
    return "\n".join(lines)


def print_progress(fraction: float, message: str) -> None:
    """Print progress on the terminal."""
    print(f"\r\033[K{100 * fraction:3.0f}% {message}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
