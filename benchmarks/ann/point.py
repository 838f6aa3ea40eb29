"""One point of the grid: an engine built once and searched at every setting, in a process of its own.

`python -m benchmarks.ann.point JOB.json` reads a `Job`, writes `Job.result` and the raw rows and times beside it. In a
process of its own it can be pinned to one core, its memory can be measured, and a crash ends nothing else.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from benchmarks.ann.data import DataError, Numbers, Vectors
from benchmarks.ann.engines import GPU, is_graph, list_efforts, make_engine
from benchmarks.ann.job import SERVER, Job
from benchmarks.ann.searches import LocalSearch, Search, ServerSearch
from benchmarks.ann.spaces import load_space

WARMUP_QUERIES = 50
"""Number of queries that are run before any is timed."""
SETTING_SECONDS = 4.0
"""Seconds after which a setting is not timed again, once every query was."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
CALLERS = (1, 2, 4)
CALLERS_SECONDS = 120.0

Times = NDArray[np.int64]


def measure_point(job: Job) -> dict[str, Any]:
    """Build the engine of a job, and search it at every setting."""
    reduced = np.array(np.load(job.reduced, mmap_mode="r")[: job.rows])
    originals = np.array(np.load(job.originals, mmap_mode="r")[: job.rows])
    queries, truth, exact = np.load(job.queries), np.load(job.truth), np.load(job.exact)
    space = load_space(job.method, Path(job.chain), job.size)
    if job.engine == SERVER:
        return measure_server(job, queries, truth, exact)
    engine = make_engine(job.engine, job.rows, job.m, job.ef_construction, job.seed)
    with nullcontext() if job.engine.startswith("opq") else pin_to_one_core():  # codes are trained on all there are
        before, begun = read_resident_bytes(), time.monotonic()
        engine.build(reduced)
        built = {
            "build_seconds": time.monotonic() - begun,
            "resident_bytes": read_resident_bytes() - before,
            "graph_bytes": engine.bytes,
            "dimensions": int(reduced.shape[1]),
        }
    search = LocalSearch(job, space, engine, originals)
    return built | search_all_settings(job, search, queries, truth, exact, partial(measure_batch_rate, search))


def measure_server(job: Job, queries: Vectors, truth: Numbers, exact: Numbers) -> dict[str, Any]:
    """Measure a job by Lathe's server, in a state folder of its own."""
    originals = np.array(np.load(job.originals, mmap_mode="r")[: job.rows], np.float32)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        search = ServerSearch(job, originals, Path(folder))
        try:
            built = {
                "build_seconds": time.monotonic() - begun,
                "resident_bytes": search.server.memory("VmRSS"),
                "graph_bytes": search.bytes,
                "dimensions": int(np.load(job.reduced, mmap_mode="r").shape[1]),
            }
            return built | search_all_settings(job, search, queries, truth, exact, None)
        finally:
            search.server.stop()


Batch = Callable[[Vectors], float]


def search_all_settings(
    job: Job, search: Search, queries: Vectors, truth: Numbers, exact: Numbers, batch: Batch | None
) -> dict[str, Any]:
    """Measure every setting, and at one of them several callers at once.

    Raw rows and times go to a file beside the result.

    Args:
        job: the job.
        search: the search that is measured.
        queries: queries `(q, d)`.
        truth: nearest rows `(q, k)` by the originals.
        exact: nearest rows in the reduced space.
        batch: function from the queries to the rate of searching them at once; None for none.

    Raises:
        DataError: if no setting can be measured.
    """
    settings, raw = [], {}
    for oversampling in job.oversampling:
        for effort in list_efforts(job.engine, job.efs):
            candidate_count = job.k * oversampling
            # A graph searched with fewer candidates than are wanted finds too few.
            if candidate_count > job.rows or (is_graph(job.engine) and effort < candidate_count):
                continue
            search.set_parameters(effort, oversampling)
            with nullcontext() if job.engine == SERVER else pin_to_one_core():
                rows, candidates, times = time_queries(job, search, queries, oversampling)
            measured = compute_figures(job, rows, candidates, times, truth, exact, oversampling)
            if batch is not None and oversampling == 1:
                measured["batch_queries_per_second"] = batch(queries)
            settings.append({"effort": effort, "oversampling": oversampling} | measured)
            raw[f"rows_{effort}_{oversampling}"] = rows
            raw[f"nanoseconds_{effort}_{oversampling}"] = times.sum(axis=2)
    if not settings:
        raise DataError(f"no effort is as large as k = {job.k}, or there are fewer rows than that")
    np.savez_compressed(Path(job.result).with_suffix(".npz"), **raw)  # type: ignore[arg-type]
    chosen = choose_operating_point(settings, job.wanted)
    search.set_parameters(chosen["effort"], chosen["oversampling"])
    return {
        "settings": settings,
        "concurrency": {
            "effort": chosen["effort"],
            "oversampling": chosen["oversampling"],
            "recall": chosen["recall"],
            "callers": measure_concurrency(job, search, queries, chosen),
        },
    }


