"""Compares engines over codes with a graph over full vectors: memory, build and speed at equal end-to-end recall.

    python -m benchmarks.ann.candidates --vectors vectors.npy --out results hnsw-byte128:8 ivf-pq96

The last --query-count rows of the file are the queries; the others are searched by all engines, which are fitted on
some of them. An engine is named as in `benchmarks.ann`, with the number of links after a colon. It is built and
searched in a process of its own, alternating with the reference, hnswlib over full vectors: what disturbs one disturbs
the other. A new process opens the index that was written, and its memory is what it grew by.

Times of builds and rates are CPU times of one thread, percentiles wall times of single queries. Everything counts: the
map of queries, the search, and the ranking of candidates by the originals, a memory-mapped file of float16: by FAISS
for its own engines, by Lathe's function for the others.
"""

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.ann.compressed import Graph
from benchmarks.ann.data import Numbers, Vectors, find_nearest
from benchmarks.ann.engines import PROBES, Engine, Faiss, Hnswlib, is_graph, make_engine
from benchmarks.ann.frontier import interpolate_at_recall, logit
from benchmarks.report import markdown_table, parser, write_report
from lathe.service.index.embedded.exact import rescore

REFERENCE = "hnswlib:16"
K = 10
EF_CONSTRUCTION = 200
SEED = 100
TARGETS = (0.95, 0.99)
EFS = (20, 30, 40, 60, 80, 110, 150, 200, 240, 320)
COUNTS = (10, 20, 30, 40, 60, 80, 110, 150, 200, 280, 400)
"""Candidates that are ranked by the originals; at 10 nothing is ranked."""
MAX_LIST_CANDIDATES = 200
"""Candidates taken from inverted lists, whose effort does not limit them."""
BATCH = 64
SINGLE = 512
"""Number of single queries of a timed setting; in batches, all queries are searched."""
ROUNDS = 2
MAX_LOGIT_DISTANCE = 0.5
"""Distance from a target, in the recall's logit, within which settings are timed."""

GAIN = 0.002
"""Recall that more candidates must find to be timed."""

Setting = dict[str, Any]
Answer = Callable[[Vectors], Numbers]
"""The ten best rows for queries `(q, d)`."""


class Searcher:
    """An engine whose candidates are ranked by the originals.

    Args:
        engine: engine, built; its candidates need ranking unless it holds full vectors.
        originals: memory-mapped float16 originals `(n, d)`.
    """

    def __init__(self, engine: Engine, originals: NDArray[np.float16]) -> None:
        self.engine = engine
        self.originals = originals
        self.refined: Any = None
        if isinstance(engine, (Graph, Faiss)):
            import faiss

            index = engine.mapped_index if isinstance(engine, Graph) else engine.index
            self.store = view_as_index(originals, index.metric_type)  # FAISS keeps no reference to it
            self.refined = faiss.IndexRefine(index, self.store)

    def prepare(self, effort: int, count: int) -> Answer:
        """Return the function that searches for queries at an effort.

        Args:
            effort: effort of the engine.
            count: candidates that are ranked by the originals; with `K` or fewer, nothing is ranked.
        """
        self.engine.set_effort(effort)
        if count <= K:
            return lambda queries: self.engine.search(queries, K)
        if self.refined is not None:
            self.refined.k_factor = count / K
            return lambda queries: np.asarray(self.refined.search(queries, K)[1], np.int64)
        return lambda queries: rescore(queries, self.originals, self.engine.search(queries, count), K, "cosine")[0]


def view_as_index(originals: NDArray[np.float16], metric: int) -> Any:
    """Return a FAISS index over memory-mapped originals `(n, d)`, which it does not copy.

    The caller keeps the originals alive.
    """
    faiss: Any = import_module("faiss")  # its types lack what its classes have
    store = faiss.IndexScalarQuantizer(originals.shape[1], faiss.ScalarQuantizer.QT_fp16, metric)
    store.is_trained = True
    with tempfile.NamedTemporaryFile() as file:  # a view needs an owner, which only a mapped index has
        faiss.write_index(store, file.name)
        store = faiss.read_index(file.name, faiss.IO_FLAG_MMAP_IFC)
    entries = np.asarray(originals).view(np.uint8).reshape(-1)
    store.codes = faiss.MaybeOwnedVectorUInt8.create_view(faiss.swig_ptr(entries), entries.size, store.codes.owner)
    store.ntotal = len(originals)
    return store


