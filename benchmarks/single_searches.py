"""Time single searches: Lathe over HTTP, pgvector through its socket, LanceDB and Qdrant's local mode in this process.

Run it as `python -m benchmarks.single_searches --vectors FILE.npy`; the file holds unit vectors, and its last 1,024
rows are queries. LanceDB has to be installed (`pip install lancedb`), or is left out by `--targets`.

Every side searches the same rows for the ten nearest, and answers with their ids, at the least effort that finds the
wanted recall for the first half of the queries. The other half is timed, in blocks that alternate.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psycopg
from numpy.typing import NDArray

from benchmarks.ann.data import find_nearest
from benchmarks.databases import format_vector
from benchmarks.index import compute_recalls
from benchmarks.postgres import run_postgres
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server, encode_base64, fill_index

QUERIES, K = 1024, 10
BLOCK = 64
"""Queries that one side answers before it is the turn of the next."""
WARM_UP = 32
EFFORTS = (20, 30, 40, 60, 80, 110, 150, 200, 300, 400)
RESCORE = 4
"""Candidates that Lathe ranks by the originals, for each result."""

Vectors = NDArray[np.float32]
Search = Callable[[int], list[int]]
"""Function that returns the ids found for the query of this number."""
Prepare = Callable[[int], Search]
"""Function that returns the search at an effort."""


@contextmanager
def open_lathe(base: Vectors, queries: Vectors, chain: str, checkout: str | None = None) -> Iterator[Prepare]:
    """Fill an index of a server, wait until all rows are linked, and search it over one connection.

    `checkout` is the folder of another checkout that the server then runs in.
    """
    sent = encode_base64(queries)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), checkout=checkout)
        try:
            fill_index(server, base, chain=chain, encoder="all-MiniLM-L6-v2", originals="float16")
            connection = HTTPConnection(server.client.base_url.host, server.client.base_url.port)

            def prepare(effort: int) -> Search:
                fields = {"k": K, "ef": effort} | ({} if chain == "none" else {"rescore": RESCORE})

                def ask(body: bytes) -> Any:
                    connection.request("POST", "/indexes/bench/search", body, {"content-type": "application/json"})
                    return orjson.loads(connection.getresponse().read())["results"][0]

                def search(number: int) -> list[int]:
                    body = orjson.dumps(fields | {"vectors": [sent[number]]})
                    try:
                        hits = ask(body)
                    except ConnectionError:  # the server has closed it during the others' turns
                        connection.close()
                        hits = ask(body)
                    return [int(hit["id"]) for hit in hits]

                return search

            yield prepare
        finally:
            server.stop()


@contextmanager
def open_pgvector(base: Vectors, queries: Vectors) -> Iterator[Prepare]:
    """Copy the rows into a table of `halfvec` with a graph, and search it by a prepared statement."""
    sent = [format_vector(query) for query in queries]
    with run_postgres() as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute("SET enable_seqscan = off")
        connection.execute(f"CREATE TABLE items (id int PRIMARY KEY, embedding halfvec({base.shape[1]}))")
        with connection.cursor() as cursor, cursor.copy("COPY items FROM STDIN") as copy:
            for number, row in enumerate(base):
                copy.write_row((number, format_vector(row)))
        connection.execute(
            "CREATE INDEX ON items USING hnsw (embedding halfvec_cosine_ops) WITH (ef_construction = 200)"
        )
        connection.execute("VACUUM ANALYZE items")
        statement = f"SELECT id FROM items ORDER BY embedding <=> %s::halfvec LIMIT {K}"

        def prepare(effort: int) -> Search:
            connection.execute(f"SET hnsw.ef_search = {effort}")
            return lambda number: [row[0] for row in connection.execute(statement, [sent[number]], prepare=True)]

        yield prepare


@contextmanager
def open_lancedb(base: Vectors, queries: Vectors) -> Iterator[Prepare]:
    """Write the rows to a table with a graph of scalar-quantized vectors, whose candidates are ranked by the full."""
    import lancedb
    import pyarrow as pa
    from lancedb.index import HnswSq

    with tempfile.TemporaryDirectory() as folder:
        rows = pa.FixedSizeListArray.from_arrays(base.ravel(), base.shape[1])
        table = lancedb.connect(folder).create_table("items", pa.table({"id": np.arange(len(base)), "vector": rows}))
        table.create_index("vector", config=HnswSq(distance_type="cosine", num_partitions=1, m=16, ef_construction=200))

        def prepare(effort: int) -> Search:
            def search(number: int) -> list[int]:
                asked = table.search(queries[number], vector_column_name="vector").distance_type("cosine").limit(K)
                found = asked.ef(effort).refine_factor(2).select(["id", "_distance"]).to_arrow()
                ids: list[int] = found["id"].to_pylist()
                return ids

            return search

        yield prepare


@contextmanager
def open_qdrant(base: Vectors, queries: Vectors) -> Iterator[Prepare]:
    """Upload the rows to the local mode of Qdrant's client, which compares all of them whatever the effort."""
    from qdrant_client import QdrantClient, models

    with closing(QdrantClient(":memory:")) as client:
        size = models.VectorParams(size=base.shape[1], distance=models.Distance.COSINE)
        client.create_collection("items", vectors_config=size)
        client.upload_collection("items", vectors=base, ids=range(len(base)))
        sent = queries.tolist()
        yield (
            lambda _: (
                lambda number: [
                    int(point.id) for point in client.query_points("items", query=sent[number], limit=K).points
                ]
            )
        )


