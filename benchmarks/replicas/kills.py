"""Kills workers at random moments: every job must come to one end, and publish one version at most."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.replicas.cluster import Cluster
from benchmarks.server import Server

LONGEST_SECONDS = 6.0
"""About the seconds that such a job takes."""
SILENT_SECONDS = 20.0
ENDS = ("succeeded", "failed", "cancelled")


def measure_kills(cluster: Cluster, trials: int, seed: int) -> dict[str, Any]:
    """Fit repeatedly with two workers, and kill the worker or the process of the job, once or twice.

    In every trial either the worker or the job's own process gets SIGKILL, at a random moment of the job's whole
    length; in every fourth the next try is killed too. A killed worker is replaced. A job that has ended must not
    change any more: all are read again at the end.
    """
    server, rng = cluster.servers[0], random.Random(seed)
    workers = [cluster.work(f"worker-{number}") for number in range(2)]
    ends: Counter[str] = Counter()
    recovered, faults, killed = [], [], 0
    ended: dict[str, dict[str, Any]] = {}
    for trial in range(trials):
        name = f"trial-{trial}"
        steps = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 16, "steps": 400}]
        body = {"name": name, "steps": steps, "source": {"path": "vectors.npy"}}
        job = server.call("POST", "/fit-transform", **body)["status_url"]
        deaths, since = [rng.uniform(0, LONGEST_SECONDS)], None
        if trial % 4 == 3:
            deaths.append(deaths[0] + rng.uniform(3, 16))
        begun, states = time.monotonic(), [server.call("GET", job)]
        while states[-1]["state"] not in ENDS:
            if time.monotonic() - begun > 240:
                faults.append(f"{name}: no end after 240 s")
                break
            if deaths and time.monotonic() - begun >= deaths[0]:
                deaths.pop(0)
                was_killed = kill_job(cluster, workers, rng.random() < 0.5)
                killed += was_killed
                since = time.monotonic() if was_killed else since
                workers = [w if w.poll() is None else cluster.work(f"worker-{n}") for n, w in enumerate(workers)]
            time.sleep(0.05)
            states.append(server.call("GET", job))
        if since is not None and states[-1]["state"] == "succeeded":
            recovered.append(time.monotonic() - since)
        faults += find_faults(server, name, states[-1])
        ended[job] = states[-1]
        ends[states[-1]["state"]] += 1
        print(f"\r\033[K{trial + 1}/{trials}, {killed} killed, {len(faults)} faults", end="", flush=True)
    print()
    time.sleep(SILENT_SECONDS)  # a worker that was thought dead would have spoken by then
    faults += [f"{job}: its end changed" for job, end in ended.items() if server.call("GET", job) != end]
    return {
        "trials": trials,
        "killed": killed,
        "ends": dict(ends),
        "faults": faults,
        "seconds_from_the_last_kill_to_success": [round(s, 1) for s in sorted(recovered)],
    }


def kill_job(cluster: Cluster, workers: "list[Any]", worker: bool) -> bool:
    """Send SIGKILL to a job's process, or to its worker.

    Returns:
        Whether there was one.
    """
    for pid in list_job_processes():
        starter = read_parent(read_parent(pid))  # between them is the process that jobs are forked from
        if starter in {process.pid for process in workers}:
            os.kill(starter if worker else pid, signal.SIGKILL)
            if worker:
                next(process for process in workers if process.pid == starter).wait()
            return True
    return False


def read_parent(pid: int) -> int:
    """Return the id of a process's parent, or 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def list_job_processes() -> list[int]:
    """List the processes of jobs on this machine."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"lathe.service.jobs.process" in path.read_bytes():
                pids.append(int(path.parent.name))
        except OSError:
            continue  # it has ended meanwhile
    return pids


def find_faults(server: Server, name: str, ended: dict[str, Any]) -> list[str]:
    """Return the faults of a trial: a version too many or too few, or a server that is not healthy."""
    faults = []
    answer = server.client.get(f"/chains/{name}")
    versions = len(answer.json()["versions"]) if answer.status_code == 200 else 0
    if versions != (ended["state"] == "succeeded"):
        faults.append(f"{name}: {ended['state']} with {versions} versions")
    if server.client.get("/health").status_code != 200:
        faults.append(f"{name}: the server is not well")
    return faults
