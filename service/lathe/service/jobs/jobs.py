"""The jobs of a server: it queues them, answers for them, and has a thread that sees to it that they run."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lathe.service.errors import UnavailableError
from lathe.service.jobs.job import Job, ResultFile, WorkerClass
from lathe.service.jobs.queue import JobQueue
from lathe.service.jobs.requests import JobRequest, parse_request
from lathe.training.thread_problem import ThreadProblem

CANCEL_SECONDS = 5.0
"""Maximum seconds that `cancel` waits for a running job to end."""

log = logging.getLogger(__name__)


class Jobs:
    """Job manager of a server.

    Args:
        queue: the jobs.
        steps: what the thread does regularly, such as the steps of the runners of a folder.
        poll_seconds: seconds between two rounds of the steps.
    """

    def __init__(self, queue: JobQueue, steps: Sequence[Callable[[], None]], poll_seconds: float) -> None:
        self.queue = queue
        self.steps = steps
        self.poll_seconds = poll_seconds
        self.trouble: str | None = None
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("managing the jobs")
        self.thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Start the thread that manages the jobs."""
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread that manages the jobs, waiting up to 5 s for it. Running jobs go on."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)

    @property
    def workers(self) -> Mapping[WorkerClass, int] | None:
        """Number of live workers of each class.

        The result is None if the server runs the jobs itself, or the numbers are unknown at the moment.
        """
        return self.queue.workers

    def warnings(self) -> list[str]:
        """Return sentences on what keeps jobs from running, as last seen, without asking Redis."""
        trouble = [f"jobs cannot be managed: {self.trouble}"] if self.trouble else []
        return [*filter(None, [self.unexpected.message]), *trouble, *self.queue.warnings()]

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Queue a job and return it.

        Args:
            kind: what it does, a key of `lathe.service.jobs.requests.KINDS`.
            request: its parameters as JSON.
            files: its inputs by name.

        Raises:
            OSError, UnavailableError: if the job cannot be stored.
        """
        return self.queue.add(kind, request, files)

    def get(self, job_id: str) -> Job:
        """Return a job in its current state.

        Raises:
            UnknownNameError: if there is no such job.
        """
        return self.queue.get(job_id)

    def list(self) -> list[Job]:
        """Return all jobs, newest first."""
        return self.queue.list()

    def read_request(self, job_id: str) -> JobRequest | None:
        """Return the validated request of a job, or None if it is damaged, which is logged.

        Raises:
            UnknownNameError: if there is no such job.
        """
        job, content = self.queue.get(job_id), self.queue.read_request(job_id)
        try:
            return parse_request(job.kind, content)
        except ValueError as error:
            self.queue.report_damaged_request(job_id, str(error))
            return None

    def cancel(self, job_id: str) -> Job:
        """Cancel a job, and wait up to `CANCEL_SECONDS` for its end. Return the job as it then is.

        An ended job stays unchanged. Whoever runs the job kills its process.

        Raises:
            UnknownNameError: if there is no such job.
        """
        job = self.queue.cancel(job_id)
        deadline = time.monotonic() + CANCEL_SECONDS
        while not job.ended and time.monotonic() < deadline:
            time.sleep(0.05)
            job = self.queue.get(job_id)
        return job

    def open_result(self, job_id: str, name: str) -> ResultFile | None:
        """Open a result file of a job, or return None if the job has none of that name.

        Raises:
            UnknownNameError: if there is no such job.
        """
        return self.queue.open_result(job_id, name)

    def _run(self) -> None:
        while not self.stopping.wait(self.poll_seconds):
            with self.unexpected.watch():
                self.manage()

    def manage(self) -> None:
        """Do all steps once. If Redis refuses, log that instead of raising it, unless it was so the last time too."""
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
