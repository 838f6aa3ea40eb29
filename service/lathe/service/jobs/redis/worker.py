"""A worker: takes jobs from a queue in Redis, one at a time, each in a process of its own."""

import argparse
import logging
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from typing import Any

from redis import exceptions as redis_errors

from lathe.service import logs
from lathe.service.home import Home
from lathe.service.jobs.redis.heartbeats import (
    build_queue_name,
    generate_worker_name,
    record_heartbeat,
    remove_heartbeat,
    require_redis,
)
from lathe.service.jobs.redis.queue import LOST_SECONDS, JobRecords
from lathe.service.jobs.store import Job
from lathe.service.jobs.worker_class import WorkerClass
from lathe.service.processes.client import create_process_starter
from lathe.service.processes.program import Process, ProcessStarter, Program, get_environment_without_keys
from lathe.service.redis.connection import DISK_ERROR, GONE, as_unavailable, connect
from lathe.service.settings import Settings, read_settings
from lathe.training.encoder.devices import require_device

HEARTBEAT_SECONDS = 2.0
"""Seconds between two heartbeats."""
POLL_SECONDS = 0.25
"""Seconds between two checks of the queue, or of the running process."""
SOCKET_SECONDS = 15.0
"""Timeout of a request to Redis."""
AGAIN_SECONDS = 1.0
"""Seconds between attempts to reach Redis."""
KILLED_SECONDS = 2.0
"""Maximum seconds to wait for the end of a killed process; one that was not forked yet never begins."""
PASSING = (*GONE, redis_errors.OutOfMemoryError, redis_errors.ReadOnlyError)
"""Types of errors that may pass with time, see `may_pass`."""

log = logging.getLogger(__name__)


def may_pass(error: redis_errors.RedisError) -> bool:
    """Return whether an error may pass with time: Redis is unreachable, read-only, or its memory or disk is full."""
    return isinstance(error, PASSING) or DISK_ERROR in str(error)


