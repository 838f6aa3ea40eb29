"""A job: its state as callers see it, the names of its files, the classes of workers, and the queue of jobs.

A server fills the queue, runners take jobs from it, and the processes of jobs report to it:

    submit ──► queued ──take──► running ──end──► succeeded, failed or cancelled
                 ▲                 │
                 └── release ◄─────┘    its process ended without a result, or its worker is gone

A server runs the jobs of `lathe.service.jobs.folder` itself; `lathe worker` runs jobs of
`lathe.service.jobs.redis_queue`, which replicas share.
"""

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, Protocol

from pydantic import TypeAdapter, ValidationError

from lathe.service.codec import dump_json
from lathe.transforms.artifact import MANIFEST, TENSORS
from lathe.transforms.files import read_pieces

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
TRAINING_KINDS = frozenset({"train", "adapt"})
"""Kinds of jobs that train encoders: they run beside all others, and go on where they stopped if their process dies."""
MAX_JOBS = 200
"""Maximum number of jobs kept; older ones that have ended are removed with their results."""

WorkerClass = Literal["jobs", "trainings", "own"]
"""Which jobs a worker takes. Trainings take long, so they have workers of their own, and fits do not wait. With Redis,
jobs on files of a state folder are its server's own."""
COMMANDS: dict[WorkerClass, str] = {"jobs": "lathe worker", "trainings": "lathe worker --training"}
"""Command that starts a worker of each class; a server starts its own."""

FILE_OF_TEXTS, FILE_OF_VECTORS, FILE_OF_TARGETS = "source.jsonl", "source.npy", "targets.npy"
FILE_OF_QUERY_TEXTS, FILE_OF_QUERIES = "queries.jsonl", "queries.npy"
FILE_OF_PAIRS, FILE_OF_TEST_PAIRS = "pairs.jsonl", "test_pairs.jsonl"
FILE_OF_NEW_TEXTS = "source.texts.json"
INPUT_NAMES = frozenset(
    {
        *(FILE_OF_TEXTS, FILE_OF_VECTORS, FILE_OF_TARGETS, FILE_OF_QUERY_TEXTS, FILE_OF_QUERIES),
        *(FILE_OF_PAIRS, FILE_OF_TEST_PAIRS, FILE_OF_NEW_TEXTS, MANIFEST, TENSORS),
    }
)
"""Names that input files of a job may have."""

VECTORS, REPORT, LOG = "vectors.npy", "report.html", "log.jsonl"
"""Names of result files: the transformed vectors of a fit's source, the page of an advice, the log of a training."""


@dataclass(frozen=True)
class Job:
    """A job's state, as shown to callers.

    Attributes:
        progress: progress in [0, 1].
        message: what the job is doing.
        error: why it failed; None if it did not.
        result: its result as JSON; None before it succeeded.
        pid: id of its process while it runs in a folder.
        tries: number of times that its process died and the job was queued again in a folder.
    """

    id: str
    kind: str
    state: State = "queued"
    progress: float = 0.0
    message: str = "waiting"
    error: str | None = None
    result: dict[str, Any] | None = None
    created_at: str = ""
    finished_at: str | None = None
    pid: int | None = None
    tries: int = 0

    @property
    def ended(self) -> bool:
        """Whether the job has succeeded, failed or been cancelled."""
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the job that callers see, without the process id and the number of tries, as a dict."""
        return {key: value for key, value in asdict(self).items() if key not in ("pid", "tries")}

    def succeed(self, result: dict[str, Any]) -> "Job":
        """Return a copy of the job that ended now with a result."""
        return replace(self._end("succeeded", "done"), progress=1.0, result=result)

    def fail(self, error: str, message: str = "failed") -> "Job":
        """Return a copy of the job that ended now with an error."""
        return replace(self._end("failed", message), error=error)

    def cancel(self) -> "Job":
        """Return a copy of the job that ended now because a caller cancelled it."""
        return self._end("cancelled", "cancelled")

    def _end(self, state: State, message: str) -> "Job":
        return replace(self, state=state, message=message, finished_at=datetime.now(UTC).isoformat(), pid=None)


JOB: TypeAdapter[Job] = TypeAdapter(Job)


def create_job(kind: str) -> Job:
    """Create a queued job of a kind. The job's id begins with the current time."""
    now = datetime.now(UTC)
    return Job(id=f"{now:%Y%m%d%H%M%S}{secrets.token_hex(4)}", kind=kind, created_at=now.isoformat())


def is_job_id(text: str) -> bool:
    """Return whether the text is a valid job id: 22 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{22}", text) is not None


def parse_job(job_id: str, content: bytes) -> Job:
    """Parse a job's state from JSON. Raise an error if it is damaged or belongs to another job.

    Raises:
        ValueError, TypeError: if it is damaged, another job's, or not serializable; the message quotes nothing of it.
    """
    try:
        job = JOB.validate_json(content)
    except ValidationError as error:
        raise ValueError(describe_validation_error(error)) from None
    if job.id != job_id or not 0 <= job.progress <= 1:
        raise ValueError("its id or progress cannot be that of this job")
    dump_json(job.to_json())  # numbers beyond 64 bits, for instance, are no JSON here
    return job


def describe_validation_error(error: ValidationError) -> str:
    """Describe the first error of a validation in one line, by field and problem, without the value."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    # Pydantic names its own validators and unions in between, such as function-after[check(), NewFit].
    fields = [str(part) for part in first["loc"] if "[" not in str(part)]
    return f"{'.'.join(fields) or 'JSON'}: {first['msg']}"[:200]


@dataclass(frozen=True)
class ResultFile:
    """A file to be sent, such as the result of a job: its size in bytes, and an iterator over its bytes in pieces."""

    size: int
    pieces: Iterator[bytes]

    @classmethod
    def from_file(cls, file: BinaryIO) -> "ResultFile":
        """Build a `ResultFile` of an open file, whose pieces are read lazily. The file is closed after the last piece.

        The file can be read to the end even if it is deleted meanwhile.
        """

        def pieces() -> Iterator[bytes]:
            with file:
                yield from read_pieces(file)

        return cls(os.fstat(file.fileno()).st_size, pieces())


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
