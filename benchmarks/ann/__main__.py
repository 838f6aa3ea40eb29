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
from benchmarks.ann.data import Data, DataError, has_gpu, read_data, split_rows
from benchmarks.ann.engines import GPU
from benchmarks.ann.figure import POINTS, RUNS, measure_recall_by_dimension
from benchmarks.ann.grid import Grid, Runner, describe_failures
from benchmarks.ann.report import write_files
from benchmarks.ann.sizes import measure_at_equal_bytes
from benchmarks.ann.spaces import FULL
from benchmarks.report import parser
from benchmarks.starters import print_progress
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
"""Defaults of the options with --quick."""
OTHERS = f"faiss-hnsw, opqBYTES, ivf-pqCODES, {GPU}, and those of benchmarks/ann/compressed.py"
ENGINE = re.compile("|".join([*ENGINES, "faiss-hnsw", GPU, "(?:opq|ivf-pq)[1-9][0-9]*", NAME.pattern]))


def main() -> None:
    """Measure, print the tables and write the files."""
    options = parse_options(sys.argv[1:])
    torch.set_num_threads(1)
    try:
        data = read_data(options.vectors, None if options.vectors else options.source, options.queries)
        failures = run(options, data)
    except (DataError, TrainingError, TransformError, ServiceError, OSError, ValueError) as error:
        sys.exit(f"benchmarks.ann: {error}")
    except KeyboardInterrupt:
        sys.exit(f"\nstopped; what was measured is in {options.out}, and the same command goes on from there")
    if failures:
        sys.exit(1)


def parse_options(arguments: Sequence[str]) -> Any:
    """Parse the command line.

    Exits with an error for an unknown engine or a number out of range.
    """
    options_parser = parser(__doc__)
    defaults = Grid()
    options_parser.add_argument("--vectors", help="FILE.npy, or FILE.hdf5 with its own queries")
    options_parser.add_argument("--source", default="pydoc:", help="texts or vectors, if no --vectors are given")
    options_parser.add_argument("--queries", metavar="SOURCE", help="queries; else rows are drawn from the vectors")
    options_parser.add_argument(
        "--method", action="append", metavar="M", help="none, CHAIN[@VERSION][:SIZE], or steps such as geopres:128"
    )
    options_parser.add_argument("--engine", action="append", metavar="E", help=f"{', '.join(ENGINES)}, {OTHERS}")
    options_parser.add_argument("--sizes", type=int, nargs="+", default=list(defaults.sizes), help="vectors searched")
    options_parser.add_argument("--seeds", type=int, default=defaults.seeds)
    options_parser.add_argument("--query-count", type=int, default=defaults.queries, help="queries of a seed")
    options_parser.add_argument(
        "--fit-rows", type=int, default=defaults.fit, help="rows kept apart for methods fitted here"
    )
    options_parser.add_argument("--k", type=int, default=defaults.k)
    options_parser.add_argument(
        "--m",
        type=int,
        nargs="+",
        default=[16, 32],
        help="links of a node of a graph; methods after the second get the first",
    )
    options_parser.add_argument("--ef-construction", type=int, default=defaults.ef_construction)
    options_parser.add_argument(
        "--ef", type=int, nargs="+", default=list(defaults.efs), help="candidates of a graph's search"
    )
    options_parser.add_argument("--oversampling", type=int, nargs="+", default=list(defaults.oversampling))
    options_parser.add_argument("--runs", type=int, default=defaults.runs, help="times every query is timed")
    options_parser.add_argument(
        "--target", type=float, nargs="+", default=list(defaults.targets), help="recalls to compare at"
    )
    options_parser.add_argument("--bytes", type=int, nargs="*", default=list(BYTES), help="sizes to compare methods at")
    options_parser.add_argument("--no-figure", action="store_true", help="leave out the GeoPres paper's Figure 1")
    if "--quick" in arguments:
        options_parser.set_defaults(**QUICK)
    options = options_parser.parse_args(arguments)
    for engine in options.engine or ():
        if not ENGINE.fullmatch(engine):
            options_parser.error(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}, {OTHERS}")
    if not all(0 < target < 1 for target in options.target):
        options_parser.error("--target takes recalls between 0 and 1")
    for name in ("seeds", "query_count", "fit_rows", "k", "runs"):
        if getattr(options, name) < 1:
            options_parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if min([*options.sizes, *options.bytes, *options.m, *options.ef, *options.oversampling]) < 1:
        options_parser.error("sizes, bytes, links, candidates and oversampling must be at least 1")
    return options


def build_grid(options: Any) -> Grid:
    """Build the grid that the options describe.

    Full width is always its first method.
    """
    methods = [FULL, *(method for method in options.method or ["compact"] if method != FULL)]
    return Grid(
        methods=tuple(dict.fromkeys(methods)),
        engines=tuple(
            options.engine or (*(QUICK_ENGINES if options.quick else ENGINES), *([GPU] if has_gpu() else []))
        ),
        sizes=tuple(options.sizes),
        seeds=options.seeds,
        queries=options.query_count,
        fit=options.fit_rows,
        k=options.k,
        ms=tuple(options.m),
        ef_construction=options.ef_construction,
        efs=tuple(sorted(options.ef)),
        oversampling=tuple(sorted({1, *options.oversampling})),
        runs=options.runs,
        targets=tuple(sorted(options.target)),
    )


def run(options: Any, data: Data) -> list[str]:
    """Measure everything, write the files, and return a description of each point that failed."""
    grid, work = build_grid(options), options.out / "ann-work"
    for note in data.notes:
        print(note, file=sys.stderr)
    runner = Runner(grid, data, work)
    results = runner.run()
    chains = {method: digest for method, digest in runner.digests.items() if digest}
    budgets = [size for size in options.bytes if size <= data.vectors.shape[1]]

    def measure_sizes() -> list[dict[str, Any]]:
        splits = [
            split_rows(data, seed, runner.available, grid.queries, grid.fit, grid.k) for seed in range(grid.seeds)
        ]
        return measure_at_equal_bytes(splits, budgets, grid.k, not options.quick, print_progress)

    key = json.dumps([data.digest, grid.seeds, grid.queries, grid.fit, grid.k, runner.available, options.quick])
    sizes = load_or_measure(work / "sizes.json", [key, budgets], measure_sizes) if budgets else []
    figure: list[dict[str, Any]] = []
    if not options.no_figure and not options.quick:
        points = min(POINTS, runner.available)
        figure = load_or_measure(
            work / "figure.json", [key], lambda: measure_recall_by_dimension(data, RUNS, points, print_progress)
        )
    print("\r\033[K", end="", file=sys.stderr)
    failed_rows = [row for row in sizes if "error" in row]
    for row in failed_rows:
        print(f"{row['method']} in {row['bytes']} bytes, seed {row['seed']}: {row['error']}", file=sys.stderr)
    print(
        write_files(options.out, data, grid, results, [row for row in sizes if row not in failed_rows], figure, chains)
    )
    return describe_failures(results)


def load_or_measure(path: Path, key: list[Any], measure: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the results stored with the same key, or measure and store them.

    Args:
        path: file of the results.
        key: what the results depend on.
        measure: function that returns the results.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    stored = json.loads(path.read_bytes()) if path.exists() else None
    if stored is not None and stored["key"] == digest:
        return list(stored["found"])
    results = measure()
    replace_synced(path, json.dumps({"key": digest, "found": results}).encode())
    return results


if __name__ == "__main__":
    main()
