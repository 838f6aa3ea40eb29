"""Measures replicas that share a Redis: how soon they agree, what they save, jobs of killed workers, memory.

Starts a redis-server, two servers, workers and nginx on free ports, each process with --threads threads.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.replicas.cluster import Cluster
from benchmarks.replicas.kills import measure_kills
from benchmarks.replicas.soak import measure_soak
from benchmarks.replicas.switch import NAME, measure_cache, measure_switch, measure_throughput
from benchmarks.report import parser, write_report

PARTS = ("switch", "cache", "throughput", "soak", "kills")


def main() -> None:
    """Measure, print and write the figures.

    The exit status is 1 if killing workers led to faults.
    """
    options = parser(__doc__)
    options.add_argument("--threads", type=int, default=1, help="of each server")
    options.add_argument("--trials", type=int, default=50, help="of killing workers")
    options.add_argument("--minutes", type=float, default=10.0, help="of mixed load")
    options.add_argument("--only", choices=PARTS, action="append", help="some parts; the soak takes the switch's chain")
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    parts = arguments.only or PARTS
    quick = arguments.quick
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), arguments.threads)
        np.save(Path(folder) / "vectors.npy", np.random.default_rng(0).normal(size=(3000, 64)).astype(np.float32))
        try:
            for name in ("one", "two"):
                cluster.serve(name)
            if {"switch", "soak"} & set(parts):
                worker = cluster.work("first-worker")
                figures["switch"] = measure_switch(cluster, 6 if quick else 60)
                worker.kill()
                worker.wait()
            if "cache" in parts:
                figures["cache"] = measure_cache(cluster, 32 if quick else 400)
            if "throughput" in parts:
                figures["throughput"] = measure_throughput(cluster, 10 if quick else 60, 2 if quick else 6)
            if "soak" in parts:
                figures["soak"] = measure_soak(cluster, 0.3 if quick else arguments.minutes, NAME, arguments.seed)
            if "kills" in parts:
                figures["kills"] = measure_kills(cluster, 3 if quick else arguments.trials, arguments.seed)
        finally:
            cluster.stop()
    print(json.dumps(figures, indent=1))
    print("raw figures:", write_report(arguments.out, "replicas", figures), file=sys.stderr)
    if figures.get("kills", {}).get("faults"):
        sys.exit(1)


if __name__ == "__main__":
    main()