def time_queries(job: Job, search: Search, queries: Vectors, oversampling: int) -> tuple[Numbers, Numbers, Times]:
    """Time single queries, after a warm-up.

    Returns:
        Answers `(q, k)`, candidates `(q, c)`, and nanoseconds `(runs, q, 3)` of transform, search and rescoring.
    """
    for query in queries[:WARMUP_QUERIES]:
        search.run_query(query[None], oversampling)
    rows = np.full((len(queries), job.k), -1, np.int64)
    candidates = np.full((len(queries), job.k * oversampling), -1, np.int64)
    runs: list[Times] = []
    begun = time.monotonic()
    while len(runs) < job.runs and (not runs or time.monotonic() - begun < SETTING_SECONDS):
        run = np.empty((len(queries), 3), np.int64)
        for number, query in enumerate(queries):
            candidate_rows, answer, run[number] = search.run_query(query[None], oversampling)
            if not runs:
                candidates[number, : len(candidate_rows)] = candidate_rows
                rows[number, : len(answer)] = answer
        runs.append(run)
    return rows, candidates, np.stack(runs)


def compute_figures(
    job: Job, rows: Numbers, candidates: Numbers, times: Times, truth: Numbers, exact: Numbers, oversampling: int
) -> dict[str, Any]:
    """Compute the recalls and times of a setting."""
    recalls = compute_overlap(rows, truth)
    total_microseconds = times.sum(axis=2) / 1000
    measured = {
        "recall": float(recalls.mean()),
        "recall_p5": float(np.quantile(recalls, 0.05)),
        "microseconds": float(total_microseconds.mean()),
        "transform_microseconds": float(times[:, :, 0].mean() / 1000),
        "rescoring_microseconds": float(times[:, :, 2].mean() / 1000),
        "runs": len(times),
    }
    if job.engine != SERVER or oversampling == 1:
        measured["index_recall"] = float(compute_overlap(candidates, exact[:, : job.k * oversampling]).mean())
    return measured | {name: float(np.quantile(total_microseconds, share)) for name, share in QUANTILES.items()}


def compute_overlap(rows: Numbers, wanted: Numbers) -> NDArray[np.float64]:
    """Return the share of each query's wanted rows `(q, k)` that are among its found rows `(q, c)`."""
    return np.array(
        [len(np.intersect1d(hits, targets)) / len(targets) for hits, targets in zip(rows, wanted, strict=True)]
    )


def measure_batch_rate(search: LocalSearch, queries: Vectors) -> float:
    """Return the queries a second when all are searched at once, reduced by one product."""
    begun = time.monotonic()
    search.engine.search(search.space.reduce_queries(queries), search.k)
    return len(queries) / (time.monotonic() - begun)


def choose_operating_point(settings: Sequence[dict[str, Any]], wanted: float) -> dict[str, Any]:
    """Return the fastest setting with the wanted recall, or the one with the highest recall if none has it."""
    enough = [s for s in settings if s["recall"] >= wanted]
    return min(enough, key=lambda s: s["microseconds"]) if enough else max(settings, key=lambda s: s["recall"])


def measure_concurrency(job: Job, search: Search, queries: Vectors, chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure several numbers of callers at a setting.

    Each caller runs as many queries as take some seconds with one caller.
    """
    # As many as one caller runs in some seconds, so that the callers overlap for most of the time.
    count = max(WARMUP_QUERIES, int(SETTING_SECONDS * 1e6 / chosen["microseconds"]))
    use_threads = job.engine in (SERVER, GPU)  # an answer is waited for, or memory is not shared with a fork
    return [run_callers(search, queries[:count], chosen["oversampling"], callers, use_threads) for callers in CALLERS]


def run_callers(search: Search, queries: Vectors, oversampling: int, callers: int, threads: bool) -> dict[str, Any]:
    """Run several callers at once, each of which runs all queries one at a time.

    The rate is that of the time in which any caller ran queries. Callers are processes that share the engine's memory,
    unless `threads` is set: threads of Python would wait for one another between two products.
    """
    kind: Any = threading if threads else multiprocessing.get_context("fork")
    start, answers = kind.Barrier(callers), (queue.Queue() if kind is threading else kind.Queue())

    def ask_all() -> None:
        start.wait()
        begun = time.monotonic()
        times = [sum(search.run_query(query[None], oversampling)[2]) for query in queries]
        answers.put((times, begun, time.monotonic()))

    workers = [(threading.Thread if kind is threading else kind.Process)(target=ask_all) for _ in range(callers)]
    for worker in workers:
        worker.start()
    timings = [answers.get(timeout=CALLERS_SECONDS) for _ in workers]
    for worker in workers:
        worker.join()
    microseconds = np.concatenate([np.array(times) for times, _, _ in timings]) / 1000
    seconds = max(end for _, _, end in timings) - min(begun for _, begun, _ in timings)
    return {
        "callers": callers,
        "queries_per_second": len(microseconds) / seconds,
        "p99": float(np.quantile(microseconds, 0.99)),
    }


@contextmanager
def pin_to_one_core() -> Iterator[None]:
    """Pin this process to the last of its cores for the block, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def read_resident_bytes() -> int:
    """Return the bytes of this process in memory, or 0 if the system does not report them."""
    status = Path("/proc/self/status")
    match = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(match[1]) if match else 0


def main() -> None:
    """Run the job in a file."""
    # Queries are timed on one core; more threads would only wait for it.
    torch.set_num_threads(1)
    fields: dict[str, Any] = json.loads(Path(sys.argv[1]).read_bytes())
    lists: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    job = Job(**fields | lists)
    Path(job.result).write_bytes(orjson.dumps(measure_point(job)))


if __name__ == "__main__":
    main()
