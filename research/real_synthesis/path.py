"""Synthesis from seeds to pairs with `lathe train synthesize`, during which lathe and the server are killed.

WORK/
├── job.yaml, seeds.jsonl, test.jsonl    what the synthesis reads
├── seed-pairs.jsonl, real-pairs.jsonl   pairs of the data set, to train on for comparison
├── pairs/                               what the synthesis writes
├── runs.json                            seconds, kills and failures of each run
└── models/                              trained encoders               encoders.py
"""

import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson

from benchmarks.server import LATHE, own_environment
from benchmarks.synthesis import read_finance

MAX_ANSWER = 1200
"""Characters of a seed's answer at most, since a small model reads long prompts badly and slowly."""
TIMEOUT_SECONDS = 900.0
"""Maximum time for one answer, since four requests share the cores."""
STAGES = {
    "personas": {"temperature": 0.7, "max_tokens": 100},
    "queries": {"temperature": 0.7, "max_tokens": 160},
    "filter": {"max_tokens": 8},
    "documents": {"temperature": 0.5, "max_tokens": 256},
}
"""Settings of the stages: small models are incoherent at a temperature of 1, and often write up to the limit."""
RUNS: tuple[tuple[str | None, bool], ...] = (("lathe", True), ("server", True), (None, False))
"""What is killed in each run, and whether the job has the filter."""
DOWN_SECONDS = 5.0
"""How long the server stays down after it is killed."""
START_SECONDS = 120.0
"""How long a server may take to start."""


@dataclass(frozen=True)
class Plan:
    """Settings of the run.

    Attributes:
        data: folder with finance/fiqa_qa.
        work: folder that a stopped run continues in.
        endpoint: address of the language model.
        model: name of the language model at the endpoint.
        serve: command that starts the server; None if it is not to be killed.
        seeds: number of questions with answers to start from.
        templates: which shipped prompts are used: `full` or `short`.
    """

    data: Path
    work: Path
    endpoint: str
    model: str
    serve: str | None
    seeds: int
    templates: str = "short"

    @property
    def folder(self) -> Path:
        """Folder of the data set."""
        return self.data / "finance" / "fiqa_qa"

    @property
    def pairs(self) -> Path:
        """Output folder of the synthesis.

        The pairs themselves are in its pairs.jsonl.
        """
        return self.work / "pairs"