def measure_engine(name: str, work: Path) -> dict[str, Any]:
    """Build an engine, write it to a file, and time it alternating with the reference."""
    torch.set_num_threads(1)
    base, queries = np.load(work / "base.npy"), np.load(work / "queries.npy")
    engine = make_named_engine(name, len(base))

    begun, wall = time.process_time(), time.monotonic()
    engine.build(base)
    costs = {"build_cpu_seconds": time.process_time() - begun, "build_wall_seconds": time.monotonic() - wall}
    costs["bytes"] = engine.bytes / len(base)
    write_index(engine, work / f"{name}.index")

    originals = np.memmap(work / "originals.f16", np.float16, "c", shape=base.shape)
    reference: Any = Hnswlib(16, EF_CONSTRUCTION, SEED)
    if name == REFERENCE:
        reference = engine
    else:
        import hnswlib

        reference.index = hnswlib.Index("ip", base.shape[1])
        reference.index.load_index(str(work / f"{REFERENCE}.index"))
    del base  # its memory would count as the engine's

    truth = np.load(work / "truth.npy")
    both = {"reference": Searcher(reference, originals), "engine": Searcher(engine, originals)}
    settings = {
        "reference": list(choose_settings(both["reference"].engine, queries, truth, EFS, ranked=False)),
        "engine": list(choose_settings(engine, queries, truth, list_efforts(name), is_compressed(name))),
    }
    for _ in range(ROUNDS):
        for side, searcher in both.items():
            for setting in settings[side]:
                time_setting(searcher.prepare(setting["effort"], setting["count"]), queries, setting)
    for setting in (*settings["reference"], *settings["engine"]):
        setting |= {key: float(np.median(setting[key])) for key in ("single", "batch", "p50", "p99")}
    return costs | {"settings": settings["engine"], "reference_settings": settings["reference"]}


def make_named_engine(name: str, rows: int) -> Engine:
    """Return the engine of a name such as `hnsw-byte128:8`.

    The number after the colon is the number of links.
    """
    kind, _, links = name.partition(":")
    return make_engine(kind, rows, int(links or 0), EF_CONSTRUCTION, SEED)


def list_efforts(name: str) -> Sequence[int]:
    """Return the efforts at which an engine is searched."""
    return EFS if is_graph(name) else PROBES


def is_compressed(name: str) -> bool:
    """Return whether an engine's candidates must be ranked by the originals."""
    return name.partition(":")[0] not in ("hnswlib", "faiss-hnsw")


def write_index(engine: Any, path: Path) -> None:
    """Write a built engine to a file."""
    if isinstance(engine, Hnswlib):
        engine.index.save_index(str(path))
    elif isinstance(engine, Faiss):
        import faiss

        faiss.write_index(engine.index, str(path))
    else:
        engine.save(path)


def choose_settings(
    engine: Engine, queries: Vectors, truth: Numbers, tried: Sequence[int], ranked: bool
) -> Iterator[Setting]:
    """Yield the settings whose recall is near a target, each with its recall.

    A setting with more candidates that find no more is left out.

    Args:
        engine: engine, built.
        queries: queries `(q, d)`.
        truth: nearest rows `(q, K)` by the originals.
        tried: efforts to try, ascending.
        ranked: whether candidates are ranked by the originals.
    """
    for effort in tried:
        engine.set_effort(effort)
        max_count = max(count for count in COUNTS if count <= effort) if tried is EFS else MAX_LIST_CANDIDATES
        rows = engine.search(queries, max_count if ranked else K)
        hits = np.stack([np.isin(answer, targets) for answer, targets in zip(rows, truth, strict=True)])  # (q, c)
        recalls, before = hits.cumsum(1).mean(0) / K, 0.0
        for count in (count for count in COUNTS if count <= rows.shape[1]):
            recall = float(recalls[count - 1])
            # Timing is what costs here, so a setting must be near a target and find more than the one before.
            if recall > before + GAIN and any(
                abs(logit(recall) - logit(target)) <= MAX_LOGIT_DISTANCE for target in TARGETS
            ):
                times: Setting = {"single": [], "batch": [], "p50": [], "p99": []}
                yield {"effort": effort, "count": count, "recall": recall} | times
                before = recall
        if recalls[-1] > TARGETS[-1] + 0.002:
            return


def time_setting(answer: Answer, queries: Vectors, setting: Setting) -> None:
    """Add the microseconds of a query to a setting.

    They are CPU times, of single queries and in batches, and percentiles of the wall times of single queries.
    """
    walls = np.empty(SINGLE)
    # Untimed: the first search at an effort may allocate memory.
    answer(queries[-BATCH:])
    begun = time.process_time()
    for number, query in enumerate(queries[:SINGLE]):
        start = time.perf_counter()
        answer(query[None])
        walls[number] = time.perf_counter() - start
    setting["single"].append((time.process_time() - begun) / SINGLE * 1e6)
    begun = time.process_time()
    for start in range(0, len(queries), BATCH):
        answer(queries[start : start + BATCH])
    setting["batch"].append((time.process_time() - begun) / len(queries) * 1e6)
    setting["p50"].append(float(np.quantile(walls, 0.5)) * 1e6)
    setting["p99"].append(float(np.quantile(walls, 0.99)) * 1e6)


