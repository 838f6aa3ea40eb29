"""Compares Lathe's graph over codes with DiskANN where the originals are read from the disk for every query.

    python -m benchmarks.ann.disk --work results/ann-codes-work --diskann OTHER/bin/python --out results

The folder is one that `benchmarks.ann.candidates` prepared. DiskANN runs in an environment of its own (`diskann.py`).
It reads past the page cache; for Lathe, the file of originals is dropped from the cache before every query. Both get
one thread and about the same memory for each vector: DiskANN its compressed vectors, Lathe codes and links. They are
searched alternately, and the wall time of single queries is measured, because both wait for the disk.
"""

import json
import mmap
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.ann.candidates import EF_CONSTRUCTION, SEED, TARGETS, K, interpolate_microseconds
from benchmarks.ann.compressed import CodesGraph
from benchmarks.report import markdown_table, parser, write_report
from lathe.service.index.embedded.exact import rescore
from lathe.service.index.embedded.rows import RowFile

EFFORTS = ((40, 30), (60, 40), (110, 60), (150, 80), (200, 110), (320, 150))
"""Candidate lists of the graph, and candidates that the originals rank."""
LISTS = (15, 25, 40, 60, 100, 160)
BEAM = 4
QUERIES = 256
ROUNDS = 3
READS = 15
READ_ROWS = (40, 2560)
"""Rows that are read at once: the candidates of a query, and of a batch of 64."""

Setting = dict[str, Any]


class LatheOnDisk:
    """Lathe's graph over codes, with the originals in a file.

    The file can be dropped from the page cache before a query.

    Args:
        work: folder of `benchmarks.ann.candidates`.
        code_bytes: bytes of a code.
    """

    def __init__(self, work: Path, code_bytes: int) -> None:
        self.queries, self.truth = np.load(work / "queries.npy")[:QUERIES], np.load(work / "truth.npy")[:QUERIES]
        base = np.load(work / "base.npy")
        self.graph = CodesGraph(code_bytes, 16, EF_CONSTRUCTION, SEED)
        begun = time.process_time()
        self.graph.build(base)
        self.build_seconds = time.process_time() - begun
        self.originals = RowFile(work / "originals.f16", "float16", base.shape[1], scattered=True)

    def drop_from_cache(self) -> None:
        """Drop the file of originals from the page cache."""
        self.originals.map.madvise(mmap.MADV_DONTNEED)
        with self.originals.path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, rows: int, at_once: bool) -> float:
        """Read random rows from the disk several times, and return the median of the milliseconds.

        Args:
            rows: number of rows to read.
            at_once: whether the rows are read at once instead of one after the other.
        """
        rng, milliseconds = np.random.default_rng(SEED), []
        for _ in range(READS):
            drawn_rows = np.sort(rng.choice(len(self.originals.array), rows, replace=False))
            self.drop_from_cache()
            self.originals.from_disk = at_once
            start = time.perf_counter()
            _ = self.originals[drawn_rows]
            milliseconds.append((time.perf_counter() - start) * 1e3)
        return float(np.median(milliseconds))

    def search(self, effort: int, count: int, cold: bool) -> Setting:
        """Search for one query after the other.

        Args:
            effort: candidate list of the graph.
            count: candidates that the originals rank.
            cold: whether the originals are dropped from the page cache before every query.

        Returns:
            The setting with its recall@10 and the microseconds of a query.
        """
        self.graph.set_effort(effort)
        walls, hits = np.empty(QUERIES), 0
        for number, query in enumerate(self.queries):
            if cold:
                self.drop_from_cache()
            start = time.perf_counter()
            candidates = self.graph.search(query[None], count)
            best, _ = rescore(query[None], self.originals, candidates, K, "cosine")
            walls[number] = time.perf_counter() - start
            hits += len(np.intersect1d(best, self.truth[number]))
        return {
            "effort": effort,
            "count": count,
            "recall": hits / (K * QUERIES),
            "p50": float(np.quantile(walls, 0.5)) * 1e6,
            "p99": float(np.quantile(walls, 0.99)) * 1e6,
        }


@contextmanager
def run_diskann(python: Path, work: Path, memory_bytes: int) -> Iterator[tuple[Setting, Callable[[int], Setting]]]:
    """Build a DiskANN index in another process.

    Yields:
        What the build took, and a function that searches with a list's length.
    """
    with tempfile.TemporaryDirectory(dir=work) as folder:
        program = Path(__file__).with_name("diskann.py")
        command = [str(python), str(program), str(work), folder, str(memory_bytes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            answers = (line for line in process.stdout if line.startswith("{"))  # it also prints what it does

            def search(complexity: int) -> Setting:
                print(complexity, BEAM, QUERIES, file=process.stdin, flush=True)
                setting: Setting = json.loads(next(answers))
                return setting

            yield json.loads(next(answers)), search
            process.stdin.close()


def merge_rounds(rounds: list[list[Setting]]) -> list[Setting]:
    """Return the settings of the first round with the medians of all rounds' times."""
    return [
        repeats[0] | {key: float(np.median([setting[key] for setting in repeats])) for key in ("p50", "p99")}
        for repeats in zip(*rounds, strict=True)
    ]


def format_microseconds(number: float | None) -> str:
    """Format a time, or a dash if the recall is not reached."""
    return f"{number:,.0f}" if number else "–"


def main() -> None:
    """Measure both alternately, print the table and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--work", type=Path, required=True, help="folder of benchmarks.ann.candidates")
    options.add_argument("--diskann", type=Path, required=True, help="Python of an environment with diskannpy")
    options.add_argument("--codes", type=int, default=48, help="bytes of a code")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    lathe = LatheOnDisk(arguments.work, arguments.codes)
    memory = lathe.graph.bytes / len(np.load(arguments.work / "base.npy", mmap_mode="r"))
    rounds: dict[str, list[list[Setting]]] = {"Lathe, from the disk": [], "Lathe, page cache": [], "DiskANN": []}
    with run_diskann(arguments.diskann, arguments.work, round(memory)) as (built, search):
        for _ in range(ROUNDS):
            for cold, name in ((True, "Lathe, from the disk"), (False, "Lathe, page cache")):
                rounds[name].append([lathe.search(effort, count, cold) for effort, count in EFFORTS])
            rounds["DiskANN"].append([{"list": length} | search(length) for length in LISTS])
        reads = {
            f"{rows} rows": {way: lathe.read(rows, way == "at once") for way in ("at once", "one after the other")}
            for rows in READ_ROWS
        }
    settings = {name: merge_rounds(found) for name, found in rounds.items()}
    costs = {
        "Lathe": {"memory_bytes": memory, "build_cpu_seconds": lathe.build_seconds},
        "DiskANN": built,
    }
    rows = [
        [name, *(format_microseconds(interpolate_microseconds(found, target, "p50")) for target in TARGETS)]
        for name, found in settings.items()
    ]
    print(markdown_table(["searched by", *(f"µs of a query at {target}" for target in TARGETS)], rows))
    print(json.dumps({"costs": costs, "milliseconds of a read": reads}))
    write_report(arguments.out, "ann-disk", {"costs": costs, "settings": settings, "read_milliseconds": reads})


if __name__ == "__main__":
    main()