TARGETS = {
    "Lathe over HTTP, full vectors": lambda base, queries: open_lathe(base, queries, "none"),
    "Lathe over HTTP, 48-byte codes": lambda base, queries: open_lathe(base, queries, "codes48"),
    "pgvector, halfvec": open_pgvector,
    "LanceDB": open_lancedb,
    "Qdrant, local mode": open_qdrant,
}


def choose_effort(prepare: Prepare, truth: NDArray[np.int64], wanted: float) -> tuple[int, Search]:
    """Return the least effort whose recall on the first half of the queries is as wanted, and its search.

    If none is, the highest effort is returned.
    """
    for effort in EFFORTS:
        search = prepare(effort)
        if compute_recall(search, truth, range(QUERIES // 2)) >= wanted:
            break
    return effort, search


def compute_recall(search: Search, truth: NDArray[np.int64], numbers: range) -> float:
    """Return the share of the ten nearest rows that a search finds."""
    return float(compute_recalls([search(number) for number in numbers], truth[numbers]).mean())


def measure(searches: dict[str, Search], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of single searches of each side, in blocks that alternate."""
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    for turn in range(rounds):
        start = QUERIES // 2 + turn * BLOCK % (QUERIES // 2)
        for name, search in searches.items():
            for number in range(start, start + WARM_UP):
                search(number)
            for number in range(start, start + BLOCK):
                begun = time.perf_counter()
                search(number)
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, required=True, help=".npy of unit vectors; the last are the queries")
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--recall", type=float, default=0.95)
    options.add_argument("--rounds", type=int, default=16)
    options.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    options.add_argument(
        "--before", type=Path, help="folder of another checkout, whose server is measured in turns too"
    )
    arguments = options.parse_args()
    targets = {name: TARGETS[name] for name in arguments.targets}
    if arguments.before:
        before = str(arguments.before.resolve())
        targets |= {"Lathe before, full vectors": lambda base, queries: open_lathe(base, queries, "none", before)}
    vectors = np.load(arguments.vectors)
    base, queries = vectors[: 3000 if arguments.quick else arguments.rows], vectors[-QUERIES:]
    truth = find_nearest(queries, base, K)
    figures: dict[str, Any] = {"rows": len(base), "dimensions": base.shape[1], "wanted_recall": arguments.recall}
    with ExitStack() as opened:
        searches: dict[str, Search] = {}
        sides: dict[str, dict[str, Any]] = {}
        for name, target in targets.items():
            prepare = opened.enter_context(target(base, queries))
            effort, searches[name] = choose_effort(prepare, truth, arguments.recall)
            recall = compute_recall(searches[name], truth, range(QUERIES // 2, QUERIES))
            sides[name] = {"effort": effort, "recall": round(recall, 4)}
            print(name, sides[name], file=sys.stderr)
        for name, seconds in measure(searches, 2 if arguments.quick else arguments.rounds).items():
            sides[name] |= {
                f"{label}_ms": round(1000 * float(np.percentile(seconds, share)), 3)
                for label, share in (("p50", 50), ("p95", 95))
            }
    figures["sides"] = sides
    rows = [
        [name, f"{side['recall']:.3f}", f"{side['p50_ms']:.2f}", f"{side['p95_ms']:.2f}"]
        for name, side in sides.items()
    ]
    print(markdown_table(["searched by", "recall@10", "p50, ms", "p95, ms"], rows))
    print("raw figures:", write_report(arguments.out, "single_searches", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
