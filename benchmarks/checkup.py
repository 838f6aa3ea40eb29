"""Confusion matrix of a checkup: faults injected into real vectors, and what was found in files and in databases.

Every file is checked with its texts and without. PostgreSQL and the index take more rows, vectors between two others
with noise, so that a graph has something to lose. The local mode of Qdrant has no graph and compares all points.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from qdrant_client import QdrantClient, models

from benchmarks.postgres import run_postgres
from benchmarks.report import parser, write_report
from benchmarks.server import Server, fill_index
from benchmarks.texts import read_texts
from lathe.service.checkup.files import FileStore
from lathe.service.checkup.pgvector import PgvectorStore
from lathe.service.checkup.qdrant import QdrantStore
from lathe.service.index.pgvector.connection import open_database
from lathe.service.index.pgvector.filling import find_full_vectors
from lathe.service.index.pgvector.table import get_table, parse_table_name
from lathe.training.checkup.checkup import check_up
from lathe.training.checkup.spaces import StoreEncoder
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.encoder.text_encoder import NO_PROMPT, Encoding, find_side_prompt

CELLS: dict[str, dict[str, Any]] = {}
"""What was found, by store and encoder and by fault."""
CHURN, UPDATED = "churn: half deleted and inserted again", "churn: all updated three times"


class RememberingEncoder(Encoder):
    """Encoder that encodes each text once, as repeats encode the same ones."""

    def encode(self, texts: Any, prompt_name: str | None = None, *_: Any, **__: Any) -> Encoding:
        """Return the vectors of texts."""
        known = self.__dict__.setdefault("known", {})
        missing = [text for text in dict.fromkeys(texts) if (text, prompt_name) not in known]
        known |= {
            (text, prompt_name): row for text, row in zip(missing, self._encode(missing, prompt_name), strict=True)
        }
        return Encoding(np.stack([known[text, prompt_name] for text in texts]), np.zeros(len(texts), np.int64))

    def _encode(self, texts: Any, prompt_name: str | None) -> Any:
        return super().encode(texts, prompt_name).vectors if texts else ()


def check(where: str, fault: str, store: Any, known: StoreEncoder | None = None) -> None:
    """Check a store, and count what was found."""
    begun = time.monotonic()
    found = check_up(store, known, None, lambda *_: None).to_json()
    count_found(where, fault, found | {"seconds": round(time.monotonic() - begun, 1)})


def count_found(where: str, fault: str, found: dict[str, Any]) -> None:
    """Count what one checkup found."""
    cell = CELLS.setdefault(where, {}).setdefault(fault, {"runs": 0, "must_fix": 0, "found": Counter()})
    cell["runs"], cell["must_fix"] = cell["runs"] + 1, cell["must_fix"] + found["must_fix"]
    cell["found"].update(finding["kind"] for finding in found["findings"] if finding["severity"] != "fine")
    cell["last"] = {key: found[key] for key in ("summary", "seconds") if key in found}
    print(where, fault, cell, flush=True, file=sys.stderr)


def inject(base: Any, other: Any, texts: list[str], encoder: Encoder, random: Any) -> Iterator[tuple[Any, ...]]:
    """Yield vectors with a fault, their texts, the metric of their searches, and the name of the fault."""

    def change(share: float, make: Any) -> Any:
        rows, changed = random.choice(len(base), int(share * len(base)), replace=False), base.copy()
        changed[rows] = make(rows)
        return changed

    own = find_side_prompt(encoder.prompts, "document", encoder.default_prompt_name)
    yield change(0.05, lambda rows: other[rows]), texts, "cosine", "other encoder, 5 %"
    if encoder.prompt(own):
        bare = change(0.05, lambda rows: encoder.encode([texts[row] for row in rows], NO_PROMPT).vectors)
        yield bare, texts, "cosine", "no prompt, 5 %"
    yield change(0.1, lambda rows: base[np.roll(rows, 1)]), texts, "cosine", "changed text, 10 %"
    halves = [" ".join(text.split()[: len(text.split()) // 2]) for text in texts]
    cut = change(0.05, lambda rows: encoder.encode([halves[row] for row in rows], own).vectors)
    yield cut, texts, "cosine", "half of the text, 5 %"
    sources = np.where(random.random(len(base)) < 0.24, random.choice(len(base) // 2, len(base)), np.arange(len(base)))
    yield base[sources], [texts[row] for row in sources], "cosine", "copies, 24 %"
    yield change(0.01, lambda rows: np.nan), texts, "cosine", "NaN, 1 %"
    longer = base * random.uniform(3, 12, (len(base), 1)).astype(np.float32)
    yield change(0.05, lambda rows: longer[rows]), texts, "ip", "unnormalized writer, 5 %"
    yield longer, texts, "ip", "wrong metric"


def check_rows(name: str, vectors: Any, texts: list[str], metric: str, fault: str, known: StoreEncoder) -> None:
    """Check a file with its texts and without, and a collection of Qdrant."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/t.npy", vectors)
        Path(f"{folder}/t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        check(f"file, {name}", fault, FileStore(f"{folder}/t.npy", None, metric))  # type: ignore[arg-type]
        with_texts = FileStore(f"{folder}/t.npy", f"{folder}/t.jsonl", metric)  # type: ignore[arg-type]
        check(f"file with texts, {name}", fault, with_texts, known)
    if np.isfinite(vectors).all():
        client, distance = QdrantClient(":memory:"), {"cosine": models.Distance.COSINE, "ip": models.Distance.DOT}
        client.create_collection("t", models.VectorParams(size=vectors.shape[1], distance=distance[metric]))
        client.upload_collection("t", vectors, [{"text": text} for text in texts], range(len(texts)))
        check(f"Qdrant, local, {name}", fault, QdrantStore(client, "t", None, "text"), known)


def break_rows(base: Any) -> tuple[Any, Any]:
    """Return vectors `(n, d)` of which 24 % are copies, and vectors of which 5 % are not normalized."""
    copied, lengthened = base.copy(), base.copy()
    copied[: len(base) * 24 // 100] = base[-(len(base) * 24 // 100) :]
    lengthened[::20] *= 5
    return copied, lengthened


def check_postgres(base: Any, mixed: Any, clean: int) -> None:
    """Check tables of a PostgreSQL with pgvector, without texts."""
    d, longer = base.shape[1], base * np.random.default_rng(1).uniform(3, 12, (len(base), 1))
    graph, churn = "(embedding vector_cosine_ops)", "DELETE FROM t WHERE id % 2 = 0; INSERT INTO t SELECT * FROM kept"
    copied, lengthened = break_rows(base)
    update = f"UPDATE t SET embedding = embedding + array_fill(0.0001, ARRAY[{d}])::vector"
    for fault, vectors, index, effort, damage, repeats in (
        ("clean", base, graph, 200, "", clean),
        ("ef lowered to 10", base, graph, 10, "", 3),
        ("halfvec", base, f"((embedding::halfvec({d})) halfvec_cosine_ops)", 200, "", 3),
        ("bits", base, f"((binary_quantize(embedding)::bit({d})) bit_hamming_ops)", 200, "", 3),
        (CHURN, base, graph, 40, churn, 3),
        (UPDATED, base, graph, 40, f"{update}; {update}; {update}", 3),
        ("other encoder, 5 %", mixed, graph, 200, "", 3),
        ("copies, 24 %", copied, graph, 200, "", 3),
        ("unnormalized writer, 5 %", lengthened, "(embedding vector_ip_ops)", 1000, "", 3),
        ("wrong metric", longer, "(embedding vector_ip_ops)", 1000, "", 3),
    ):
        with run_postgres() as server, psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, embedding vector({d}))")
            with connection.cursor().copy("COPY t FROM STDIN") as copy:
                for row, vector in enumerate(vectors):
                    copy.write_row((row, str(vector.tolist())))
            connection.execute("CREATE TABLE kept AS SELECT * FROM t WHERE id % 2 = 0")
            connection.execute(f"CREATE INDEX ON t USING hnsw {index} WITH (ef_construction = 200); {damage}")
            connection.execute("ANALYZE t")
            for _ in range(repeats):
                with open_database(server.url) as opened:
                    opened.execute(f"SET hnsw.ef_search = {effort}")
                    full = find_full_vectors(opened, get_table(opened, parse_table_name("t")), "embedding")
                    check("PostgreSQL", fault, PgvectorStore(opened, full, None, None))


def check_index(base: Any, mixed: Any, clean: int) -> None:
    """Check indexes of a server of its own, without texts."""
    copied, lengthened = break_rows(base)
    few = {"m": 4, "ef_construction": 8}
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home), LATHE_DTYPE="float32")
        for fault, vectors, settings, repeats in (
            ("clean", base, {"chain": "none"}, clean),
            ("graph of few links", base, {"chain": "none"} | few, 3),
            ("chain compact", base, {"chain": "compact"}, 3),
            (CHURN, base, {"chain": "none"}, 3),
            ("other encoder, 5 %", mixed, {"chain": "none"}, 3),
            ("copies, 24 %", copied, {"chain": "none"}, 3),
            ("unnormalized writer, 5 %", lengthened, {"chain": "none", "metric": "ip"}, 3),
        ):
            fill_index(server, vectors, width=vectors.shape[1], **settings)
            for start in range(0, len(base) if fault == CHURN else 0, 1000):
                ids = [str(row) for row in range(start, min(start + 1000, len(base)), 2)]
                server.call("POST", "/indexes/bench/delete", ids=ids)
                server.call("POST", "/indexes/bench/upsert", ids=ids, vectors=base[start : start + 1000 : 2].tolist())
            for _ in range(repeats):
                job = server.call("POST", "/indexes/bench/checkup", queries=None)
                while (job := server.call("GET", f"/jobs/{job.get('job_id', job.get('id'))}"))["state"] != "succeeded":
                    time.sleep(0.2)
                count_found("own index", fault, job["result"])
            server.call("DELETE", "/indexes/bench")
        server.stop()