class ModelServer:
    """Server of the language model, started by a command, and again after each kill.

    Args:
        command: command that serves in the foreground.
        endpoint: address under which it then answers.
    """

    def __init__(self, command: str, endpoint: str) -> None:
        self.command, self.endpoint = shlex.split(command), endpoint
        self.cpu_seconds = 0.0
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        """Start the server and wait until it answers.

        Raises:
            SystemExit: if it does not.
        """
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if httpx2.get(f"{self.endpoint}/models", timeout=5.0, trust_env=False).is_success:
                    return process
            except httpx2.HTTPError:
                time.sleep(0.2)
        process.kill()
        raise SystemExit(f"the server does not answer at {self.endpoint}/models: {shlex.join(self.command)}")

    def read_cpu_seconds(self) -> float:
        """Return the CPU time that the server and its killed predecessors have used, in seconds."""
        times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return self.cpu_seconds + (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill the server, and add the CPU time that it used to `cpu_seconds`."""
        self.process.kill()
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_seconds += used.ru_utime + used.ru_stime

    def kill_and_restart(self) -> None:
        """Kill the server, and start it again after `DOWN_SECONDS`."""
        self.kill()
        time.sleep(DOWN_SECONDS)
        self.process = self._start()


def write_inputs(plan: Plan) -> None:
    """Write seeds, held-out texts, and the pairs of the data set that are trained on for comparison."""
    finance = read_finance(plan.folder)
    chance = random.Random(0)
    seeds = chance.sample([pair for pair in finance.pairs if len(pair[1]) <= MAX_ANSWER], plan.seeds)
    others = [pair for pair in finance.pairs if pair not in seeds]
    chance.shuffle(others)
    plan.work.mkdir(parents=True, exist_ok=True)
    write_lines(plan.work / "seeds.jsonl", ("question", "answer"), seeds)
    write_lines(plan.work / "test.jsonl", ("question", "answer"), finance.held_out)
    write_lines(plan.work / "seed-pairs.jsonl", ("anchor", "positive"), seeds)
    write_lines(plan.work / "real-pairs.jsonl", ("anchor", "positive"), others)


def write_job(plan: Plan, has_filter: bool) -> None:
    """Write the job of `lathe train synthesize` to job.yaml, with or without the filter."""
    job = {
        "endpoint": {"base_url": plan.endpoint, "model": plan.model, "timeout": TIMEOUT_SECONDS},
        "seeds": {"jsonl": "seeds.jsonl"},
        "templates": {"shipped": plan.templates},
        "stages": STAGES,
        "filter": has_filter,
        "limits": {"concurrency": 4},
        "test_sets": [{"jsonl": "test.jsonl", "fields": ["question", "answer"]}],
    }
    (plan.work / "job.yaml").write_text(json.dumps(job, indent=1))  # JSON is YAML


def write_lines(path: Path, fields: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
    """Write rows of two texts as JSON lines with these fields."""
    path.write_text("".join(json.dumps(dict(zip(fields, row, strict=True))) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def synthesize(plan: Plan) -> list[dict[str, Any]]:
    """Make the pairs in the three runs of `RUNS`, and return what `run_once` returns of each.

    lathe is killed in the first run and the server in the second. The third leaves the filter out, after the second has
    counted its answers. Runs that are in runs.json are not repeated.
    """
    path = plan.work / "runs.json"
    runs: list[dict[str, Any]] = orjson.loads(path.read_bytes()) if path.exists() else []
    if len(runs) == len(RUNS):
        return runs
    server = ModelServer(plan.serve, plan.endpoint) if plan.serve else None
    try:
        for killed, has_filter in RUNS[len(runs) :]:
            write_job(plan, has_filter)
            used = server.read_cpu_seconds() if server else None
            runs.append(run_once(plan, server, killed))
            if server and used is not None:
                runs[-1]["server_cpu_seconds"] = round(server.read_cpu_seconds() - used, 1)
            if runs[-1]["ended"] == "failed":
                raise SystemExit(f"lathe train synthesize failed: {runs[-1]['said']}")
            path.write_bytes(orjson.dumps(runs, option=orjson.OPT_INDENT_2))
    finally:
        if server:
            server.kill()
    return runs


def run_once(plan: Plan, server: ModelServer | None, killed: str | None) -> dict[str, Any]:
    """Run `lathe train synthesize` until it ends or is killed.

    Args:
        plan: settings of the run.
        server: the server, if it may be killed; else None.
        killed: what is killed after as many answers of this run as there are seeds: `lathe`, `server`, or None.

    Returns:
        Seconds, answers on disk, failures, last line.
    """
    before, begun = count_answers(plan), time.monotonic()
    words = [*LATHE, "train", "synthesize", "--config", "job.yaml", "--out", "pairs", "--yes"]
    log = plan.work / "lathe.log"
    with log.open("wb") as said:
        running = subprocess.Popen(
            words, cwd=plan.work, env=own_environment(plan.work / "home"), stdout=said, stderr=said
        )
        if killed:
            while running.poll() is None and count_answers(plan) < before + plan.seeds:
                time.sleep(0.1)
        if killed == "lathe":
            running.send_signal(signal.SIGKILL)
        elif killed == "server" and server:
            server.kill_and_restart()
        running.wait()
    seconds, lines = time.monotonic() - begun, log.read_text(errors="replace").splitlines()
    report = {} if running.returncode else orjson.loads((plan.pairs / "report.json").read_bytes())
    ended = {0: "complete", -signal.SIGKILL: "killed"}.get(running.returncode, "failed")
    return {
        "killed": killed,
        "ended": ended,
        "seconds": round(seconds, 1),
        "answers_before": before,
        "answers": count_answers(plan),
        "failures": report.get("this_run", {}).get("failures"),
        "said": lines[-1] if lines else "",
    }


def count_answers(plan: Plan) -> int:
    """Count the answers on disk."""
    return sum(path.read_bytes().count(b"\n") for path in (plan.pairs / "answers").glob("*.jsonl"))
