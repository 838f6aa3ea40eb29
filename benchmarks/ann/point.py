"""One point of the grid: an engine built once, searched at every setting; in a process of its own.

`python -m benchmarks.ann.point JOB.json` reads a `Job`, writes `Job.result` and the raw rows and times beside it.
Alone in its process it can be held to one core, its memory is its own, and what kills it kills nothing else.
"""

import json
import multiprocessing
import os
import queue
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from benchmarks.ann.askers import Asker, Library, OverHttp
from benchmarks.ann.data import DataError, Numbers, Vectors
from benchmarks.ann.engines import GPU, efforts_of, is_graph, make_engine
from benchmarks.ann.job import SERVER, Job
from benchmarks.ann.spaces import load_space

WARMING = 50
"""Queries asked before any is timed."""
SETTING_SECONDS = 4.0
"""After so long a setting is not asked again, once every query was."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
CALLERS = (1, 2, 4)
CALLERS_SECONDS = 120.0

Times = NDArray[np.int64]


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


Batch = Callable[[Vectors], float]


def searched(
    job: Job, asker: Asker, queries: Vectors, truth: Numbers, exact: Numbers, batch: Batch | None
) -> dict[str, Any]:
    """Every setting, and at one of them several callers at once; raw rows and times go to a file."""
    settings, raw = [], {}
    for oversampling in job.oversampling:
        for effort in efforts_of(job.engine, job.efs):
            wanted = job.k * oversampling
            if wanted > job.rows or (is_graph(job.engine) and effort < wanted):
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
