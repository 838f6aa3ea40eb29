"""All points of the benchmark, one after another; what is done is kept, so that a stopped run goes on."""

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

from benchmarks.ann.data import Data, Split, nearest, split
from benchmarks.ann.engines import EFS, compresses, is_graph
from benchmarks.ann.job import SERVER, Job
from benchmarks.ann.spaces import FULL, find_space, is_fitted_here, size_of

POINT_SECONDS = 3600
"""A point that takes longer has failed."""
EXACT = "flat"
"""The engine that searches exactly."""
JUDGED = 2
"""Methods that meet every engine: full width, and the chain that is judged."""


@dataclass(frozen=True)
class Grid:
    """What is measured.

    Attributes:
        methods: what the vectors are reduced by; see `find_space`.
        engines: for every method; those that compress by themselves only for full width.
        sizes: rows searched, ascending.
        seeds: each splits, fits and builds anew.
        queries: of each seed.
        fit: rows kept apart for methods that are fitted here.
        k: neighbours.
        ms: links of a node of a graph.
        ef_construction: candidates when it is linked.
        efs: candidates when it is searched.
        oversampling: times k that are rescored.
        runs: times every query is asked.
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
        """Name for reading."""
        links = f" M={self.m}" if self.m else ""
        return f"{self.engine}{links} on {self.rows:,} of {self.method}, seed {self.seed}"


def points(grid: Grid, available: int) -> Iterator[Point]:
    """Yield all points, seed by seed, so that a run that is stopped has whole comparisons.

    The first two methods, full width and the chain that is judged, meet every engine and number of links; the others
    the first of each, and exact search. Growth with N is a question to graphs and exact search alone.
    """
    sizes = sorted({min(size, available) for size in grid.sizes})
    for seed in range(grid.seeds):
        for rows in sizes:
            for place, method in enumerate(grid.methods):
                judged, largest = place < JUDGED, rows == sizes[-1]
                for engine in grid.engines:
                    everywhere = engine in (grid.engines[0], EXACT)
                    codes = compresses(engine) and method != FULL
                    unserved = engine == SERVER and is_fitted_here(method)
                    if codes or unserved or not (everywhere or (judged and largest)):
                        continue
                    graph = is_graph(engine) or engine == SERVER
                    links = grid.ms if judged and engine == grid.engines[0] else grid.ms[:1]
                    for m in links if graph else (0,):
                        yield Point(seed, rows, method, engine, m)


class Runner:
    """Prepares what points need, runs them, keeps what they found.

    Args:
        grid: what to measure.
        data: the vectors.
        folder: for prepared vectors, raw results, and `points.jsonl`.
    """

    def __init__(self, grid: Grid, data: Data, folder: Path) -> None:
        self.grid, self.data, self.folder = grid, data, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = folder / "points.jsonl"
        self.splits: dict[int, Split] = {}
        self.digest = data.digest
        self.digests: dict[str, str | None] = {}

    @cached_property
    def available(self) -> int:
        """Number of rows that a corpus can have."""
        return len(split(self.data, 0, max(self.grid.sizes), self.grid.queries, self.grid.fit, self.grid.k).corpus)

    def run(self) -> list[dict[str, Any]]:
        """Return every point's result; one that failed has an `error` instead, and is tried again by the next run."""
        done = self.read()
        wanted = list(points(self.grid, self.available))
        for point in wanted:
            self.chain_digest(point)  # a chain there is not is said before anything is measured
        with tqdm(wanted, unit="point", disable=None, file=sys.stderr) as bar:
            found = []
            for point in bar:
                bar.set_postfix_str(point.name)
                key = self.key(point)
                if key not in done:
                    done[key] = {"key": key, **asdict(point), **self.result(point, key)}
                    self.keep(done[key])
                if "error" in done[key]:
                    bar.write(f"{point.name} failed: {done[key]['error']}", file=sys.stderr)
                found.append(done[key])
        return found

    def read(self) -> dict[str, dict[str, Any]]:
        """Read what earlier runs found; a line that was cut off is measured again, and so is what failed."""
        found = {}
        for line in self.kept.read_text().splitlines() if self.kept.exists() else ():
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if "error" not in result:
                found[result["key"]] = result
        return found

    def keep(self, result: dict[str, Any]) -> None:
        """Write a result down before the next point begins."""
        cut_off = self.kept.exists() and not self.kept.read_bytes().endswith(b"\n") and self.kept.stat().st_size
        with self.kept.open("a") as file:
            file.write(("\n" if cut_off else "") + json.dumps(result) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def key(self, point: Point) -> str:
        """Return a key that tells a point's result from that of any other data, grid or chain."""
        grid = {name: value for name, value in asdict(self.grid).items() if name in MEASURED}
        measured = [self.digest, grid, max(self.grid.sizes), asdict(point), self.chain_digest(point)]
        content = json.dumps(measured, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def chain_digest(self, point: Point) -> str | None:
        """Return the digest of the chain that the method names; None for one that is fitted here."""
        if point.method not in self.digests:
            named = point.method != FULL and not is_fitted_here(point.method)
            space = find_space(point.method, self.data.vectors[:1], point.seed) if named else None
            self.digests[point.method] = space.digest if space else None
        return self.digests[point.method]

    def result(self, point: Point, key: str) -> dict[str, Any]:
        """Do one point in a process of its own."""
        try:
            job = self.prepare(point, key)
        except Exception as error:  # a method that cannot be fitted fails alone; the rest goes on
            return {"error": f"{type(error).__name__}: {error}"}
        path = Path(job.result).with_suffix(".job")
        path.write_bytes(job.json())
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
            return {"error": last_line(log) or f"ended with {ended.returncode}"}
        return dict(json.loads(Path(job.result).read_bytes()))

    def prepare(self, point: Point, key: str) -> Job:
        """Return the job of a point, after making the files that it reads and that are not there yet."""
        grid = self.grid
        base = self.folder / f"{self.digest}-{max(grid.sizes)}-{grid.queries}-{grid.fit}" / f"seed-{point.seed}"
        chosen = f"{point.method} {self.chain_digest(point)}"
        place = base / hashlib.sha256(chosen.encode()).hexdigest()[:12]
        originals, queries = base / "originals.npy", base / "queries.npy"
        truth, exact = base / f"truth-{point.rows}-{grid.k}.npy", place / f"exact-{point.rows}-{self.deepest}.npy"
        reduced, chain, size = place / "reduced.npy", place / "chain", size_of(point.method)
        if not truth.exists():
            cut = self.split(point.seed)
            base.mkdir(parents=True, exist_ok=True)
            save(originals, cut.corpus.astype(np.float16))
            save(queries, cut.queries)
            save(truth, nearest(cut.queries, cut.corpus[: point.rows], grid.k))
        if not exact.exists():
            cut = self.split(point.seed)
            if not reduced.exists():
                space = find_space(point.method, cut.fit, point.seed)
                if not chain.exists():
                    space.save(chain)
                save(place / "asked.npy", space.ask(cut.queries))
                save(reduced, space.reduce(cut.corpus))  # last: what it stands for is there then
            save(exact, nearest(np.load(place / "asked.npy"), np.load(reduced)[: point.rows], self.deepest))
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
            oversampling=oversampling_of(point, grid),
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
    def deepest(self) -> int:
        """Number of candidates of the most oversampling."""
        return self.grid.k * max(self.grid.oversampling)

    def split(self, seed: int) -> Split:
        """Return the rows of a seed."""
        if seed not in self.splits:
            grid = self.grid
            self.splits = {seed: split(self.data, seed, max(grid.sizes), grid.queries, grid.fit, grid.k)}
        return self.splits[seed]


MEASURED = ("queries", "fit", "k", "ef_construction", "efs", "oversampling", "runs", "targets")
"""Settings of a grid that change what a point finds."""


def oversampling_of(point: Point, grid: Grid) -> tuple[int, ...]:
    """Return the oversampling to try: none for full vectors that the engine does not code; over HTTP every other."""
    if point.method == FULL and not (compresses(point.engine) or point.engine == "faiss-hnsw-sq8"):
        return (1,)
    return grid.oversampling[::2] if point.engine == SERVER else grid.oversampling


def save(path: Path, array: Any) -> None:
    """Write an array whole or not at all: a stopped run must not leave half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npy")
    np.save(part, array)
    part.replace(path)


def last_line(log: Path) -> str:
    """Return what a process said last."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def failed(results: Sequence[dict[str, Any]]) -> list[str]:
    """Describe the points that failed."""
    return [
        f"{Point(r['seed'], r['rows'], r['method'], r['engine'], r['m']).name}: {r['error']}"
        for r in results
        if "error" in r
    ]
