"""Jobs of all replicas, stored in Redis and run by `lathe worker`."""

import builtins
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from redis import exceptions as redis_errors

from lathe.service.home import Home
from lathe.service.jobs.jobs import ResultFile
from lathe.service.jobs.redis.heartbeats import (
    build_queue_name,
    describe_missing_worker,
    list_live_workers,
)
from lathe.service.jobs.redis.queue import LOST_SECONDS, JobRecords
from lathe.service.jobs.requests import TRAINING_KINDS, JobRequest, parse_request
from lathe.service.jobs.store import Job, create_job
from lathe.service.jobs.worker_class import COMMANDS, WorkerClass
from lathe.service.processes.program import Process, ProcessStarter, Program
from lathe.service.redis.connection import RedisConnection, as_unavailable, note_damage
from lathe.training.thread_problem import ThreadProblem

POLL_SECONDS = 1.0
"""Seconds between two checks of the jobs."""
PRUNE_SECONDS = 10.0
"""Seconds between two removals of old jobs."""
CANCEL_SECONDS = 5.0
"""Maximum seconds that `cancel` waits for a running job to end."""
AGAIN_SECONDS = 10.0
"""Seconds before a state folder's own worker that failed is started again."""
OWN_KINDS = frozenset({"reindex"})
"""Kinds of jobs on files of this state folder, which no other machine has."""

log = logging.getLogger(__name__)


class SharedJobs:
    """Job manager of jobs in Redis.

    It has the methods of `lathe.service.jobs.jobs.Jobs`. Jobs on this state folder's indexes have a queue of their own,
    and a worker that is started when there are any.

    Args:
        connection: connection to Redis.
        home: the state folder.
        environment: environment variables of the state folder's own worker.
        processes: starts that worker.
    """

    def __init__(
        self, connection: RedisConnection, home: Home, environment: dict[str, str], processes: ProcessStarter
    ) -> None:
        self.connection = connection
        self.home = home
        self.environment = environment
        self.processes = processes
        self.records = JobRecords(connection.client)
        self.own_worker: Process | None = None
        self.not_before = self.patient_until = self.pruned_at = 0.0
        self.trouble: str | None = None
        self.seen: dict[WorkerClass, tuple[int, int]] = {}
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("managing the jobs")
        self.thread = threading.Thread(target=self.run, name="jobs", daemon=True)

    def start(self) -> None:
        """Start the thread that manages the jobs."""
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread that manages the jobs, waiting up to 5 s for it. Running jobs go on."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)

    @property
    def workers(self) -> dict[WorkerClass, int] | None:
        """Number of live workers of this version of Lathe, by class.

        The result is None while Redis is unreachable.
        """
        return {name: workers for name, (_, workers) in self.seen.items()} if self.seen and self.connection.up else None

    def warnings(self) -> list[str]:
        """Return warning sentences: if managing jobs fails, and if jobs wait while no worker of their class is alive.

        While Redis is down, the second kind of warning is left out.
        """
        warnings = [self.unexpected.message] if self.unexpected.message else []
        if self.trouble is not None and self.connection.up:
            warnings.append(f"jobs cannot be managed: {self.trouble}")
        for name, (waiting, workers) in self.seen.items() if self.connection.up else ():
            if waiting and not workers:
                warnings.append(f"{name} wait ({waiting}) and {describe_missing_worker(build_queue_name(name))}")
        return warnings

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Create a job of a kind such as "fit" in Redis with its request and input files, queue it, and return it."""
        job = create_job(kind)
        queue = build_queue_name(
            "trainings" if kind in TRAINING_KINDS else "jobs",
            self.home.read_or_create_id() if kind in OWN_KINDS else None,
        )
        with self.connection.reached():
            self.records.add(job, queue, request, files)
        return job

    def get(self, job_id: str) -> Job:
        """Return a job in its current state."""
        with self.connection.reached():
            return self.records.get(job_id)

    def list(self) -> builtins.list[Job]:
        """Return all jobs, newest first."""
        with self.connection.reached():
            return self.records.list()

    def read_request(self, job_id: str) -> JobRequest | None:
        """Return the validated request of a job, or None if it is damaged, which is counted and logged."""
        with self.connection.reached():
            job, content = self.records.get(job_id), self.records.read_request(job_id)
        try:
            return parse_request(job.kind, content)
        except ValueError as error:
            note_damage("job request", job_id, str(error))
            return None

    def cancel(self, job_id: str) -> Job:
        """Cancel a job and wait up to `CANCEL_SECONDS` for its end. Return the job as it then is.

        The worker kills the process of a running job.
        """
        with self.connection.reached():
            job = self.records.cancel(job_id)
            deadline = time.monotonic() + CANCEL_SECONDS
            while not job.ended and time.monotonic() < deadline:
                time.sleep(0.1)
                job = self.records.get(job_id)
            return job

    def open_result(self, job_id: str, name: str) -> ResultFile | None:
        """Open the result file `name` of a job, read from Redis piece by piece. None if the job has no such file."""
        with self.connection.reached():
            self.records.find(job_id)
            return self.records.files.read(job_id, name)

    def run(self) -> None:
        """Manage the jobs every `POLL_SECONDS` until the thread is stopped, except while Redis is down.

        Errors are logged. For `LOST_SECONDS` after an outage no job is requeued, because workers could send no
        heartbeat either.
        """
        while not self.stopping.wait(POLL_SECONDS):
            if not self.connection.up:
                self.patient_until = time.monotonic() + LOST_SECONDS  # workers could send no heartbeat either
                continue
            with self.unexpected.watch():
                self._manage_or_log()

    def _manage_or_log(self) -> None:
        """Call `manage_jobs`, and log an error of Redis instead of raising it, unless it was the last one too."""
        try:
            self.manage_jobs()
            self.trouble = None
        except redis_errors.RedisError as error:
            message = as_unavailable(error).message
            if self.trouble != message:
                log.warning("managing the jobs failed: %s", message)
            self.trouble = message

    def manage_jobs(self) -> None:
        """Queue the jobs of dead workers again, remove old jobs, and start this server's own worker if needed.

        Also counts waiting jobs and live workers, in `seen`. Every `PRUNE_SECONDS`, old jobs are removed, and a key is
        written, since a Redis that takes no writes may answer all else. Nothing is requeued shortly after an outage.
        """
        for name in COMMANDS:
            queue = build_queue_name(name)
            self.seen[name] = self.records.count_waiting(queue), len(list_live_workers(self.connection.client, queue))
        if time.monotonic() >= self.patient_until:
            self.records.requeue_lost_jobs()
        if time.monotonic() - self.pruned_at >= PRUNE_SECONDS:
            self.connection.client.set("lathe:writable", b"", ex=60)
            self.records.prune()
            self.pruned_at = time.monotonic()
        self._manage_own_worker()

    def _manage_own_worker(self) -> None:
        """Start this server's own worker, for jobs on its state folder, if such jobs wait and it is not running.

        If it ended with an error, log that and start it again after `AGAIN_SECONDS` at the earliest.
        """
        if self.own_worker is not None and (status := self.own_worker.poll()) is not None:
            self.own_worker = None
            if status:
                log.error("the worker of this server's own jobs ended with %d; starting it again later", status)
                self.not_before = time.monotonic() + AGAIN_SECONDS
        waiting = self.records.count_waiting(build_queue_name(home_id=self.home.read_or_create_id()))
        if waiting and self.own_worker is None and time.monotonic() >= self.not_before:
            program = Program("lathe.service.jobs.redis.worker", ("--own", "--burst"), self.environment, lasting=True)
            self.own_worker = self.processes.start(program)
