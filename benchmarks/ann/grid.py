"""The grid of points that the benchmark measures, one after another.

Each result is stored at once, so that a stopped run continues.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.ann.data import Data, Split, find_nearest, split_rows
from benchmarks.ann.engines import EFS, compresses, is_graph
from benchmarks.ann.job import SERVER, Job
from benchmarks.ann.spaces import FULL, find_space, is_fitted_here, parse_size

POINT_SECONDS = 3600
"""Maximum seconds of a point; one that takes longer has failed."""
EXACT = "flat"
"""The engine that searches exactly."""
JUDGED = 2
"""Number of the first methods that are measured in every engine: full width, and the chain that is judged."""


@dataclass(frozen=True)
class Grid:
    """Methods, engines and parameters that are measured.

    Attributes:
        methods: methods by which the vectors are reduced; see `find_space`.
        engines: engines for every method; those that compress by themselves only for full width.
        sizes: numbers of rows searched, ascending.
        seeds: number of seeds, each with a split, fits and builds of its own.
        queries: number of queries of each seed.
        fit: number of rows held out for methods that are fitted here.
        k: number of neighbours.
        ms: links of a node of a graph.
        ef_construction: candidates when it is linked.
        efs: candidates when it is searched.
        oversampling: multiples of k that are rescored.
        runs: number of times that every query is timed.
        targets: recalls at which methods are compared.
    """

    methods: tuple[str, ...] = (FULL, "compact")
    engines: tuple[str, ...] = ("hnswlib", "flat")
    sizes: tuple[int, ...] = (10_000, 30_000, 100_000)
    seeds: int = 3
    queries: int = 1000
    fit: int = 8000
    k: int = 10
    ms: tuple[int, ...] = (16,)
    ef_construction: int = 200
    efs: tuple[int, ...] = EFS
    oversampling: tuple[int, ...] = (1, 2, 4, 8, 16)
    runs: int = 3
    targets: tuple[float, ...] = (0.95, 0.99)


@dataclass(frozen=True)
class Point:
    """One engine on one method's vectors."""

    seed: int
    rows: int
    method: str
    engine: str
    m: int

    @property
    def name(self) -> str:
        """Name of the point for messages."""
        links = f" M={self.m}" if self.m else ""
        return f"{self.engine}{links} on {self.rows:,} of {self.method}, seed {self.seed}"


def list_points(grid: Grid, available: int) -> Iterator[Point]:
    """Yield all points, seed by seed, so that a run that is stopped has whole comparisons.

    The first two methods, full width and the chain that is judged, are measured in every engine and with every number
    of links, the others in the first of each and by exact search. Growth with N is measured for graphs and exact search
    alone.
    """
    sizes = sorted({min(size, available) for size in grid.sizes})
    for seed in range(grid.seeds):
        for rows in sizes:
            for position, method in enumerate(grid.methods):
                is_judged, is_largest = position < JUDGED, rows == sizes[-1]
                for engine in grid.engines:
                    in_all_sizes = engine in (grid.engines[0], EXACT)
                    compresses_again = compresses(engine) and method != FULL
                    is_unserved = engine == SERVER and is_fitted_here(method)
                    if compresses_again or is_unserved or not (in_all_sizes or (is_judged and is_largest)):
                        continue
                    has_links = is_graph(engine) or engine == SERVER
                    links = grid.ms if is_judged and engine == grid.engines[0] else grid.ms[:1]
                    for m in links if has_links else (0,):
                        yield Point(seed, rows, method, engine, m)