class JobWorker:
    """A worker that runs the jobs of a queue, one at a time, until it is asked to stop.

    It waits while Redis is unreachable.

    Args:
        records: jobs in Redis.
        queue: name of its queue.
        processes: starts the processes of jobs.
        patient: whether the running job is finished when the worker is asked to stop; otherwise it is queued again.
    """

    def __init__(self, records: JobRecords, queue: str, processes: ProcessStarter, patient: bool = True) -> None:
        self.records = records
        self.queue = queue
        self.processes = processes
        self.patient = patient
        self.name = generate_worker_name()
        self.stops = 0
        self.reached: bool | None = None
        self.heard_at = self.patient_until = 0.0

    def request_stop(self, *_: Any) -> None:
        """Count a request to stop.

        The first ends a patient worker after the running job, the second kills that job too.
        """
        self.stops += 1

    def run_jobs(self, burst: bool) -> None:
        """Take queued jobs from Redis and run them one by one until asked to stop, waiting while Redis is down.

        At the end the worker's heartbeat is removed.

        Args:
            burst: whether to end when no job is queued.

        Raises:
            RedisError: if Redis refuses, for instance the password.
        """
        while not self.stops:
            try:
                self._maintain_presence()
                if job := self.records.take(self.queue, self.name):
                    self.run(job)
                elif burst and not self.records.count_waiting(self.queue):
                    break
                else:
                    time.sleep(POLL_SECONDS)
            except redis_errors.RedisError as error:
                self._log_outage(error)
                time.sleep(AGAIN_SECONDS)
        with suppress(redis_errors.RedisError):
            remove_heartbeat(self.records.client, self.queue, self.name)

    def _maintain_presence(self) -> None:
        """Send a heartbeat to Redis every `HEARTBEAT_SECONDS`, and queue the jobs of dead workers again.

        Does nothing if the last heartbeat is younger. The first time, and after an outage of Redis, also log the
        connection and warm up the process starter. For `LOST_SECONDS` after an outage nothing is requeued, because the
        other workers could send no heartbeat either.
        """
        if self.reached and time.monotonic() - self.heard_at < HEARTBEAT_SECONDS:
            return
        record_heartbeat(self.records.client, self.queue, self.name)
        if not self.reached:
            log.info("taking jobs from %s", self.queue)
            self.processes.warm_up()
        # After an outage the other workers need a moment to send their heartbeats.
        if time.monotonic() >= self.patient_until:
            self.records.requeue_lost_jobs()
        self.reached, self.heard_at = True, time.monotonic()

    def _log_outage(self, error: redis_errors.RedisError) -> None:
        """Log once that Redis is unreachable, or raise the error if waiting would not help.

        No jobs are requeued for `LOST_SECONDS`.

        Raises:
            RedisError: if waiting would not help, for instance with a password that was rejected from the start.
        """
        refused = isinstance(error, redis_errors.AuthenticationError)
        if not may_pass(error) or (refused and self.reached is None):  # later, its users are being changed
            raise error
        if self.reached is not False:
            log.warning("%s; trying again", as_unavailable(error).message)
        self.reached = False
        self.patient_until = time.monotonic() + LOST_SECONDS

    def run(self, job: Job) -> None:
        """Run a job in a process of its own and wait for its end. A job whose process died is queued again or given up.

        An error in starting the process is logged.
        """
        program = Program("lathe.service.jobs.redis.process", (job.id,), get_environment_without_keys())
        try:
            self._supervise(job, self.processes.start(program))
        except OSError as error:
            log.error("the process of job %s cannot be started: %s", job.id, error)
        self.records.release(job.id, self.name, counts=self.patient or not self.stops)

    def _supervise(self, job: Job, process: Process) -> None:
        """Send heartbeats while a job's process runs, and kill it if the job was cancelled or is another worker's.

        So does a request to stop, the second one if the worker is patient; an unreachable Redis does not.
        """
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
                break
            try:
                self._maintain_presence()
                state = self.records.record_job_heartbeat(job.id, self.name)
            except redis_errors.RedisError as error:  # the running job goes on
                self._log_outage(error)
                continue
            if state != "goes on" or self.stops > self.patient:
                break
        process.kill()  # also one that outlived the fork server that watched it
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_SECONDS)


def run_worker(settings: Settings, worker_class: WorkerClass, own: bool, burst: bool) -> None:
    """Run the jobs of a queue in Redis until SIGINT or SIGTERM, waiting while Redis is unreachable.

    It installs handlers of both signals: the first signal ends it after the running job, a second kills that job too.
    A training is queued again at the first, as it goes on from its last checkpoint.

    Args:
        settings: settings with the URL of Redis.
        worker_class: which jobs it takes.
        own: whether to run jobs on this state folder's indexes instead of jobs that any worker can run.
        burst: whether to end when no job is queued.

    Raises:
        ValueError: if no Redis is set, the device is missing, or the state folder cannot be written.
        UnavailableError: if Redis refuses, for instance the password.
    """
    require_redis(settings)
    require_device(settings.device)
    home = Home(settings.home)
    home.require_writable()
    queue = build_queue_name(worker_class, home.read_or_create_id() if own else None)
    with closing(create_process_starter(settings.device)) as processes:
        with closing(connect(settings.redis_url, SOCKET_SECONDS)) as client:
            worker = JobWorker(JobRecords(client), queue, processes, patient=worker_class != "trainings")
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, worker.request_stop)
            try:
                worker.run_jobs(burst)
            except redis_errors.RedisError as error:
                raise as_unavailable(error) from error


def main(arguments: list[str]) -> None:
    """Parse the worker's arguments and run a worker until it is stopped.

    Servers start it with `--own` for the jobs of their state folder.

    Args:
        arguments: `--own`, `--burst`, or none.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--burst", action="store_true")
    options = parser.parse_args(arguments)
    settings = read_settings()
    logs.configure(settings.log_level)
    run_worker(settings, "jobs", options.own, options.burst)


if __name__ == "__main__":
    main(sys.argv[1:])
