"""Build and search of DiskANN for `benchmarks.ann.disk`, in a process of its own that answers commands from stdin.

It runs in an environment of its own, because diskannpy 0.7 needs NumPy 1; only diskannpy and NumPy are imported.

    pip install diskannpy
    python benchmarks/ann/diskann.py WORK FOLDER BYTES

WORK holds base.npy, queries.npy and truth.npy (see `benchmarks.ann.candidates`), FOLDER takes the index, BYTES is the
budget of memory for each vector. A line "LIST BEAM COUNT" requests a pass of so many single queries; the answer is a
line of JSON.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import diskannpy
import numpy as np

K = 10
DEGREE = 64
COMPLEXITY = 100


def build(vectors: Any, folder: Path, memory_bytes: int) -> float:
    """Build an index of vectors `(n, d)` of length 1 on disk, and return the seconds of CPU time."""
    begun = time.process_time()
    gigabytes = memory_bytes * len(vectors) / 2**30
    diskannpy.build_disk_index(vectors, "l2", str(folder), COMPLEXITY, DEGREE, gigabytes, 8.0, 1)
    return time.process_time() - begun


def search(index: Any, queries: Any, truth: Any, complexity: int, beam: int) -> dict[str, float]:
    """Search for one query after the other, and return recall@10 and the wall and CPU times of a query."""
    walls, hits, begun = np.empty(len(queries)), 0, time.process_time()
    for number, query in enumerate(queries):
        start = time.perf_counter()
        best = index.search(query, K, complexity, beam).identifiers
        walls[number] = time.perf_counter() - start
        hits += len(np.intersect1d(best, truth[number]))
    return {
        "recall": hits / (K * len(queries)),
        "cpu": (time.process_time() - begun) / len(queries) * 1e6,
        "p50": float(np.quantile(walls, 0.5)) * 1e6,
        "p99": float(np.quantile(walls, 0.99)) * 1e6,
    }


def main() -> None:
    """Build the index, print its costs, then answer commands until stdin ends."""
    work, folder, memory_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    vectors = np.load(work / "base.npy")
    seconds, rows = build(vectors, folder, memory_bytes), len(vectors)
    del vectors
    index = diskannpy.StaticDiskIndex(str(folder), num_threads=2, num_nodes_to_cache=0)  # it hangs with one
    queries, truth = np.load(work / "queries.npy"), np.load(work / "truth.npy")
    index.search(queries[0], K, COMPLEXITY)
    built = {
        "build_cpu_seconds": seconds,
        "memory_bytes": (folder / "ann_pq_compressed.bin").stat().st_size / rows,  # which it reads into memory
        "disk_bytes": sum(file.stat().st_size for file in folder.iterdir()) / rows,
    }
    print(json.dumps(built), flush=True)
    for line in sys.stdin:
        complexity, beam, count = map(int, line.split())
        print(json.dumps(search(index, queries[:count], truth, complexity, beam)), flush=True)


if __name__ == "__main__":
    main()
