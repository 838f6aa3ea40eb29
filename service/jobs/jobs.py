"""What a server can do with jobs, wherever they are kept and run."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from service.jobs.requests import JobRequest
from service.jobs.store import Job

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class ResultFile:
    """A file that a job made: its bytes, in pieces."""

    size: int
    pieces: Iterator[bytes]

    @classmethod
    def of(cls, file: BinaryIO) -> "ResultFile":
        """An open file on disk, which can be read though the job is removed meanwhile; closed when it was read."""

        def pieces() -> Iterator[bytes]:
            with file:
                while piece := file.read(PIECE_BYTES):
                    yield piece

        return cls(os.fstat(file.fileno()).st_size, pieces())


class Jobs(Protocol):
    """Jobs of a server, or of all replicas."""

    def start(self) -> None:
        """Begin to run what is queued, or to have it run."""

    def stop(self) -> None:
        """Stop looking after jobs; running ones go on."""

    @property
    def workers(self) -> int | None:
        """Live workers that take these jobs; None where the server runs them itself, or nobody knows just now."""

    def warnings(self) -> list[str]:
        """What keeps jobs from being run, as was last seen: nobody is asked now."""

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Queue a job.

        Args:
            kind: which of `service.jobs.runners.RUNNERS` runs it.
            request: what it is asked to do, as JSON.
            files: its inputs, by name.

        Raises:
            OSError, UnavailableError: if it cannot be kept.
        """

    def get(self, job_id: str) -> Job:
        """A job as it is now.

        Raises:
            UnknownNameError: if there is no such job.
        """

    def list(self) -> list[Job]:
        """All jobs, newest first."""

    def request(self, job_id: str) -> JobRequest | None:
        """What a job was asked to do, None if that is damaged; errors as `get`."""

    def cancel(self, job_id: str) -> Job:
        """Stop a job; one that has ended stays as it is. Errors as `get`."""

    def result(self, job_id: str, name: str) -> ResultFile | None:
        """A file that a job made, None if it made none of that name; errors as `get`."""