def measure_opening(name: str, work: Path) -> dict[str, Any]:
    """Open a written index, read into memory and mapped where possible.

    Returns:
        Seconds, and the bytes that this process grew by for each vector, of each way to open it.
    """
    path, figures = str(work / f"{name}.index"), {}
    rows = len(np.load(work / "base.npy", mmap_mode="r"))
    for way, opener in list_openers(name).items():
        before, begun = read_memory_bytes(), time.monotonic()
        opened_index = opener(path)
        figures[f"{way}_seconds"] = time.monotonic() - begun
        after = read_memory_bytes()
        figures |= {f"{way}_{kind}_bytes": (after[kind] - before[kind]) / rows for kind in after}
        del opened_index
    return figures


def list_openers(name: str) -> dict[str, Callable[[str], Any]]:
    """Import the engine's library, and return functions that open its file, by the way they do so."""
    if name.startswith("hnswlib"):
        import hnswlib

        def load(path: str) -> Any:
            index = hnswlib.Index("ip", int(name[len("hnswlib-pca") : -3] or 384))
            index.load_index(path)
            return index

        return {"read": load}
    if name.startswith("usearch"):
        from usearch.index import Index

        return {
            "mapped": lambda path: Index.restore(path, view=True),
            "read": lambda path: Index.restore(path),
        }
    import faiss

    if name.startswith("hnsw-codes"):
        return {"read": lambda path: faiss.read_index(path, faiss.IO_FLAG_PQ_SKIP_SDC_TABLE)}
    return {
        "mapped": lambda path: faiss.read_index(path, faiss.IO_FLAG_MMAP_IFC),
        "read": faiss.read_index,
    }


def read_memory_bytes() -> dict[str, int]:
    """Return the bytes of this process: anonymous, and its share of mapped files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}
    return {"anonymous": sizes["Anonymous"], "file": sizes["Pss_File"]}


def prepare_files(vectors: Path, count: int, work: Path) -> None:
    """Write the files that all engines read, unless they exist."""
    if (work / "truth.npy").exists():
        return
    rows = np.load(vectors, mmap_mode="r")
    base, queries = np.array(rows[:-count], np.float32), np.array(rows[-count:], np.float32)
    np.save(work / "base.npy", base)
    np.save(work / "queries.npy", queries)
    base.astype(np.float16).tofile(work / "originals.f16")
    np.save(work / "truth.npy", find_nearest(queries, base, K))


def interpolate_microseconds(settings: Sequence[Setting], target: float, kind: str) -> float | None:
    """Return the time of a query at a recall, interpolated on the frontier.

    The result is None if the recall is not reached.
    """
    cost = interpolate_at_recall([setting | {"microseconds": setting[kind]} for setting in settings], target)
    return None if cost is None else cost.microseconds


def format_row(name: str, result: dict[str, Any], full: dict[str, Any]) -> list[str]:
    """Return a row of the table: an engine relative to the reference that was timed with it."""
    cells = [
        name,
        f"{result['build_cpu_seconds'] / full['build_cpu_seconds']:.2f}",
        f"{result['bytes']:.0f}",
        f"{result['bytes'] / full['bytes']:.3f}",
    ]
    for target in TARGETS:
        for kind in ("batch", "single"):
            ours = interpolate_microseconds(result["settings"], target, kind)
            theirs = interpolate_microseconds(result["reference_settings"], target, kind)
            cells.append(f"{theirs / ours:.2f}" if ours and theirs else "–")
    memory_of = [f"{result[f'{way}_anonymous_bytes']:.0f}" for way in ("read", "mapped") if f"{way}_seconds" in result]
    return [*cells, ", ".join(memory_of)]


HEADER = [
    "engine",
    "build ×",
    "bytes",
    "bytes ×",
    *[f"{target} queries/s ×, {kind}" for target in TARGETS for kind in ("batches", "single")],
    "anonymous bytes, read and mapped",
]


def run_in_process(step: Callable[[str, Path], dict[str, Any]], name: str, work: Path) -> dict[str, Any]:
    """Call a function in a new process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(step, (name, work))


def main() -> None:
    """Measure each named engine, store each result at once, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("engines", nargs="+", metavar="ENGINE[:M]")
    options.add_argument("--vectors", type=Path, required=True, help="FILE.npy of vectors of length 1")
    options.add_argument("--query-count", type=int, default=1024)
    options.add_argument("--name", default="ann-codes", help="of the raw figures")
    arguments = options.parse_args()
    work = arguments.out / f"{arguments.name}-work"
    path = work / "engines.json"
    work.mkdir(parents=True, exist_ok=True)
    prepare_files(arguments.vectors, arguments.query_count, work)
    results: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    for name in (REFERENCE, *arguments.engines):
        if name in results:
            continue
        print(name, file=sys.stderr, flush=True)
        results[name] = run_in_process(measure_engine, name, work) | run_in_process(measure_opening, name, work)
        path.write_text(json.dumps(results))
    rows, width = np.load(work / "base.npy", mmap_mode="r").shape
    figures = {"rows": rows, "dimensions": width, "queries": arguments.query_count, "engines": results}
    print(markdown_table(HEADER, [format_row(name, result, results[REFERENCE]) for name, result in results.items()]))
    print("raw figures:", write_report(arguments.out, arguments.name, figures), file=sys.stderr)


if __name__ == "__main__":
    main()
