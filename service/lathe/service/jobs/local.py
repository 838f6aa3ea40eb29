"""Jobs of a single server: one training and one other job run at a time."""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from lathe.service.errors import UnknownNameError
from lathe.service.jobs.jobs import ResultFile
from lathe.service.jobs.requests import TRAINING_KINDS, JobRequest, parse_request
from lathe.service.jobs.store import Job, JobStore
from lathe.service.processes.program import Process, ProcessStarter, Program
from lathe.training.thread_problem import ThreadProblem
from lathe.transforms.beneath import OutsideError, open_beneath
from lathe.transforms.files import continue_file

POLL_SECONDS = 0.2
"""Seconds between two checks of the jobs."""

log = logging.getLogger(__name__)


class LocalJobs:
    """Job manager that runs the jobs of a store in child processes.

    It has the methods of `lathe.service.jobs.jobs.Jobs`. The processes outlive the server: after a restart, running
    jobs are monitored by their locks, and queued ones are started.
    """

    def __init__(self, store: JobStore, environment: dict[str, str], processes: ProcessStarter) -> None:
        """Store the configuration without starting anything."""
        self.store = store
        self.environment = environment
        self.processes = processes
        self.children: dict[str, Process] = {}
        self.active: list[str] = []
        self.restarts: dict[str, int] = {}
        self.guard = threading.Lock()
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("managing the jobs")
        self.thread = threading.Thread(target=self.run, name="jobs", daemon=True)

    def start(self) -> None:
        """Load the unended jobs of an earlier server, and start the thread that runs them."""
        self.active = [job.id for job in reversed(self.store.list()) if not job.ended]
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread that manages the jobs, waiting up to 5 s for it. Running jobs go on."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)

    @property
    def workers(self) -> None:
        """None: this server runs the jobs itself."""
        return None

    def warnings(self) -> list[str]:
        """Return what keeps jobs from being managed.

        A job that cannot be started is not among it: it fails, with the reason.
        """
        return [self.unexpected.message] if self.unexpected.message else []

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Create a job of a kind such as "fit" with its request and input files, queue it, and return it."""
        job = self.store.create(kind, request, files)
        with self.guard:
            self.active.append(job.id)
        return job

    def get(self, job_id: str) -> Job:
        """Return a job in its current state.

        Raises:
            UnknownNameError: if there is no such job.
        """
        return self.store.get(job_id)

    def list(self) -> list[Job]:
        """Return all jobs, newest first."""
        return self.store.list()

    def read_request(self, job_id: str) -> JobRequest | None:
        """Return the validated request of a job, or None if it is damaged, which is logged."""
        job, content = self.store.read(job_id), self.store.read_request(job_id)
        try:
            return parse_request(job.kind, content)
        except ValueError as error:
            log.error("job %s: %s", job_id, error)
            return None

    def open_result(self, job_id: str, name: str) -> ResultFile | None:
        """Open the result file `name` of a job for reading, or return None if the job has no such file."""
        self.store.find_folder(job_id)
        try:
            return ResultFile.from_file(open_beneath(self.store.root, f"{job_id}/{name}"))
        except (FileNotFoundError, OutsideError):
            return None

    def cancel(self, job_id: str) -> Job:
        """Cancel a job, terminate its process, and wait up to 3 s for its end. Return the job as it then is."""
        job = self.store.cancel(job_id)
        child = self.children.get(job_id)
        if child is not None:
            # A process may be started whose id is not in its file yet, so `store.cancel` could not signal it.
            child.terminate()
        deadline = time.monotonic() + 3
        while not job.ended and time.monotonic() < deadline:
            time.sleep(0.05)
            job = self.store.settle(self.store.read(job_id))
        return job

    def run(self) -> None:
        """Start and clean up jobs every `POLL_SECONDS` until the thread is stopped. Errors are noted, not raised."""
        while not self.stopping.wait(POLL_SECONDS):
            with self.unexpected.watch():
                self.manage_jobs()

    def manage_jobs(self) -> None:
        """Remove ended jobs from the queue, and start the first queued job of each class of which no job is running.

        The classes are trainings and all other jobs, so that neither waits for the other.
        """
        with self.guard:
            waiting = list(self.active)
        busy: set[bool] = set()
        for job_id in waiting:
            if self._has_ended(job_id):
                child = self.children.pop(job_id, None)
                self.restarts.pop(job_id, None)
                if child is not None:
                    child.wait()  # it has written its end and is about to exit
                with self.guard:
                    self.active.remove(job_id)
                continue
            job = self.store.read(job_id)
            is_training = job.kind in TRAINING_KINDS
            if is_training in busy:
                continue
            busy.add(is_training)  # one at a time, in the order they came
            # A running job without a child here is one of an earlier server; its lock tells when it ends.
            if job_id not in self.children and job.state == "queued":
                self._start_or_fail(job_id)

    def _has_ended(self, job_id: str) -> bool:
        """Return whether a job has ended or was removed. A job whose process died is first marked as ended.

        A training whose process died is queued again instead, once, and its process is forgotten.
        """
        try:
            job = self.store.get(job_id)
        except UnknownNameError:
            return True
        child = self.children.get(job_id)
        if job.ended or child is None or child.poll() is None:
            return job.ended

        if job.state == "running":
            job = self.store.settle(self.store.read(job_id))
        if job.tries > self.restarts.get(job_id, 0):
            # Its process died, and it was queued again.
            self.restarts[job_id] = job.tries
            child.wait()
            del self.children[job_id]
        else:
            job = self.store.settle(self.store.read(job_id))
        return job.ended

    def _start_or_fail(self, job_id: str) -> None:
        try:
            self.children[job_id] = self._start_process(job_id)
        except OSError:
            log.exception("the process of job %s cannot be started", job_id)
            self.store.settle(self.store.read(job_id))

    def _start_process(self, job_id: str) -> Process:
        """Start and return the process of a job, which outlives this server and logs to the job's `log.txt`."""
        folder = self.store.find_folder(job_id)
        with continue_file(folder / "log.txt", append=True) as output:
            program = Program(
                "lathe.service.jobs.local_process",
                (str(folder),),
                self.environment,
                output=output.fileno(),
                lasting=True,
            )
            return self.processes.start(program)
