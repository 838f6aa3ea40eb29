"""Compares the transforms of another checkout with those of this one: seconds in alternating rounds, and outputs.

    git worktree add /tmp/before REVISION
    python -m benchmarks.checkouts --before /tmp/before

Outputs are compared bit by bit. Chains are fitted on synthetic rows with a mean and forty strong directions, in a new
process for each round.
"""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.search_path import search_path

ROOT = Path(__file__).parent.parent
STEPS = (
    "r2,pca:128",
    "abtt:3,whitening:64",
    "r2,geopres:128",
    "r2,geopres:128,nested=true,steps=200",
    "geopres:64,preset=paper,steps=20",
    "geopres:64,loss=positional,steps=30",
    "geopres:64,loss=angular,steps=30",
    "geopres:64,loss=spearman,steps=10",
    "autoencoder:64,steps=20",
    "flow:steps=10",
    "r2,pca:64,int8",
    "r2,pca:64,binary",
)
ROWS, DIMENSIONS, DIRECTIONS = 10_000, 384, 40


def main() -> None:
    """Run the rounds in both checkouts and write `checkouts.json`."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="folder of the other checkout")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--child", action="store_true", help="measure this process's own transforms")
    arguments = options.parse_args()
    if arguments.child:
        print(json.dumps(measure(STEPS[:2] if arguments.quick else STEPS)))
        return
    sides = {"before": arguments.before.resolve(), "now": ROOT}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, folder in sides.items():
            rounds[name].append(run_child(folder, arguments.quick))
    figures = compare(rounds)
    rows = [[f["what"], f"{f['before']:.3f}", f"{f['now']:.3f}", f"{f['ratio']:.2f}"] for f in figures["seconds"]]
    print(markdown_table(["", "before, s", "now, s", "ratio"], rows))
    print("outputs that differ:", figures["different"] or "none")
    print("raw figures:", write_report(arguments.out, "checkouts", figures), file=sys.stderr)


def run_child(folder: Path, quick: bool) -> dict[str, Any]:
    """Measure the transforms of a checkout in a new process with one thread."""
    command = [sys.executable, "-P", str(Path(__file__)), "--child", *(["--quick"] if quick else [])]
    paths = os.pathsep.join([search_path(folder), str(ROOT)])  # this file's own imports come from here
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}  # -P: benchmarks has a transforms.py too
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(ended.stdout))


def measure(chains: tuple[str, ...]) -> dict[str, Any]:
    """Fit, apply and fold each chain, and return the seconds of each and a digest of the outputs."""
    from lathe.transforms import Chain, Moments, parse_steps

    rows = synthetic_rows()
    seconds: dict[str, float] = {}
    digests: dict[str, str] = {}

    def timed(what: str, run: Callable[[], Any], repeats: int = 1) -> Any:
        durations = []
        for _ in range(repeats):
            began = time.perf_counter()
            result = run()
            durations.append(time.perf_counter() - began)
        seconds[what] = min(durations)
        return result

    Chain(parse_steps("r2,pca:8")).fit(rows[:500]).transform(rows)  # imports, and the first products of libraries
    timed("moments", lambda: Moments.from_vectors(rows), repeats=9)
    for steps in chains:
        chain = timed(f"fit {steps}", lambda steps=steps: Chain(parse_steps(steps)).fit(rows))  # type: ignore[misc]
        folded = chain.fold()
        outputs = timed(f"apply {steps}", lambda chain=chain: chain.transform(rows), repeats=9)  # type: ignore[misc]
        product = timed(f"apply folded {steps}", lambda folded=folded: folded.transform(rows), repeats=9)  # type: ignore[misc]
        digests[steps] = hashlib.sha256(outputs.tobytes() + product.tobytes()).hexdigest()
    return {"seconds": seconds, "digests": digests}


def synthetic_rows() -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return unit rows `(ROWS, DIMENSIONS)` with a large mean and forty directions of large variance."""
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(DIRECTIONS, DIMENSIONS))
    rows = generator.normal(size=(ROWS, DIRECTIONS)) @ directions + generator.normal(size=(ROWS, DIMENSIONS))
    rows += 3 * directions[0]
    unit: np.ndarray[Any, np.dtype[np.float32]] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(
        np.float32
    )
    return unit


def compare(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the median seconds of both sides, the median ratio of the rounds, and the chains whose outputs differ."""
    before, now = rounds["before"], rounds["now"]
    seconds = [
        {
            "what": what,
            "before": statistics.median(round_["seconds"][what] for round_ in before),
            "now": statistics.median(round_["seconds"][what] for round_ in now),
            "ratio": statistics.median(
                b["seconds"][what] / a["seconds"][what] for a, b in zip(before, now, strict=True)
            ),
        }
        for what in now[0]["seconds"]
    ]
    digests = [round_["digests"] for round_ in (*before, *now)]
    different = [steps for steps in digests[0] if len({by_steps[steps] for by_steps in digests}) > 1]
    return {"seconds": seconds, "different": different, "rounds": len(now)}


if __name__ == "__main__":
    main()
