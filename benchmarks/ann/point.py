"""One point of the grid: an engine built once, searched at every setting; in a process of its own.

`python -m benchmarks.ann.point JOB.json` reads a `Job`, writes `Job.result` and the raw rows and times beside it.
Alone in its process it can be held to one core, its memory is its own, and what kills it kills nothing else.
"""

import base64
import json
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from benchmarks.ann.data import DataError, Numbers, Vectors
from benchmarks.ann.engines import GPU, Engine, efforts_of, make_engine
from benchmarks.ann.spaces import FULL, Space, load_space
from benchmarks.server import Server
from service.home import Home
from service.settings import read_settings
from service.starters import open_registry

SERVER = "lathe"
"""The engine that is our own index over HTTP."""
WARMING = 50
"""Queries asked before any is timed."""
SETTING_SECONDS = 4.0
"""After so long a setting is not asked again, once every query was."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
UPSERTED = 2000
CALLERS = (1, 2, 4)
CALLERS_SECONDS = 120.0

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """What a point measures, and with which files.

    Attributes:
        method: what the vectors are reduced by.
        size: that its chain is cut to; None for all it gives.
        engine: as `make_engine` names it, or `lathe`.
        m: links of a node of a graph.
        ef_construction: candidates looked at when it is linked.
        seed: of graph and codes.
        rows: of the corpus that are searched.
        k: neighbours wanted.
        efs: efforts of graphs.
        oversampling: how many times k candidates are rescored with the float16 originals; 1 rescores none.
        runs: times every query is asked.
        wanted: recall at whose cheapest setting several callers search at once.
        originals: float16 corpus `(n, d)`.
        reduced: float32 corpus `(n, k)`.
        queries: originals `(q, d)`.
        truth: the rows of the exact search of originals `(q, k)`.
        exact: the rows of the exact search of reduced vectors `(q, k · the most oversampling)`.
        chain: folder of the chain.
        result: file for what was found.
    """

    method: str
    size: int | None
    engine: str
    m: int
    ef_construction: int
    seed: int
    rows: int
    k: int
    efs: tuple[int, ...]
    oversampling: tuple[int, ...]
    runs: int
    wanted: float
    originals: str
    reduced: str
    queries: str
    truth: str
    exact: str
    chain: str
    result: str

    def json(self) -> bytes:
        """For the process that does it."""
        return orjson.dumps(asdict(self))


class Rescorer:
    """The k best of candidates by the float16 originals, in no order, for one query at a time."""

    def __init__(self, originals: NDArray[np.float16], k: int) -> None:
        self.originals, self.k = originals, k

    def __call__(self, query: Vectors, rows: Numbers) -> Numbers:
        """The best of candidates `(c,)` for a query `(d,)`."""
        vectors = torch.from_numpy(self.originals[rows]).float()  # torch widens float16 several times quicker
        scores = torch.mv(vectors, torch.from_numpy(query)).numpy()
        best = np.argpartition(-scores, self.k - 1)[: self.k] if len(rows) > self.k else np.arange(len(rows))
        return rows[best]


class Library:
    """An engine in this process, with the chain before it and the originals behind it."""

    def __init__(self, job: Job, space: Space, engine: Engine, originals: NDArray[np.float16]) -> None:
        self.space, self.engine = space, engine
        self.rescore = Rescorer(originals, job.k)
        self.k = job.k

    def prepare(self, effort: int, _oversampling: int) -> None:
        """Before a setting is measured."""
        self.engine.set_effort(effort)

    def ask(self, query: Vectors, oversampling: int) -> tuple[Numbers, Numbers, tuple[int, int, int]]:
        """Candidates, answer, and the nanoseconds of transform, search and rescoring, of a query `(1, d)`."""
        begun = time.perf_counter_ns()
        reduced = self.space.ask(query)
        transformed = time.perf_counter_ns()
        rows = self.engine.search(reduced, self.k * oversampling)[0]
        searched = time.perf_counter_ns()
        answer = rows
        if oversampling > 1:
            answer = self.rescore(query[0], rows[rows >= 0])
        done = time.perf_counter_ns()
        return rows, answer, (transformed - begun, searched - transformed, done - searched)


class OverHttp:
    """Our index in a server of its own, asked by one connection of Python's own client.

    The candidates it rescored stay its own, so there is no index recall of them, and its time is all search.
    """

    def __init__(self, job: Job, vectors: Vectors, home: Path) -> None:
        self.k = job.k
        self.effort = 0
        name, size = job.method.partition(":")[0], job.size
        if name != FULL:
            registry, _ = open_registry(Home(read_settings().home))
            chain = name.partition("@")[0]
            shutil.copytree(registry.root / chain, home / "chains" / chain)
        self.server = Server(home)
        self.local = threading.local()
        self.server.call(
            "PUT",
            "/indexes/bench",
            chain=name,
            m=job.m,
            ef_construction=job.ef_construction,
            **({"dimensions": size} if size else {"width": vectors.shape[1]} if name == FULL else {}),
        )
        for start in range(0, len(vectors), UPSERTED):
            part = vectors[start : start + UPSERTED]
            ids = [str(number) for number in range(start, start + len(part))]
            self.server.call("POST", "/indexes/bench/upsert", ids=ids, vectors=[as_base64(row) for row in part])
        while self.server.call("GET", "/indexes/bench")["in_graph"] < len(vectors):
            time.sleep(0.05)

    def prepare(self, effort: int, _oversampling: int) -> None:
        """Before a setting is measured."""
        self.effort = effort

    def ask(self, query: Vectors, oversampling: int) -> tuple[Numbers, Numbers, tuple[int, int, int]]:
        """As `Library.ask`."""
        asked = {"vectors": [as_base64(query[0])], "k": self.k, "ef": max(self.effort, self.k)}
        if oversampling > 1:
            asked["rescore"] = oversampling
        begun = time.perf_counter_ns()
        body = orjson.dumps(asked)
        connection = self.connection()
        connection.request("POST", "/indexes/bench/search", body, {"content-type": "application/json"})
        answered = connection.getresponse()
        answer = answered.read()
        done = time.perf_counter_ns()
        if answered.status != 200:
            raise DataError(f"the server answered {answered.status}: {answer[:200].decode(errors='replace')}")
        rows = np.array([int(hit["id"]) for hit in orjson.loads(answer)["results"][0]])
        return rows, rows, (0, done - begun, 0)

    def connection(self) -> HTTPConnection:
        """One for each thread."""
        if not hasattr(self.local, "connection"):
            host = self.server.client.base_url
            self.local.connection = HTTPConnection(host.host, host.port)
        found: HTTPConnection = self.local.connection
        return found

    @property
    def bytes(self) -> int:
        """Of the graph."""
        return int(self.server.call("GET", "/indexes/bench")["bytes"]["graph"])


def as_base64(row: Vectors) -> str:
    """A vector as the index takes it quickest."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def measure(job: Job) -> dict[str, Any]:
    """Build, then search at every setting."""
    reduced = np.array(np.load(job.reduced, mmap_mode="r")[: job.rows])
    originals = np.array(np.load(job.originals, mmap_mode="r")[: job.rows])
    queries, truth, exact = np.load(job.queries), np.load(job.truth), np.load(job.exact)
    space = load_space(job.method, Path(job.chain), job.size)
    if job.engine == SERVER:
        return over_http(job, queries, truth, exact)
    engine = make_engine(job.engine, job.rows, job.m, job.ef_construction, job.seed)
    with nullcontext() if job.engine.startswith("opq") else one_core():  # codes are trained on all there are
        before, begun = resident(), time.monotonic()
        engine.build(reduced)
        built = {
            "build_seconds": time.monotonic() - begun,
            "resident_bytes": resident() - before,
            "graph_bytes": engine.bytes,
            "dimensions": int(reduced.shape[1]),
        }
    library = Library(job, space, engine, originals)
    return built | searched(job, library, queries, truth, exact, lambda asked: batched(library, asked))