def grow(base: Any, rows: int) -> Any:
    """Return that many normalized rows, each between two others, with noise."""
    random = np.random.default_rng(0)
    first, second = (base[random.choice(len(base), rows)] for _ in range(2))
    grown = 0.7 * first + 0.3 * second + 0.02 * random.standard_normal(first.shape, np.float32)
    return grown / np.linalg.norm(grown, axis=1, keepdims=True)


MEASURED = """
from lathe.service.cli.main import main
try:
    main()
finally:
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def measure_command(vectors: Any) -> dict[str, float]:
    """Return seconds and peak memory of the command on a file of many rows."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/many.npy", vectors.astype(np.float32))
        command = [sys.executable, "-P", "-c", MEASURED, "checkup", "--source", f"{folder}/many.npy"]
        begun = time.monotonic()
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {"rows": len(vectors), "seconds": time.monotonic() - begun, "peak MB": int(out.split()[-1]) / 1024}


def main() -> None:
    """Check every store with every fault, and write what was found."""
    options = parser(__doc__)
    options.add_argument("texts", help="source of texts")
    options.add_argument("encoders", nargs="+", help="folders of encoders besides the packaged one")
    arguments = options.parse_args()
    count, many, repeats, clean = (300, 10_000, 1, 1) if arguments.quick else (1700, 100_000, 2, 10)
    texts = [text[:600] for text in read_texts(arguments.texts, count)]
    specs = [DEFAULT_ENCODER, *(replace(DEFAULT_ENCODER, name=Path(m).name, model=m) for m in arguments.encoders)]
    encoders = [RememberingEncoder(replace(spec, dtype="float32")) for spec in specs]
    bases = [e.encode(texts, find_side_prompt(e.prompts, "document", e.default_prompt_name)).vectors for e in encoders]

    random = np.random.default_rng(0)
    size = measure_command(grow(bases[0], many))
    for number, (encoder, base) in enumerate(zip(encoders, bases, strict=True)):
        other = bases[1 if number == 0 else 0][:, : base.shape[1]]
        known = StoreEncoder(encoder, lambda vectors: vectors, lambda vectors: vectors)
        for repeat in range(clean):
            faults = inject(base, other, texts, encoder, random) if repeat < repeats else ()
            for vectors, kept, metric, fault in ((base, texts, "cosine", "clean"), *faults):
                order = random.permutation(count)
                check_rows(encoder.name, vectors[order], [kept[row] for row in order], metric, fault, known)

    for rows, examine, runs in ((6 * count, check_postgres, 3 * clean), (9 * count, check_index, 3 * clean)):
        grown, mixed = grow(bases[0], rows), grow(bases[0], rows)
        mixed[::20] = grow(bases[1], rows)[::20]
        examine(grown, mixed, runs)
    print(write_report(arguments.out, "checkup", {"texts": count, "size": size, "matrix": CELLS}))


if __name__ == "__main__":
    main()
