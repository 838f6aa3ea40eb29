"""The job manager's interface, whether jobs are kept on disk or in Redis."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from lathe.service.jobs.requests import JobRequest
from lathe.service.jobs.store import Job
from lathe.service.jobs.worker_class import WorkerClass

PIECE_BYTES = 1 << 20
"""Bytes of a piece of a file, 1 MiB."""


@dataclass(frozen=True)
class ResultFile:
    """A file to be sent, such as the result of a job: its size in bytes, and an iterator over its bytes in pieces."""

    size: int
    pieces: Iterator[bytes]

    @classmethod
    def from_file(cls, file: BinaryIO) -> "ResultFile":
        """Return the size of an open file and an iterator over its pieces, which closes the file at the end.

        It can be read to the end even if the file is deleted meanwhile.
        """

        def pieces() -> Iterator[bytes]:
            with file:
                while piece := file.read(PIECE_BYTES):
                    yield piece

        return cls(os.fstat(file.fileno()).st_size, pieces())


class Jobs(Protocol):
    """Job manager of a server, or of all replicas."""

    def start(self) -> None:
        """Start running queued jobs, or having them run by workers."""

    def stop(self) -> None:
        """Stop managing jobs.

        Running jobs go on.
        """

    @property
    def workers(self) -> Mapping[WorkerClass, int] | None:
        """Number of live workers of each class.

        The result is None if the server runs the jobs itself, or the numbers are unknown at the moment.
        """

    def warnings(self) -> list[str]:
        """Return sentences on what keeps jobs from running, as last seen, without asking Redis."""

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Queue a job and return it.

        Args:
            kind: key of its runner in `lathe.service.jobs.runners.RUNNERS`.
            request: its parameters as JSON.
            files: its inputs by name.

        Raises:
            OSError, UnavailableError: if the job cannot be stored.
        """

    def get(self, job_id: str) -> Job:
        """Return a job in its current state.

        Raises:
            UnknownNameError: if there is no such job.
        """

    def list(self) -> list[Job]:
        """Return all jobs, newest first."""

    def read_request(self, job_id: str) -> JobRequest | None:
        """Return a job's request, or None if it is damaged.

        Raises:
            UnknownNameError: if there is no such job.
        """

    def cancel(self, job_id: str) -> Job:
        """Stop a job and return it.

        An ended job stays unchanged.

        Raises:
            UnknownNameError: if there is no such job.
        """

    def open_result(self, job_id: str, name: str) -> ResultFile | None:
        """Open a result file of a job, or return None if the job has none of that name.

        Raises:
            UnknownNameError: if there is no such job.
        """