def over_http(job: Job, queries: Vectors, truth: Numbers, exact: Numbers) -> dict[str, Any]:
    """The same by our server, in a state folder of its own."""
    originals = np.array(np.load(job.originals, mmap_mode="r")[: job.rows], np.float32)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        asker = OverHttp(job, originals, Path(folder))
        try:
            built = {
                "build_seconds": time.monotonic() - begun,
                "resident_bytes": asker.server.memory("VmRSS"),
                "graph_bytes": asker.bytes,
                "dimensions": int(np.load(job.reduced, mmap_mode="r").shape[1]),
            }
            return built | searched(job, asker, queries, truth, exact, None)
        finally:
            asker.server.stop()


Asker = Library | OverHttp
Batch = Callable[[Vectors], float]


def searched(
    job: Job, asker: Asker, queries: Vectors, truth: Numbers, exact: Numbers, batch: Batch | None
) -> dict[str, Any]:
    """Every setting, and at one of them several callers at once; raw rows and times go to a file."""
    settings, raw = [], {}
    for oversampling in job.oversampling:
        for effort in efforts_of(job.engine, job.efs):
            wanted = job.k * oversampling
            if wanted > job.rows or ("hnsw" in job.engine and effort < wanted):
                continue
            asker.prepare(effort, oversampling)
            with nullcontext() if job.engine == SERVER else one_core():
                rows, candidates, times = timed(job, asker, queries, oversampling)
            found = figures(job, rows, candidates, times, truth, exact, oversampling)
            if batch is not None and oversampling == 1:
                found["batch_queries_per_second"] = batch(queries)
            settings.append({"effort": effort, "oversampling": oversampling} | found)
            raw[f"rows_{effort}_{oversampling}"] = rows
            raw[f"nanoseconds_{effort}_{oversampling}"] = times.sum(axis=2)
    if not settings:
        raise DataError(f"no effort is as large as k = {job.k}, or there are fewer rows than that")
    np.savez_compressed(Path(job.result).with_suffix(".npz"), **raw)  # type: ignore[arg-type]
    chosen = operating_point(settings, job.wanted)
    asker.prepare(chosen["effort"], chosen["oversampling"])
    return {
        "settings": settings,
        "concurrency": {
            "effort": chosen["effort"],
            "oversampling": chosen["oversampling"],
            "recall": chosen["recall"],
            "callers": at_once(job, asker, queries, chosen),
        },
    }


