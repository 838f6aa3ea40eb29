"""Takes jobs from a queue, one at a time, and runs each in a process of its own: the loop of servers and workers.

A server's own thread runs the jobs of its folder. With Redis, `lathe worker` runs jobs,
and a server starts a worker like it for the jobs on its own state folder: `python -m lathe.service.jobs.runner`.
"""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from lathe.service import logs
from lathe.service.errors import UnavailableError
from lathe.service.home import Home
from lathe.service.jobs.job import Job, JobQueue, WorkerClass
from lathe.service.processes.client import create_process_starter
from lathe.service.processes.program import Process, ProcessStarter, Program, get_environment_without_keys
from lathe.service.settings import Settings, read_settings
from lathe.training.encoder.devices import check_device
from lathe.training.thread_problem import ThreadProblem

if TYPE_CHECKING:
    from lathe.service.jobs.redis_queue import RedisQueue

POLL_SECONDS = 0.25
"""Seconds between two checks of the queue, or of the running process."""
AGAIN_SECONDS = 1.0
"""Seconds between attempts to reach Redis."""
RESTART_SECONDS = 10.0
"""Seconds before a server's own worker that failed is started again."""
KILLED_SECONDS = 2.0
"""Maximum seconds to wait for the end of a killed process; one that was not forked yet never begins."""

log = logging.getLogger(__name__)


class JobRunner:
    """Runs the jobs of one class, one at a time, each in a process of its own.

    Args:
        queue: the jobs.
        worker_class: which of them it takes.
        environment: environment variables of the processes.
        processes: starts the processes. Those of a queue that is not shared outlive this process.
    """

    def __init__(
        self, queue: JobQueue, worker_class: WorkerClass, environment: dict[str, str], processes: ProcessStarter
    ) -> None:
        self.queue = queue
        self.worker_class = worker_class
        self.environment = environment
        self.processes = processes
        self.job: Job | None = None
        self.process: Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process of a job runs."""
        return self.process is not None and self.process.poll() is None

    def step(self) -> None:
        """Check on the running job, and start the next one if none runs."""
        if not self.supervise():
            self.start_next()

    def supervise(self) -> bool:
        """Record a heartbeat if the job's process runs, else release the job. Return whether the process runs.

        The process of a job that was cancelled, or that another worker has by now, is killed, and the job is released.
        """
        if self.job is None:
            return False
        if self.is_running and self.queue.record_job_heartbeat(self.job) == "goes on":
            return True
        # A process that has ended does not mind, and that of a lost job must not write any more.
        self.kill()
        self.release()
        return False

    def start_next(self) -> None:
        """Take the next job of the class from the queue, if there is one, and start its process."""
        self.job = self.queue.take(self.worker_class)
        if self.job is not None:
            self.process = self._start_process(self.job)

    def kill(self) -> None:
        """Kill the process of the job, if there is one, and wait up to `KILLED_SECONDS` for its end."""
        if self.process is not None:
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(KILLED_SECONDS)
        self.process = None

    def release(self, counts: bool = True) -> None:
        """Give the job back to the queue, which queues it again or ends it, unless it has already ended.

        Args:
            counts: whether this was one of its tries.
        """
        if self.job is not None:
            self.queue.release(self.job, counts)
        self.job = None

    def _start_process(self, job: Job) -> Process | None:
        """Start the process of a job. If that fails, log the error and return None.

        The next step then releases the job.
        """
        try:
            with self.queue.open_output(job.id) as output:
                program = Program(
                    "lathe.service.jobs.process",
                    (job.id,),
                    self.environment,
                    output=None if output is None else output.fileno(),
                    lasting=not self.queue.shared,
                )
                return self.processes.start(program)
        except OSError:
            log.exception("the process of job %s cannot be started", job.id)
            return None


def build_job_environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables of a job's process: this process's and all its settings, without keys."""
    return get_environment_without_keys() | settings.to_environment()


class JobThread:
    """The thread of a server that manages its jobs.

    Args:
        steps: what it does regularly: the steps of the runners of a folder, or what a queue in Redis needs.
        poll_seconds: seconds between two rounds of the steps.
    """

    def __init__(self, steps: Sequence[Callable[[], None]], poll_seconds: float) -> None:
        self.steps = steps
        self.poll_seconds = poll_seconds
        self.trouble: str | None = None
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("managing the jobs")
        self.thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait up to 5 s for its end. Running jobs continue."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)

    def warnings(self) -> list[str]:
        """List sentences on what kept the thread from managing jobs in the last round. Empty if nothing did."""
        trouble = f"jobs cannot be managed: {self.trouble}" if self.trouble else None
        return [warning for warning in (self.unexpected.message, trouble) if warning]

    def _run(self) -> None:
        while not self.stopping.wait(self.poll_seconds):
            with self.unexpected.watch():
                self.manage()

    def manage(self) -> None:
        """Call every step once. If Redis refuses, store and log the reason instead of raising, once per reason."""
        try:
            for step in self.steps:
                step()
            self.trouble = None
        except UnavailableError as error:
            # That Redis is away is said by its connection.
            trouble = None if error.code == "redis_unreachable" else error.message
            if trouble and trouble != self.trouble:
                log.warning("managing the jobs failed: %s", trouble)
            self.trouble = trouble


