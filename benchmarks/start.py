"""Measures how long Lathe's processes take to start, and the memory of an encoder process.

Every figure is the median of some rounds. Each round also times `python -c "import torch"`, so that figures of other
machines can be compared with these. With `--before NAME=COMMAND`, another installation is measured in the same rounds.
"""

import argparse
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server, own_environment

CPU_TARGETS = {"help": 0.5, "version": 0.5, "chains list": 0.7}
TARGETS = CPU_TARGETS | {"serve ready": 4.0, "killed encoder answers": 1.5, "queued fit begins": 1.0}
"""Targets in seconds: of CPU for commands, of wall time for the others."""

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.005
TEXTS = [f"A lathe turns piece {number} of the wood against a tool, and shavings fall." for number in range(300)]


@dataclass(frozen=True)
class Installation:
    """An installation of Lathe to measure.

    Attributes:
        name: name in the report.
        command: command of the `lathe` program.
        home: a state folder of its own, which an earlier start has filled.
    """

    name: str
    command: tuple[str, ...]
    home: Path

    @property
    def python(self) -> str:
        """The interpreter beside the program."""
        return str(Path(self.command[0]).with_name("python"))

    def environment(self, **settings: str) -> dict[str, str]:
        """Return the environment variables of its processes."""
        variables = own_environment(self.home, **settings)
        return {name: value for name, value in variables.items() if name != "PYTHONPATH"}


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--before", metavar="NAME=COMMAND", help="another `lathe` program, measured in turns")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        installations = list(list_installations(arguments, Path(folder)))
        for installation in installations:  # the first start fills the folder, and the disk's cache
            time_command(installation, "chains", "list")
            with run_server(installation):
                pass
        samples: dict[str, dict[str, list[float]]] = {installation.name: {} for installation in installations}
        for number in range(1 if arguments.quick else arguments.rounds):
            for installation in installations:
                for name, seconds in measure_round(installation, number):
                    samples[installation.name].setdefault(name, []).append(seconds)
                    print(f"{installation.name}: {name} {seconds:.2f} s", file=sys.stderr)
        memory = {installation.name: measure_memory(installation) for installation in installations}
        bytecode = measure_bytecode(1 if arguments.quick else arguments.rounds)
    figures = {
        name: {
            "seconds": {of: {"median": statistics.median(times), "all": times} for of, times in per_name.items()},
            "memory": memory[name],
        }
        for name, per_name in samples.items()
    }
    print(format_table(figures))
    print(
        "raw figures:",
        write_report(arguments.out, "start", {"targets": TARGETS, "bytecode": bytecode, **figures}),
        file=sys.stderr,
    )


def list_installations(arguments: argparse.Namespace, folder: Path) -> Iterator[Installation]:
    """Yield the installations to measure, each with a state folder of its own."""
    if arguments.before:
        name, _, command = arguments.before.partition("=")
        yield Installation(name, tuple(shlex.split(command)), folder / "before")
    yield Installation("now", (str(Path(sys.executable).with_name("lathe")),), folder / "now")


def measure_round(installation: Installation, number: int) -> Iterator[tuple[str, float]]:
    """Yield the name and seconds of each figure, measured once."""
    torch = [installation.python, "-c", "import torch"]
    yield "import torch", measure_cpu_seconds(torch, installation.environment())
    yield "help", time_command(installation, "--help")
    yield "version", time_command(installation, "--version")
    yield "chains list", time_command(installation, "chains", "list")
    with run_server(installation) as (seconds, client, server):
        yield "serve ready", seconds
        yield "queued fit begins", time_fit_start(installation, client, number)
        yield "killed encoder answers", time_replacement(client, server)


def time_command(installation: Installation, *arguments: str) -> float:
    """Return the seconds of CPU that a command takes."""
    return measure_cpu_seconds([*installation.command, *arguments], installation.environment())


