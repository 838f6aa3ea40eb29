"""Judges a reduction by the neighbours it finds: end-to-end recall against speed, memory and build time.

Vectors come from --vectors (an .npy, or an HDF5 file as ann-benchmarks writes them) or from --source (texts are
encoded). Every seed splits them anew into a corpus, queries, and rows to fit methods on. What is measured is kept in
--out as it comes: a run that was stopped goes on where it was.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.ann.compressed import NAME
from benchmarks.ann.data import Data, DataError, gpu, read_data, split
from benchmarks.ann.engines import GPU
from benchmarks.ann.figure import POINTS, RUNS, recall_by_dimension
from benchmarks.ann.grid import Grid, Runner, failed
from benchmarks.ann.report import write
from benchmarks.ann.sizes import at_equal_bytes
from benchmarks.ann.spaces import FULL
from benchmarks.report import parser
from benchmarks.starters import show
from lathe.service.errors import ServiceError
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError
from lathe.transforms.files import replace_synced

ENGINES = ("hnswlib", "flat", "faiss-hnsw-sq8", "rabitq", "opq48", "lathe")
BYTES = (384, 128, 48)
QUICK_ENGINES = ("hnswlib", "flat", "faiss-hnsw-sq8", "rabitq")
QUICK = {
    "sizes": [20_000],
    "seeds": 1,
    "query_count": 300,
    "fit_rows": 2000,
    "m": [16],
    "ef": [20, 40, 80, 160, 320],
    "oversampling": [1, 4, 8, 16],
    "runs": 1,
}
"""What --quick takes where nothing else is asked for."""
OTHERS = f"faiss-hnsw, opqBYTES, ivf-pqCODES, {GPU}, and those of benchmarks/ann/compressed.py"
ENGINE = re.compile("|".join([*ENGINES, "faiss-hnsw", GPU, "(?:opq|ivf-pq)[1-9][0-9]*", NAME.pattern]))


def main() -> None:
    """Measure, print tables, write the files."""
    given = options(sys.argv[1:])
    torch.set_num_threads(1)
    try:
        data = read_data(given.vectors, None if given.vectors else given.source, given.queries)
        failures = run(given, data)
    except (DataError, TrainingError, TransformError, ServiceError, OSError, ValueError) as error:
        sys.exit(f"benchmarks.ann: {error}")
    except KeyboardInterrupt:
        sys.exit(f"\nstopped; what was measured is in {given.out}, and the same command goes on from there")
    if failures:
        sys.exit(1)


def options(arguments: Sequence[str]) -> Any:
    """Read what was asked for."""
    found = parser(__doc__)
    defaults = Grid()
    found.add_argument("--vectors", help="FILE.npy, or FILE.hdf5 with its own queries")
    found.add_argument("--source", default="pydoc:", help="texts or vectors, if no --vectors are given")
    found.add_argument("--queries", metavar="SOURCE", help="queries; else rows are drawn from the vectors")
    found.add_argument(
        "--method", action="append", metavar="M", help="none, CHAIN[@VERSION][:SIZE], or steps such as geopres:128"
    )
    found.add_argument("--engine", action="append", metavar="E", help=f"{', '.join(ENGINES)}, {OTHERS}")
    found.add_argument("--sizes", type=int, nargs="+", default=list(defaults.sizes), help="vectors searched")
    found.add_argument("--seeds", type=int, default=defaults.seeds)
    found.add_argument("--query-count", type=int, default=defaults.queries, help="queries of a seed")
    found.add_argument("--fit-rows", type=int, default=defaults.fit, help="rows kept apart for methods fitted here")
    found.add_argument("--k", type=int, default=defaults.k)
    found.add_argument(
        "--m",
        type=int,
        nargs="+",
        default=[16, 32],
        help="links of a node of a graph; methods after the second get the first",
    )
    found.add_argument("--ef-construction", type=int, default=defaults.ef_construction)
    found.add_argument("--ef", type=int, nargs="+", default=list(defaults.efs), help="candidates of a graph's search")
    found.add_argument("--oversampling", type=int, nargs="+", default=list(defaults.oversampling))
    found.add_argument("--runs", type=int, default=defaults.runs, help="times every query is timed")
    found.add_argument("--target", type=float, nargs="+", default=list(defaults.targets), help="recalls to compare at")
    found.add_argument("--bytes", type=int, nargs="*", default=list(BYTES), help="sizes to compare methods at")
    found.add_argument("--no-figure", action="store_true", help="leave out the GeoPres paper's Figure 1")
    if "--quick" in arguments:
        found.set_defaults(**QUICK)
    given = found.parse_args(arguments)
    for engine in given.engine or ():
        if not ENGINE.fullmatch(engine):
            found.error(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}, {OTHERS}")
    if not all(0 < target < 1 for target in given.target):
        found.error("--target takes recalls between 0 and 1")
    for name in ("seeds", "query_count", "fit_rows", "k", "runs"):
        if getattr(given, name) < 1:
            found.error(f"--{name.replace('_', '-')} must be at least 1")
    if min([*given.sizes, *given.bytes, *given.m, *given.ef, *given.oversampling]) < 1:
        found.error("sizes, bytes, links, candidates and oversampling must be at least 1")
    return given


def grid_of(given: Any) -> Grid:
    """Build the grid that the options describe; full width is always in it, first."""
    methods = [FULL, *(method for method in given.method or ["compact"] if method != FULL)]
    return Grid(
        methods=tuple(dict.fromkeys(methods)),
        engines=tuple(given.engine or (*(QUICK_ENGINES if given.quick else ENGINES), *([GPU] if gpu() else []))),
        sizes=tuple(given.sizes),
        seeds=given.seeds,
        queries=given.query_count,
        fit=given.fit_rows,
        k=given.k,
        ms=tuple(given.m),
        ef_construction=given.ef_construction,
        efs=tuple(sorted(given.ef)),
        oversampling=tuple(sorted({1, *given.oversampling})),
        runs=given.runs,
        targets=tuple(sorted(given.target)),
    )


def run(given: Any, data: Data) -> list[str]:
    """Measure everything, write it down, and return the points that failed, in words."""
    grid, work = grid_of(given), given.out / "ann-work"
    for note in data.notes:
        print(note, file=sys.stderr)
    runner = Runner(grid, data, work)
    results = runner.run()
    chains = {method: digest for method, digest in runner.digests.items() if digest}
    budgets = [size for size in given.bytes if size <= data.vectors.shape[1]]

    def measure_sizes() -> list[dict[str, Any]]:
        splits = [split(data, seed, runner.available, grid.queries, grid.fit, grid.k) for seed in range(grid.seeds)]
        return at_equal_bytes(splits, budgets, grid.k, not given.quick, show)

    key = json.dumps([data.digest, grid.seeds, grid.queries, grid.fit, grid.k, runner.available, given.quick])
    sizes = kept(work / "sizes.json", [key, budgets], measure_sizes) if budgets else []
    figure: list[dict[str, Any]] = []
    if not given.no_figure and not given.quick:
        points = min(POINTS, runner.available)
        figure = kept(work / "figure.json", [key], lambda: recall_by_dimension(data, RUNS, points, show))
    print("\r\033[K", end="", file=sys.stderr)
    without = [row for row in sizes if "error" in row]
    for row in without:
        print(f"{row['method']} in {row['bytes']} bytes, seed {row['seed']}: {row['error']}", file=sys.stderr)
    print(write(given.out, data, grid, results, [row for row in sizes if row not in without], figure, chains))
    return failed(results)


def kept(path: Path, key: list[Any], measure: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what an earlier run measured with the same key; else measure it now."""
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    there = json.loads(path.read_bytes()) if path.exists() else None
    if there is not None and there["key"] == digest:
        return list(there["found"])
    found = measure()
    replace_synced(path, json.dumps({"key": digest, "found": found}).encode())
    return found


if __name__ == "__main__":
    main()
