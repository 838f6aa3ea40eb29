"""A worker: takes jobs from the queue in Redis, one at a time, each in a process of its own."""

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from types import FrameType
from typing import Any

from redis import Redis
from redis import exceptions as redis_errors
from redis.client import Pipeline
from rq.job import Job as QueuedJob
from rq.serializers import JSONSerializer
from rq.worker import SpawnWorker
from rq.worker_registration import register

from service import logs
from service.errors import UnavailableError
from service.home import Home
from service.jobs.clock import SKEW_SECONDS, clock_skew
from service.jobs.heartbeats import ALIVE_SECONDS, live_workers
from service.jobs.queue import JobQueue, JobRecords, queue_name
from service.settings import Settings, read_settings
from service.shared.link import GONE, as_unavailable, connect

HEARTBEAT_SECONDS = 2
LOST_SECONDS = 8
"""A worker that was silent for so long is taken for dead, and its job is queued again."""
SOCKET_SECONDS = 15.0
AGAIN_SECONDS = 1.0
CHECK_SECONDS = 5.0
PASSING = (*GONE, redis_errors.OutOfMemoryError, redis_errors.ReadOnlyError)
"""What may be better in a while."""

log = logging.getLogger(__name__)


class JobWorker(SpawnWorker):
    """RQ's worker, whose jobs run in `service.jobs.queued_process`.

    RQ itself would start them with the connection, password included, on the command line, where every user of the
    machine can read it.
    """

    queue_class = JobQueue
    asked_to_stop = False
    stop_wanted: Callable[[], bool] = staticmethod(lambda: False)
    """Whether somebody asked to stop before RQ listened."""
    max_connection_wait_time = 2.0
    """RQ would wait for up to a minute after Redis is back."""

    def fork_work_horse(self, job: QueuedJob, queue: JobQueue) -> None:  # type: ignore[override]
        """Start the process of a job."""
        told = {"RQ_WORKER_ID": self.name, "RQ_JOB_ID": job.id, "RQ_EXECUTION_ID": self.execution.id}  # type: ignore[union-attr]
        command = [sys.executable, "-m", "service.jobs.queued_process", self.key, queue.name, job.id]
        self._horse_pid = os.posix_spawn(sys.executable, command, os.environ | told, setpgroup=0)
        self.procline(f"Spawned {self._horse_pid} at {time.time()}")  # type: ignore[no-untyped-call]

    def get_heartbeat_ttl(self, job: QueuedJob, working_time: float = 0.0) -> int:
        """For how long a sign of life holds."""
        return LOST_SECONDS

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Give a sign of life; also to a Redis that has lost its data, and would not know this worker else."""
        super().heartbeat(timeout, pipeline)
        client = self.connection if pipeline is None else pipeline
        if self.hostname:
            client.hset(self.key, "hostname", self.hostname)
            register(self, pipeline)

    def maintain_heartbeats(self, job: QueuedJob, execution: Any) -> None:
        """Give a sign of life; a Redis that is gone, or full, for a while is no reason to leave a running job."""
        try:
            super().maintain_heartbeats(job, execution)
        except redis_errors.RedisError as error:
            log.warning("no sign of life: %s", as_unavailable(error).message)

    def run_maintenance_tasks(self) -> None:
        """Look for jobs of dead workers, unless this clock is wrong."""
        if abs(clock_skew(self.connection)) <= SKEW_SECONDS:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]

    def _install_signal_handlers(self) -> None:
        """As RQ; a signal that came before counts too."""
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]
        if self.stop_wanted():
            self.asked_to_stop = self._stop_requested = True

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """End after the job that runs; at once the second time."""
        self.asked_to_stop = True
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]


def work(settings: Settings, own: bool, burst: bool) -> None:
    """Run jobs until told to stop; a Redis that goes away is waited for.

    Args:
        settings: with the URL of Redis.
        own: run the jobs on this state folder's indexes instead of those that any worker can run.
        burst: end when nothing is queued.

    Raises:
        ValueError: if no Redis is set, or the folder cannot be written.
        UnavailableError: if Redis refuses the password, or the clocks differ.
    """
    require_redis(settings)
    home = Home(settings.home)
    if problem := home.open():
        raise ValueError(f"{problem}: {home.root}; set LATHE_HOME to a folder that can")
    name = queue_name(home.read_or_make_id() if own else None)
    stop = False

    def note_stop(*_: Any) -> None:
        nonlocal stop
        stop = True

    while not stop:
        for wanted in (signal.SIGINT, signal.SIGTERM):
            signal.signal(wanted, note_stop)
        client = connect(settings.redis_url, SOCKET_SECONDS)
        try:
            require_same_clock(client)
            worker = JobWorker(
                [JobRecords(client).queue(name)],
                connection=client,
                serializer=JSONSerializer,
                queue_class=JobQueue,
                worker_ttl=LOST_SECONDS + 12,
                job_monitoring_interval=HEARTBEAT_SECONDS,
                maintenance_interval=HEARTBEAT_SECONDS,
                log_job_description=False,
            )
            worker.stop_wanted = lambda: stop
            log.info("taking jobs from %s", name)
            worker.work(burst=burst, logging_level="WARNING")
            if worker.asked_to_stop or burst:
                return
        except redis_errors.RedisError as error:
            if not isinstance(error, PASSING) or isinstance(error, redis_errors.AuthenticationError):
                raise as_unavailable(error) from error
            log.warning("%s; trying again", as_unavailable(error).message)
        finally:
            client.close()
        time.sleep(AGAIN_SECONDS)


def require_live_worker(settings: Settings) -> str:
    """A sentence on the workers of this machine, for those who would restart one that hangs.

    Raises:
        ValueError: if no Redis is set.
        UnavailableError: if none of them has given a sign of life lately. A Redis that is gone is no reason: workers
            wait for it, and a job that runs goes on meanwhile.
    """
    require_redis(settings)
    machine = socket.gethostname()
    with closing(connect(settings.redis_url, CHECK_SECONDS)) as client:
        try:
            count = live_workers(client, queue_name()).count(machine)
        except redis_errors.RedisError as error:
            return f"{as_unavailable(error).message}; whether a worker lives cannot be told"
    if not count:
        raise UnavailableError(f"no worker of {machine} has given a sign of life for {ALIVE_SECONDS:.0f} s")
    return f"{machine} has workers: {count}"


def require_redis(settings: Settings) -> None:
    """Raise `ValueError` where no Redis is set."""
    if not settings.redis_url:
        raise ValueError("a worker takes its jobs from Redis: set LATHE_REDIS_URL (without it, the server runs them)")


def require_same_clock(client: Redis) -> None:
    """Raise `UnavailableError` where this machine's clock differs from Redis's."""
    skew = clock_skew(client)
    if abs(skew) > SKEW_SECONDS:
        raise UnavailableError(
            f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} Redis's: jobs that run "
            "would be taken for lost; set the clock, by NTP for instance",
            code="clock_skew",
        )


def main() -> None:
    """What a server starts for the jobs of its own state folder."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--own", action="store_true")
    options.add_argument("--burst", action="store_true")
    given = options.parse_args()
    settings = read_settings()
    logs.configure(settings.log_level)
    work(settings, given.own, given.burst)


if __name__ == "__main__":
    main()