def timed(job: Job, asker: Asker, queries: Vectors, oversampling: int) -> tuple[Numbers, Numbers, Times]:
    """Answers `(q, k)`, candidates `(q, c)` and nanoseconds `(runs, q, 3)` of single queries."""
    for query in queries[:WARMING]:
        asker.ask(query[None], oversampling)
    rows = np.full((len(queries), job.k), -1, np.int64)
    candidates = np.full((len(queries), job.k * oversampling), -1, np.int64)
    runs: list[Times] = []
    begun = time.monotonic()
    while len(runs) < job.runs and (not runs or time.monotonic() - begun < SETTING_SECONDS):
        run = np.empty((len(queries), 3), np.int64)
        for number, query in enumerate(queries):
            found, answer, run[number] = asker.ask(query[None], oversampling)
            if not runs:
                candidates[number, : len(found)] = found
                rows[number, : len(answer)] = answer
        runs.append(run)
    return rows, candidates, np.stack(runs)


def figures(
    job: Job, rows: Numbers, candidates: Numbers, times: Times, truth: Numbers, exact: Numbers, oversampling: int
) -> dict[str, Any]:
    """What a setting gives and takes."""
    recalls = overlap(rows, truth)
    whole = times.sum(axis=2) / 1000
    found = {
        "recall": float(recalls.mean()),
        "recall_p5": float(np.quantile(recalls, 0.05)),
        "microseconds": float(whole.mean()),
        "transform_microseconds": float(times[:, :, 0].mean() / 1000),
        "rescoring_microseconds": float(times[:, :, 2].mean() / 1000),
        "runs": len(times),
    }
    if job.engine != SERVER or oversampling == 1:
        found["index_recall"] = float(overlap(candidates, exact[:, : job.k * oversampling]).mean())
    return found | {name: float(np.quantile(whole, share)) for name, share in QUANTILES.items()}


def overlap(rows: Numbers, wanted: Numbers) -> NDArray[np.float64]:
    """The share of the wanted rows `(q, k)` that are among those found `(q, c)`."""
    return np.array(
        [len(np.intersect1d(ours, theirs)) / len(theirs) for ours, theirs in zip(rows, wanted, strict=True)]
    )


def batched(library: Library, queries: Vectors) -> float:
    """Queries a second, all handed over at once and reduced by one product."""
    begun = time.monotonic()
    library.engine.search(library.space.ask(queries), library.k)
    return len(queries) / (time.monotonic() - begun)


def operating_point(settings: Sequence[dict[str, Any]], wanted: float) -> dict[str, Any]:
    """The quickest setting with the recall wanted; else the one with the most."""
    enough = [s for s in settings if s["recall"] >= wanted]
    return min(enough, key=lambda s: s["microseconds"]) if enough else max(settings, key=lambda s: s["recall"])


def at_once(job: Job, asker: Asker, queries: Vectors, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """Several numbers of callers at a setting; as many queries as that takes some seconds, one caller alone."""
    enough = max(WARMING, int(SETTING_SECONDS * 1e6 / chosen["microseconds"]))
    threads = job.engine in (SERVER, GPU)  # an answer is waited for, or memory is not shared with a fork
    return [together(asker, queries[:enough], chosen["oversampling"], callers, threads) for callers in CALLERS]


def together(asker: Asker, queries: Vectors, oversampling: int, callers: int, threads: bool) -> dict[str, Any]:
    """Several callers at once, each asking all queries, one at a time; the rate is of the time any of them was asking.

    Processes that share the engine's memory, unless threads will do: those of Python would wait for one another
    between two products.
    """
    kind: Any = threading if threads else multiprocessing.get_context("fork")
    start, answers = kind.Barrier(callers), (queue.Queue() if kind is threading else kind.Queue())

    def ask_all() -> None:
        start.wait()
        begun = time.monotonic()
        times = [sum(asker.ask(query[None], oversampling)[2]) for query in queries]
        answers.put((times, begun, time.monotonic()))

    working = [(threading.Thread if kind is threading else kind.Process)(target=ask_all) for _ in range(callers)]
    for worker in working:
        worker.start()
    found = [answers.get(timeout=CALLERS_SECONDS) for _ in working]
    for worker in working:
        worker.join()
    every = np.concatenate([np.array(times) for times, _, _ in found]) / 1000
    seconds = max(end for _, _, end in found) - min(begun for _, begun, _ in found)
    return {"callers": callers, "queries_per_second": len(every) / seconds, "p99": float(np.quantile(every, 0.99))}


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this process to the last of its cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def resident() -> int:
    """Bytes of this process in memory."""
    status = Path("/proc/self/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found[1]) if found else 0


def main() -> None:
    """Do the job of a file."""
    torch.set_num_threads(1)
    given: dict[str, Any] = json.loads(Path(sys.argv[1]).read_bytes())
    lists: dict[str, Any] = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    job = Job(**given | lists)
    Path(job.result).write_bytes(orjson.dumps(measure(job)))


if __name__ == "__main__":
    main()
