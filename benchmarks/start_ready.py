"""Measures when `lathe serve` is ready with its default encoder, here and in another checkout, and where the time goes.

    git worktree add /tmp/before REVISION
    python -m benchmarks.start_ready --before /tmp/before

The servers of the two checkouts are started alternately. The steps of a start are timed one by one in processes of
their own, as the fork server, the encoder process and the server take them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.search_path import search_path
from benchmarks.server import Server
from benchmarks.start import list_descendants

ROOT = Path(__file__).parent.parent
RESAMPLES = 10_000

STEPS = {
    "encoder": """
import gc; gc.disable()
import torch; step("import torch")
import lathe.service.encoders.engine.worker; step("import Lathe's encoder process")
from lathe.service.processes.fork_server import PRELOADED
for name in PRELOADED[1:PRELOADED.index("transformers.models.bert.modeling_bert") + 1]:
    __import__(name); step("import " + name.partition(".")[0])
torch.set_num_threads(1)
from lathe.training.encoder import encoder, spec
load = encoder.load_with_chat_template
def timed(*arguments):
    model = load(*arguments); step("read the model's files and weights"); return model
encoder.load_with_chat_template = timed
request = {"spec": spec.DEFAULT_ENCODER.to_json(), "options": dict(threads=1, device="cpu", batch_tokens=None)}
lathe.service.encoders.engine.worker._load_encoder(request); step("hash the weights, and try probe texts")
""",
    "server": """
import lathe.service.cli.main; step("import the command")
import torch; step("import torch")
import lathe.service.cli.server; step("import the server")
from lathe.service.app import create_app
from lathe.service.settings import read_settings
app = create_app(read_settings()); step("open chains, indexes and jobs")
""",
}
"""Code that takes the steps of a process, by process; `step` ends a step."""

PREAMBLE = """
import json, time
begun, seconds = time.perf_counter(), {}
def step(name):
    global begun
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun
    begun = time.perf_counter()
"""


def main() -> None:
    """Run the rounds in both checkouts and write `start-ready.json`."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, required=True, help="folder of the other checkout")
    options.add_argument("--rounds", type=int, default=10)
    arguments = options.parse_args()
    checkouts = {"before": arguments.before.resolve(), "now": ROOT}
    starts: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    steps: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in checkouts}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        homes = {name: Path(folder) / name for name in checkouts}
        for name, checkout in checkouts.items():  # fills the state folder, and writes bytecode
            measure_start(checkout, homes[name])
        for _ in range(1 if arguments.quick else arguments.rounds):
            for name, checkout in checkouts.items():
                starts[name].append(measure_start(checkout, homes[name]))
                print(name, starts[name][-1], file=sys.stderr)
        for _ in range(1 if arguments.quick else 3):
            for name, checkout in checkouts.items():
                steps[name].append({process: measure_steps(checkout, homes[name], process) for process in STEPS})

    figures = {
        "starts": {name: summarize(rounds) for name, rounds in starts.items()},
        "difference": {
            what: compute_interval([b[what] - a[what] for a, b in zip(starts["before"], starts["now"], strict=True)])
            for what in starts["now"][0]
        },
        "steps": {name: take_medians(rounds) for name, rounds in steps.items()},
    }
    print(format_table(figures))
    print("raw figures:", write_report(arguments.out, "start-ready", figures), file=sys.stderr)


def measure_start(checkout: Path, home: Path) -> dict[str, float]:
    """Start a server, and return the seconds until it was ready and the CPU seconds of its processes until then."""
    begun = time.monotonic()
    server = Server(home, checkout=str(checkout))
    seconds = time.monotonic() - begun
    processes = [server.process.pid, *list_descendants(server.process.pid)]
    cpu_seconds = sum(map(read_cpu_seconds, processes))
    server.stop()
    return {"seconds until ready": round(seconds, 3), "seconds of CPU": round(cpu_seconds, 3)}


def read_cpu_seconds(process: int) -> float:
    """Return the seconds of CPU, user and system, that a process and its ended children have taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure_steps(checkout: Path, home: Path, process: str) -> dict[str, float]:
    """Return the seconds of each step of a process's start."""
    code = f"{PREAMBLE}{STEPS[process]}\nprint(json.dumps(seconds))"
    environment = os.environ | {"PYTHONPATH": search_path(checkout), "LATHE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def summarize(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the interval and all values of each figure of the rounds."""
    columns = {what: [round_[what] for round_ in rounds] for what in rounds[0]}
    return {what: compute_interval(values) | {"all": values} for what, values in columns.items()}


def compute_interval(values: list[float]) -> dict[str, Any]:
    """Return the median of values and its 95 % interval, by resampling them."""
    found = stats.bootstrap((values,), np.median, n_resamples=RESAMPLES, method="percentile", rng=0)
    interval = [round(float(bound), 3) for bound in found.confidence_interval]
    return {"median": round(statistics.median(values), 3), "interval": interval}


def take_medians(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the median seconds of each step, by process."""
    return {
        process: {
            step: round(statistics.median(round_[process][step] for round_ in rounds), 3) for step in rounds[0][process]
        }
        for process in rounds[0]
    }


def format_table(figures: dict[str, Any]) -> str:
    """Format the starts and the steps as a table with a column for each checkout."""
    rows = []
    for what, difference in figures["difference"].items():
        cells = [figures["starts"][name][what] for name in ("before", "now")]
        rows.append([what, *(format_interval(cell) for cell in cells), format_interval(difference)])
    for process in STEPS:
        before, now = (figures["steps"][name][process] for name in ("before", "now"))
        for step in before | now:
            rows.append([f"{process}: {step}", f"{before.get(step, 0):.2f}", f"{now.get(step, 0):.2f}", ""])
    return markdown_table(["", "before", "now", "difference"], rows)


def format_interval(figure: dict[str, Any]) -> str:
    """Format a median with its interval."""
    low, high = figure["interval"]
    return f"{figure['median']:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