class JobWorker:
    """A worker of a queue in Redis. It waits while Redis is unreachable, and ends when it is asked to.

    Args:
        queue: the queue.
        worker_class: which jobs it takes. A training does not keep it, as it goes on from its last checkpoint.
        environment: environment variables of the jobs' processes.
        processes: starts the jobs' processes.
    """

    def __init__(
        self, queue: "RedisQueue", worker_class: WorkerClass, environment: dict[str, str], processes: ProcessStarter
    ) -> None:
        self.queue = queue
        self.worker_class = worker_class
        self.processes = processes
        self.runner = JobRunner(queue, worker_class, environment, processes)
        self.patience = 0 if worker_class == "trainings" else 1
        self.stops = 0
        self.reached: bool | None = None

    def request_stop(self, *_: Any) -> None:
        """Count a request to stop. The first ends the worker after the running job, the second kills the job too.

        A training is killed at the first request.
        """
        self.stops += 1

    def run(self, burst: bool) -> None:
        """Run queued jobs until a stop is requested, and wait while Redis is unreachable, then remove the heartbeat.

        Args:
            burst: whether to end when no job is queued.

        Raises:
            UnavailableError: if Redis refuses, for instance the password.
        """
        runner = self.runner
        while not self.stops or (self.stops <= self.patience and runner.is_running):
            try:
                self._announce()
                if not runner.supervise() and not self.stops:
                    runner.start_next()
                if runner.job is None and burst and not self.queue.count_waiting(self.worker_class):
                    break
            except UnavailableError as error:  # the running job goes on
                self._log_outage(error)
                time.sleep(AGAIN_SECONDS)
            self._wait()

        runner.kill()
        with suppress(UnavailableError):  # another worker then finds that this one is silent
            runner.release(counts=self.patience > 0)
            self.queue.leave(self.worker_class)

    def _wait(self) -> None:
        """Wait `POLL_SECONDS`, or until the process of the job ends."""
        if self.runner.process is None:
            time.sleep(POLL_SECONDS)
            return
        with suppress(subprocess.TimeoutExpired):
            self.runner.process.wait(POLL_SECONDS)

    def _announce(self) -> None:
        """Send a heartbeat. After the start and after an outage, also log it and warm up the process starter."""
        self.queue.announce(self.worker_class)
        if not self.reached:
            log.info("taking jobs from %s", self.queue.get_queue_name(self.worker_class))
            self.processes.warm_up()
        self.reached = True

    def _log_outage(self, error: UnavailableError) -> None:
        """Log an outage of Redis once. Raise the error if waiting does not help, such as for a rejected password.

        Only a password that was rejected from the start is raised.

        Raises:
            UnavailableError: if waiting would not help, for instance with a password that was rejected from the start.
        """
        # A password that was accepted before is being changed.
        rejected = self.reached is None and self.queue.rejects_password(error)
        if not error.may_pass or rejected:
            raise error
        if self.reached is not False:
            log.warning("%s; trying again", error.message)
        self.reached = False


class OwnWorker:
    """The worker that a server with Redis starts for the jobs on its own state folder, when such jobs wait.

    It outlives the server, and ends when no such job waits.
    """

    def __init__(self, queue: "RedisQueue", environment: dict[str, str], processes: ProcessStarter) -> None:
        self.queue = queue
        self.environment = environment
        self.processes = processes
        self.process: Process | None = None
        self.not_before = 0.0

    def step(self) -> None:
        """Start the worker if jobs wait and it is not running. After a failure, wait `RESTART_SECONDS` first."""
        if self.process is not None and (status := self.process.poll()) is not None:
            self.process = None
            if status:
                log.error("the worker of this server's own jobs ended with %d; starting it again later", status)
                self.not_before = time.monotonic() + RESTART_SECONDS
        if self.process is None and time.monotonic() >= self.not_before and self.queue.count_waiting("own"):
            self.process = self.processes.start(
                Program("lathe.service.jobs.runner", (), self.environment, lasting=True)
            )


def run_worker(settings: Settings, worker_class: WorkerClass, burst: bool) -> None:
    """Run the jobs of a class in Redis until SIGINT or SIGTERM. Waits while Redis is unreachable.

    Handlers of both signals are installed: the first signal ends the worker after the running job, a second kills that
    job too. A training is queued again at the first signal, because it is resumed from its last checkpoint.

    Args:
        settings: settings with the URL of Redis.
        worker_class: which jobs it takes.
        burst: whether to end when no job is queued.

    Raises:
        ValueError: if no Redis is set, the device is missing, or the state folder cannot be written.
        UnavailableError: if Redis refuses, for instance the password.
    """
    from lathe.service.jobs.redis_queue import RedisQueue, require_redis

    require_redis(settings)
    check_device(settings.device)
    Home(settings.home).open_writable()
    queue = RedisQueue.open(settings)
    with closing(create_process_starter(settings.device)) as processes, closing(queue.connection):
        worker = JobWorker(queue, worker_class, build_job_environment(settings), processes)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, worker.request_stop)
        worker.run(burst)


def main(arguments: list[str]) -> None:
    """Run the jobs on this state folder until none is queued. A server starts this process."""
    settings = read_settings()
    logs.configure(settings.log_level)
    run_worker(settings, "own", burst=True)


if __name__ == "__main__":
    main(sys.argv[1:])