def measure_cpu_seconds(command: list[str], environment: Mapping[str, str]) -> float:
    """Run a command, and return the seconds of CPU, user and system, that it and its children take.

    Raises:
        SystemExit: if the command fails.
    """
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=tempfile.gettempdir())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{shlex.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


@contextmanager
def run_server(installation: Installation, **settings: str) -> Iterator[tuple[float, httpx.Client, int]]:
    """Run a server for the block.

    Yields:
        The seconds until it was ready, a client with the admin key, and the process id.
    """
    begun = time.monotonic()
    server = Server(
        installation.home, lathe=installation.command, LATHE_CACHE_BYTES="0", LATHE_DTYPE="float32", **settings
    )
    try:
        yield time.monotonic() - begun, server.client, server.process.pid
    finally:
        server.stop()


def time_replacement(client: httpx.Client, server: int) -> float:
    """Kill every encoder process with SIGKILL, and return the seconds until a text is answered again."""
    for worker in list_encoder_processes(server):
        os.kill(worker, signal.SIGKILL)
    begun = time.monotonic()
    wait_until(lambda: client.post("/embed", json={"inputs": "a text"}).status_code != 200)
    wait_until(lambda: client.post("/embed", json={"inputs": "a text"}).status_code == 200)
    return time.monotonic() - begun


def time_fit_start(installation: Installation, client: httpx.Client, number: int) -> float:
    """Queue a small fit, and return the seconds until it runs.

    The fit is then cancelled.
    """
    body = {"name": f"small{number}", "steps": [{"kind": "r2"}], "source": {"texts": TEXTS}}
    begun = time.monotonic()
    job = client.post("/fit-transform", json=body).raise_for_status().json()["job_id"]
    state = installation.home / "jobs" / job / "job.json"
    wait_until(lambda: '"queued"' not in state.read_text())
    seconds = time.monotonic() - begun
    client.delete(f"/jobs/{job}").raise_for_status()
    wait_until(lambda: client.get(f"/jobs/{job}").json()["state"] not in ("queued", "running"))
    return seconds


def measure_memory(installation: Installation) -> dict[str, Any]:
    """Measure the megabytes of a server with one and with two encoder processes.

    `proportional` shares each page among the processes that have it; the sum over processes is what they really take.
    """
    megabytes_by_part: dict[str, Any] = {}
    for workers in (1, 2):
        with run_server(installation, LATHE_WORKERS=str(workers), LATHE_THREADS="2") as (_, client, server):
            wait_until(lambda count=workers: len(list_encoder_processes(server)) == count)  # type: ignore[misc]
            wait_until(lambda count=workers: client.get("/encoders").json()[0].get("workers") == count)  # type: ignore[misc]
            for number in range(20):
                client.post("/embed", json={"inputs": [f"text {number} {n}" for n in range(8)]}).raise_for_status()
            everything = [server, *list_descendants(server)]
            megabytes_by_part[f"encoder processes: {workers}"] = {
                "sum": sum(read_proportional_megabytes(process) for process in everything),
                "processes": {
                    describe_process(process): round(read_proportional_megabytes(process), 1) for process in everything
                },
            }
    sums = [figures["sum"] for figures in megabytes_by_part.values()]
    return megabytes_by_part | {"a second encoder process": round(sums[1] - sums[0], 1)}


def measure_bytecode(rounds: int) -> dict[str, Any]:
    """Measure the seconds of CPU that compiling at install takes, and that an encoder process then saves.

    Each round compiles into an empty folder of its own, so that the installation's bytecode is left alone.
    """
    modules = "import lathe.service.encoders.engine.worker, sentence_transformers"
    imports = [sys.executable, "-P", "-W", "ignore", "-c", modules]
    cpu_seconds: dict[str, list[float]] = {"compile at install": [], "start with bytecode": [], "start without": []}
    megabytes = 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
            prefix = {"PYTHONPYCACHEPREFIX": folder}
            clean = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | prefix
            compiling = [sys.executable, "-P", "-W", "ignore", "-m", "lathe.service.processes.precompile"]
            cpu_seconds["compile at install"].append(measure_cpu_seconds(compiling, clean))
            cpu_seconds["start with bytecode"].append(measure_cpu_seconds(imports, clean))
            without = {"PYTHONPYCACHEPREFIX": empty, "PYTHONDONTWRITEBYTECODE": "1"}
            cpu_seconds["start without"].append(measure_cpu_seconds(imports, clean | without))
            megabytes = sum(path.stat().st_size for path in Path(folder).rglob("*.pyc")) / 1e6
    medians = {name: {"median": statistics.median(seconds), "all": seconds} for name, seconds in cpu_seconds.items()}
    return {"seconds of CPU": medians, "megabytes": round(megabytes, 1)}


def read_proportional_megabytes(process: int) -> float:
    """Return the memory of a process, with each shared page divided among the processes that have it."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    kilobytes = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(kilobytes[1]) / 1024 if kilobytes else 0.0


def describe_process(process: int) -> str:
    """Return the id of a process, and the module or command that it runs."""
    words = Path(f"/proc/{process}/cmdline").read_bytes().decode().replace("\0", " ").split()
    modules = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "-m"]
    return f"{process} {modules[0] if modules else 'server'}"


def list_encoder_processes(server: int) -> list[int]:
    """List the processes of a server that have loaded a model."""
    return [process for process in list_descendants(server) if "encoders.engine.worker" in describe_process(process)]


def list_descendants(process: int) -> list[int]:
    """List the children of a process and their descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    children = [child for child, parent in parents.items() if parent == process]
    return children + [below for child in children for below in list_descendants(child)]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition.

    Raises:
        SystemExit: if it does not hold within `WAIT_SECONDS`.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("waited too long")
        time.sleep(POLL_SECONDS)


def format_table(figures: Mapping[str, Any]) -> str:
    """Format the medians as a table with a column for each installation."""
    rows = [
        [name, f"{TARGETS[name]:.1f}" if name in TARGETS else "–"]
        + [f"{of['seconds'][name]['median']:.2f}" for of in figures.values()]
        for name in next(iter(figures.values()))["seconds"]
    ]
    memory = ["MB of a second encoder process", "–"]
    rows.append(memory + [f"{of['memory']['a second encoder process']:.0f}" for of in figures.values()])
    return markdown_table(["seconds", "wanted", *figures], rows)


if __name__ == "__main__":
    main()