class Runner:
    """Runs the points of a grid, and stores their results.

    Args:
        grid: the grid.
        data: the vectors.
        folder: folder for prepared vectors, raw results, and `points.jsonl`.
    """

    def __init__(self, grid: Grid, data: Data, folder: Path) -> None:
        self.grid, self.data, self.folder = grid, data, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.results_path = folder / "points.jsonl"
        self.splits: dict[int, Split] = {}
        self.digest = data.digest
        self.digests: dict[str, str | None] = {}

    @cached_property
    def available(self) -> int:
        """Number of rows that a corpus can have."""
        return len(split_rows(self.data, 0, max(self.grid.sizes), self.grid.queries, self.grid.fit, self.grid.k).corpus)

    def run(self) -> list[dict[str, Any]]:
        """Measure every point that has no stored result, and return the results of all.

        A point that failed has an `error` instead, and is measured again by the next run.
        """
        stored = self.read_results()
        all_points = list(list_points(self.grid, self.available))
        for point in all_points:
            self.find_chain_digest(point)  # a missing chain is reported before anything is measured
        with tqdm(all_points, unit="point", disable=None, file=sys.stderr) as bar:
            results = []
            for point in bar:
                bar.set_postfix_str(point.name)
                key = self.build_key(point)
                if key not in stored:
                    stored[key] = {"key": key, **asdict(point), **self.run_point(point, key)}
                    self.append_result(stored[key])
                if "error" in stored[key]:
                    bar.write(f"{point.name} failed: {stored[key]['error']}", file=sys.stderr)
                results.append(stored[key])
        return results

    def read_results(self) -> dict[str, dict[str, Any]]:
        """Read the results of earlier runs, by key.

        Points whose line was cut off or that failed are left out, and so are measured again.
        """
        results = {}
        for line in self.results_path.read_text().splitlines() if self.results_path.exists() else ():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if "error" not in result:
                results[result["key"]] = result
        return results

    def append_result(self, result: dict[str, Any]) -> None:
        """Append a result to the file of results, and sync it to disk."""
        # A run that was killed while it wrote leaves half a line, which the next result must not join.
        cut_off = (
            self.results_path.exists()
            and not self.results_path.read_bytes().endswith(b"\n")
            and self.results_path.stat().st_size
        )
        with self.results_path.open("a") as file:
            file.write(("\n" if cut_off else "") + json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def build_key(self, point: Point) -> str:
        """Return the key of a point's result, which depends on the data, the grid and the chain."""
        # Methods, engines and sizes are left out: a larger grid keeps the results of a smaller one.
        grid = {name: value for name, value in asdict(self.grid).items() if name in MEASURED}
        measured = [self.digest, grid, max(self.grid.sizes), asdict(point), self.find_chain_digest(point)]
        content = json.dumps(measured, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def find_chain_digest(self, point: Point) -> str | None:
        """Return the digest of the chain that the point's method names, or None for a method that is fitted here."""
        if point.method not in self.digests:
            named = point.method != FULL and not is_fitted_here(point.method)
            space = find_space(point.method, self.data.vectors[:1], point.seed) if named else None
            self.digests[point.method] = space.digest if space else None
        return self.digests[point.method]

    def run_point(self, point: Point, key: str) -> dict[str, Any]:
        """Measure one point in a process of its own, and return its result or `{"error": message}`."""
        try:
            job = self.prepare_job(point, key)
        except Exception as error:  # a method that cannot be fitted fails alone; the rest goes on
            return {"error": f"{type(error).__name__}: {error}"}
        path = Path(job.result).with_suffix(".job")
        path.write_bytes(job.to_json())
        log = path.with_suffix(".log")
        command = [sys.executable, "-m", "benchmarks.ann.point", str(path)]
        try:
            with log.open("wb") as errors:
                ended = subprocess.run(
                    command, stdout=subprocess.DEVNULL, stderr=errors, timeout=POINT_SECONDS, check=False
                )
        except subprocess.TimeoutExpired:
            return {"error": f"was not done after {POINT_SECONDS:,} seconds"}
        finally:
            path.unlink()
        if ended.returncode:
            return {"error": read_last_line(log) or f"ended with {ended.returncode}"}
        return dict(json.loads(Path(job.result).read_bytes()))

    def prepare_job(self, point: Point, key: str) -> Job:
        """Build the job of a point, after making the files that it reads and that are missing."""
        grid = self.grid
        base = self.folder / f"{self.digest}-{max(grid.sizes)}-{grid.queries}-{grid.fit}" / f"seed-{point.seed}"
        method_key = f"{point.method} {self.find_chain_digest(point)}"
        place = base / hashlib.sha256(method_key.encode()).hexdigest()[:12]
        originals, queries = base / "originals.npy", base / "queries.npy"
        truth, exact = (
            base / f"truth-{point.rows}-{grid.k}.npy",
            place / f"exact-{point.rows}-{self.max_candidates}.npy",
        )
        reduced, chain, size = place / "reduced.npy", place / "chain", parse_size(point.method)
        if not truth.exists():
            rows_of_seed = self.draw_split(point.seed)
            base.mkdir(parents=True, exist_ok=True)
            save_array(originals, rows_of_seed.corpus.astype(np.float16))
            save_array(queries, rows_of_seed.queries)
            save_array(truth, find_nearest(rows_of_seed.queries, rows_of_seed.corpus[: point.rows], grid.k))
        if not exact.exists():
            rows_of_seed = self.draw_split(point.seed)
            if not reduced.exists():
                space = find_space(point.method, rows_of_seed.fit, point.seed)
                if not chain.exists():
                    space.save(chain)
                save_array(place / "asked.npy", space.reduce_queries(rows_of_seed.queries))
                save_array(reduced, space.reduce(rows_of_seed.corpus))  # last: where it exists, the others do too
            save_array(
                exact, find_nearest(np.load(place / "asked.npy"), np.load(reduced)[: point.rows], self.max_candidates)
            )
        (self.folder / "raw").mkdir(exist_ok=True)
        return Job(
            method=point.method,
            size=size,
            engine=point.engine,
            m=point.m,
            ef_construction=grid.ef_construction,
            seed=point.seed,
            rows=point.rows,
            k=grid.k,
            efs=grid.efs,
            oversampling=list_oversampling(point, grid),
            runs=grid.runs,
            wanted=min(grid.targets),
            originals=str(originals),
            reduced=str(reduced),
            queries=str(queries),
            truth=str(truth),
            exact=str(exact),
            chain=str(chain),
            result=str(self.folder / "raw" / f"{key}.json"),
        )

    @property
    def max_candidates(self) -> int:
        """Number of candidates with the largest oversampling."""
        return self.grid.k * max(self.grid.oversampling)

    def draw_split(self, seed: int) -> Split:
        """Return the split of a seed, keeping only the last one in memory."""
        if seed not in self.splits:
            grid = self.grid
            # Points come seed by seed, so the earlier splits are not needed again.
            self.splits = {seed: split_rows(self.data, seed, max(grid.sizes), grid.queries, grid.fit, grid.k)}
        return self.splits[seed]


MEASURED = ("queries", "fit", "k", "ef_construction", "efs", "oversampling", "runs", "targets")
"""Settings of a grid that change what a point finds."""


def list_oversampling(point: Point, grid: Grid) -> tuple[int, ...]:
    """Return the oversampling to measure.

    There is none for full vectors that the engine does not encode. Over HTTP, only every second one is measured.
    """
    if point.method == FULL and not (compresses(point.engine) or point.engine == "faiss-hnsw-sq8"):
        return (1,)
    return grid.oversampling[::2] if point.engine == SERVER else grid.oversampling


def save_array(path: Path, array: Any) -> None:
    """Write an array to a file atomically, so that a stopped run leaves no half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A rename is atomic: where the file exists, it is whole.
    part = path.with_suffix(".part.npy")
    np.save(part, array)
    part.replace(path)


def read_last_line(log: Path) -> str:
    """Return the last line that a process wrote to its log, cut to 500 characters."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def describe_failures(results: Sequence[dict[str, Any]]) -> list[str]:
    """Describe the points that failed, a line each."""
    return [
        f"{Point(r['seed'], r['rows'], r['method'], r['engine'], r['m']).name}: {r['error']}"
        for r in results
        if "error" in r
    ]
