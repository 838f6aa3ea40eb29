"""Processes that have loaded the libraries, or a model, and go from one app under test to the next.

A process takes seconds to import torch and sentence-transformers. Apps in the test's own process get
encoders and jobs here that are real processes, only not new ones; those of `lathe serve` are left alone.
"""

import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from service.engine.process import EncoderInfo, Reply, WorkerProcess
from service.engine.work import Part
from service.jobs.local import LocalJobs
from service.services import Services
from training.spec import DEFAULT_MODEL, EncoderSpec

POLL_SECONDS = 0.01


class WarmProcesses:
    """The processes that nobody uses now."""

    def __init__(self) -> None:
        self.workers: list[tuple[EncoderSpec, WorkerProcess, EncoderInfo]] = []
        self.hosts: list[subprocess.Popen[str]] = []

    def serve(self, services: Services) -> None:
        """Let an app that is not started yet take its processes from here."""
        for engine in services.embedder.engines.values():
            if engine.spec.model == DEFAULT_MODEL:  # files of other models may change between two tests
                engine.start_worker = self.lender(engine.start_worker)
        if isinstance(services.jobs, LocalJobs):
            services.jobs.start_process = self.start_job

    def lender(self, start: Callable[[EncoderSpec], WorkerProcess]) -> Callable[[EncoderSpec], "LentWorker"]:
        """Gives an idle worker of a spec, or starts one."""

        def lend(spec: EncoderSpec) -> LentWorker:
            for entry in self.workers:
                if entry[0] == spec:
                    self.workers.remove(entry)
                    return LentWorker(self, entry[1], entry[2])
            return LentWorker(self, start(spec))

        return lend

    def start_job(self, folder: Path, environment: Mapping[str, str]) -> "HostedJob":
        """Have a job done by an idle host, or by a new one."""
        return HostedJob(self, self.hosts.pop() if self.hosts else start_host(), folder, environment)

    def close(self) -> None:
        """End them all."""
        for _, worker, _ in self.workers:
            worker.stop()
        for host in self.hosts:
            host.kill()
            end(host)


class LentWorker:
    """A worker process for one app; it goes to the next one unless it owes an answer."""

    def __init__(self, warm: WarmProcesses, worker: WorkerProcess, info: EncoderInfo | None = None) -> None:
        self.warm, self.worker, self.info = warm, worker, info
        self.process = worker.process
        self.guard = threading.Lock()
        self.owed = 0
        self.returned = False

    def wait_ready(self) -> EncoderInfo:
        if self.info is None:
            self.info = self.worker.wait_ready()
        return self.info

    def send(self, parts: list[Part]) -> None:
        with self.guard:
            if self.returned:
                raise EOFError
            self.owed += 1
        self.worker.send(parts)

    def receive(self, seconds: float) -> Reply:
        reply = self.worker.receive(seconds)
        with self.guard:
            self.owed -= 1
        return reply

    def alive(self) -> bool:
        return self.worker.alive()

    def stop(self) -> None:
        with self.guard:
            if self.returned:
                return
            self.returned = True
        if self.info is None or self.owed or not self.worker.alive():
            self.worker.stop()
        else:
            self.warm.workers.append((self.worker.spec, self.worker, self.info))


def start_host() -> subprocess.Popen[str]:
    """A process that does jobs one after another."""
    command = [sys.executable, "-m", "tests.service.job_host"]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)


def end(host: subprocess.Popen[str]) -> int:
    """Wait until a host that was killed is gone; gives its exit status."""
    with host:
        return host.wait()


class HostedJob:
    """A job in a host, looked at as if it were a process of its own."""

    def __init__(
        self, warm: WarmProcesses, host: subprocess.Popen[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.warm, self.host = warm, host
        self.status: int | None = None
        host.stdin.write(json.dumps({"folder": str(folder), "environment": dict(environment)}) + "\n")
        host.stdin.flush()

    def poll(self) -> int | None:
        if self.status is None and select.select([self.host.stdout], [], [], 0)[0]:
            if self.host.stdout.readline():
                self.status = 0
                self.warm.hosts.append(self.host)
            else:
                self.status = end(self.host)
        return self.status

    def wait(self) -> int:
        while (status := self.poll()) is None:
            time.sleep(POLL_SECONDS)
        return status

    def terminate(self) -> None:
        if self.poll() is None:
            self.host.terminate()
