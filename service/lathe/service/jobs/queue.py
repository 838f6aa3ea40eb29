"""The queue of jobs, which a server fills, runners take jobs from, and the processes of jobs report to.

    submit ──► queued ──take──► running ──end──► succeeded, failed or cancelled
                 ▲                 │
                 └── release ◄─────┘    its process ended without a result, or its worker is gone

A server runs the jobs of `lathe.service.jobs.folder` itself; `lathe worker` runs jobs of
`lathe.service.jobs.redis_queue`, which replicas share.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from lathe.service.jobs.job import Job, ResultFile, WorkerClass


class JobQueue(Protocol):
    """Jobs with their requests, files, states and results, usable from several processes.

    Any method may raise an `OSError` of the disk or, with Redis, an `UnavailableError`. Methods that take a job's id
    raise `UnknownNameError` if there is no such job.

    Attributes:
        shared: whether others than this server and its jobs can write to the queue, so that requests are checked again
            before they are run, and a job belongs to the worker that took it.
    """

    shared: bool

    # What a server does

    @property
    def workers(self) -> Mapping[WorkerClass, int] | None:
        """Number of live workers of each class. None if the server runs the jobs itself, or the numbers are unknown."""

    def warnings(self) -> list[str]:
        """Return sentences that say what keeps jobs from running, as last seen."""

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Write a new job with its request and input files as a whole, queue it, and return it."""

    def get(self, job_id: str) -> Job:
        """Return a job in its current state."""

    def list(self) -> list[Job]:
        """Return all jobs in their current state, newest first."""

    def read_request(self, job_id: str) -> bytes:
        """Return a job's request as the bytes of JSON that were written."""

    def report_damaged_request(self, job_id: str, why: str) -> None:
        """Log that a job's request cannot be read."""

    def open_result(self, job_id: str, name: str) -> ResultFile | None:
        """Open a result file of a job and return it, or return None if the job has no file of that name."""

    def cancel(self, job_id: str) -> Job:
        """Cancel a job and return it: a queued one ends now, a running one soon. An ended job stays unchanged."""

    # What a runner does

    def take(self, worker_class: WorkerClass) -> Job | None:
        """Return the next job for a runner of a class, or None if there is none to run now."""

    def record_job_heartbeat(self, job: Job) -> Literal["goes on", "cancelled", "lost"]:
        """Record that the runner that took a job still runs it.

        Returns "goes on", or "cancelled" or "lost" if the runner must stop.
        """

    def release(self, job: Job, counts: bool = True) -> None:
        """Queue a taken job again or end it, if its process is over and the job has not ended.

        Args:
            job: the job as it was taken.
            counts: whether this was one of its tries; not if the worker was asked to stop.
        """

    def open_output(self, job_id: str) -> AbstractContextManager[IO[bytes] | None]:
        """Return a context that yields the file for the output of a job's process, None for the runner's own output."""

    # What the process of a job does

    def claim(self, job_id: str) -> AbstractContextManager[tuple[Job, Path] | None]:
        """Return a context in which this process runs a job.

        It yields `(job, folder of its inputs and results)`, or None if the job must not be run or another process runs
        it.
        """

    def fetch_inputs(self, job_id: str, folder: Path) -> str | None:
        """Make a job's input files available in its folder. Return a sentence if they are missing or damaged."""

    def write_progress(self, job: Job, folder: Path) -> None:
        """Write a running job's state, and what may be read of its result files so far."""

    def end(self, job: Job, folder: Path) -> None:
        """Write how a job ended and its result files, and remove its inputs."""
