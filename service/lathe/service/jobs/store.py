"""Jobs on disk.

jobs/<id>/
├── request.json   parameters
├── job.json       state, progress, result; replaced atomically, only by the job's process
├── .lock          held by that process while it lives: the system releases it in any case
├── cancel         present once a stop was requested
├── log.txt        output of the process
└── …              inputs and results, by kind of job

queued ──► running ──► succeeded
   │ ◄────────┤                    (a training whose process ends without a result, once)
   │          ├──────► failed      (also when its process ends without a result)
   └──────────┴──────► cancelled

Input files come with jobs' requests and are deleted when the job ends. The training log is there while the job runs.
"""

import json
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from lathe.service.codec import dump_json
from lathe.service.errors import UnknownNameError
from lathe.training.locks import lock_file
from lathe.training.sources.shards import RootedFile
from lathe.transforms.artifact import MANIFEST, TENSORS
from lathe.transforms.beneath import read_beneath
from lathe.transforms.files import create_file, make_folder, make_root, sync_folder, write_synced
from lathe.transforms.progress import Progress

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
RESUMED_KINDS = frozenset({"train", "adapt"})
"""Kinds of jobs that go on where they stopped if their process dies."""
TRIES = 2
"""Number of times that such a job is started before it is given up."""
MAX_JOBS = 200
"""Maximum number of jobs kept; older ones that have ended are removed with their results."""


@dataclass(frozen=True)
class Job:
    """A job's state, as shown to callers.

    Attributes:
        progress: progress in [0, 1].
        message: what the job is doing.
        error: why it failed; None if it did not.
        result: its result as JSON; None before it succeeded.
        pid: id of its process while it runs.
        tries: number of times that its process died and the job was queued again.
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
        """Return the job as JSON for callers, without the process id and the number of tries."""
        return {key: value for key, value in asdict(self).items() if key not in ("pid", "tries")}


JOB: TypeAdapter[Job] = TypeAdapter(Job)


def parse_job(job_id: str, content: bytes) -> Job:
    """Parse a job's state from JSON, and check that it is the job `job_id`.

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
    """Describe the first error of a validation in one line, without the value."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    # Pydantic names its own validators and unions in between, such as function-after[check(), NewFit].
    fields = [str(part) for part in first["loc"] if "[" not in str(part)]
    return f"{'.'.join(fields) or 'JSON'}: {first['msg']}"[:200]


class JobStore:
    """The jobs in one folder, usable from several processes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_folder(self, job_id: str) -> Path:
        """Return the folder of an existing job.

        Raises:
            UnknownNameError: if there is no such job.
        """
        folder = self.root / job_id
        if not is_job_id(job_id) or not (folder / "job.json").is_file():
            raise UnknownNameError(f"there is no job {job_id!r}", param="id")
        return folder

    def create(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Write a new job of a kind, queued, with its request and input files to disk, and return it.

        The job appears as a whole. Ended jobs over the limit are removed.

        Raises:
            OSError: if the job cannot be written.
        """
        job = create_job(kind)
        staging = self.root / f".{job.id}"
        try:
            make_root(self.root)
            make_folder(staging)
            for name, payload in files.items():
                write_synced(staging / name, payload)
            write_synced(staging / "request.json", json.dumps(request).encode())
            write_synced(staging / "job.json", json.dumps(asdict(job)).encode())
            # The job appears as a whole: a reader sees all of its inputs or no job.
            staging.rename(self.root / job.id)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(self.root)
        self.prune()
        return job

    def read_request(self, job_id: str) -> bytes:
        """Return a job's request as the JSON that was written.

        Raises:
            UnknownNameError: if there is no such job.
        """
        self.find_folder(job_id)
        return read_beneath(self.root, f"{job_id}/request.json")

    def list_ids(self) -> list[str]:
        """Return the ids of all jobs, newest first."""
        if not self.root.is_dir():
            return []
        return sorted((f.name for f in self.root.iterdir() if is_job_id(f.name) and f.is_dir()), reverse=True)

    def read(self, job_id: str) -> Job:
        """Read a job's state as last written to disk. A job whose file is damaged is returned as failed.

        Raises:
            UnknownNameError: if there is no such job.
        """
        self.find_folder(job_id)
        try:
            return parse_job(job_id, read_beneath(self.root, f"{job_id}/job.json"))
        except FileNotFoundError:  # removed in this moment
            raise UnknownNameError(f"there is no job {job_id!r}", param="id") from None
        except (ValueError, TypeError, OSError) as error:  # a power cut, or another version of Lathe
            return Job(job_id, "unknown", "failed", message="failed", error=f"the job's record is damaged: {error}")

    def get(self, job_id: str) -> Job:
        """Return a job in its current state.

        A job whose process ended without a result is first marked as ended.

        Raises:
            UnknownNameError: if there is no such job.
        """
        job = self.read(job_id)
        return self.settle(job) if job.state == "running" else job

    def list(self) -> list[Job]:
        """Return all jobs in their current state, newest first."""
        jobs = []
        for job_id in self.list_ids():
            with suppress(UnknownNameError):  # removed meanwhile
                jobs.append(self.get(job_id))
        return jobs

    def write(self, job: Job) -> Job:
        """Write a job's state to its file atomically, and return the job. The caller holds the job's lock."""
        staging = self.root / job.id / ".job.json"
        with create_file(staging) as file:
            file.write(json.dumps(asdict(job)).encode())
            file.flush()
            # Only the end must survive a power cut: progress is written often, and a sync is slow.
            if job.ended:
                os.fsync(file.fileno())
        staging.replace(self.root / job.id / "job.json")
        return job

    def lock(self, job_id: str) -> FileLock:
        """Return the file lock that a process must hold to run a job and write its state."""
        return lock_file(self.root / job_id / ".lock")

    def settle(self, job: Job) -> Job:
        """Mark a job as cancelled or failed if no process runs it any more. Return the job.

        It ends as cancelled, if that was requested, or failed, and its inputs are deleted. A job that has ended, or
        whose lock a process holds, is returned unchanged.
        """
        try:
            with self.lock(job.id).acquire(blocking=False):
                job = self.read(job.id)  # it may have ended just now
                return job if job.ended else self.end_orphan(job)
        except Timeout:
            return job

    def end_orphan(self, job: Job) -> Job:
        """Mark a job without a process as cancelled or failed, delete its inputs, and return it.

        It ends as cancelled if that was requested. A job of `RESUMED_KINDS` is queued again instead, once. The caller
        holds its lock. A disk that is full is no error.
        """
        cancelled = (self.root / job.id / "cancel").exists()
        if not cancelled and job.state == "running" and job.kind in RESUMED_KINDS and job.tries + 1 < TRIES:
            with suppress(OSError):
                return self.write(
                    replace(
                        job, state="queued", message="its process died; it goes on soon", pid=None, tries=job.tries + 1
                    )
                )
        ended = replace(
            job,
            state="cancelled" if cancelled else "failed",
            message="cancelled" if cancelled else "its process ended without a result",
            error=None if cancelled else f"the job's process was killed or crashed while {job.message}",
            finished_at=datetime.now(UTC).isoformat(),
            pid=None,
        )
        with suppress(OSError):  # on a full disk, the returned state is still right
            self.delete_inputs(job.id)
            self.write(ended)
        return ended

    def delete_inputs(self, job_id: str) -> None:
        """Delete the files that a caller sent with the job: texts, vectors, queries, pairs."""
        for name in INPUT_NAMES:
            (self.root / job_id / name).unlink(missing_ok=True)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: a queued one ends now, a running one gets SIGTERM. Return the job as it then is.

        A job that has ended is returned unchanged.

        Raises:
            UnknownNameError: if there is no such job.
        """
        job = self.get(job_id)
        if job.ended:
            return job
        # Before the signal: whoever settles the job then knows that it was cancelled and did not fail.
        create_file(self.root / job_id / "cancel").close()
        if job.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(job.pid, signal.SIGTERM)
        return self.settle(job)

    def prune(self) -> None:
        """Delete ended jobs beyond the `MAX_JOBS` newest jobs, with their results."""
        for job_id in self.list_ids()[MAX_JOBS:]:
            with suppress(UnknownNameError):
                if self.get(job_id).ended:
                    shutil.rmtree(self.root / job_id, ignore_errors=True)


def create_job(kind: str) -> Job:
    """Return a queued job with a new id that begins with the current time."""
    now = datetime.now(UTC)
    return Job(id=f"{now:%Y%m%d%H%M%S}{secrets.token_hex(4)}", kind=kind, created_at=now.isoformat())


def is_job_id(text: str) -> bool:
    """Return whether the text is a valid job id: 22 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{22}", text) is not None


class NamesPaths(Protocol):
    """A request that names files, some of which may have been sent with it."""

    @property
    def paths(self) -> dict[str, str]:
        """Paths by field."""

    def with_paths(self, paths: Mapping[str, str]) -> Self:
        """Return a copy of the request with other paths."""


AnyRequest = TypeVar("AnyRequest", bound=NamesPaths)

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


def locate_inputs(request: AnyRequest, files: Collection[str], folder: Path) -> AnyRequest:
    """Return a copy of a fit or adaptation in which paths of files sent with the request point into the job's folder.

    Args:
        request: the fit or adaptation.
        files: names of the files that came with it.
        folder: the job's folder.
    """
    return request.with_paths(
        {field: str(RootedFile(folder, path)) for field, path in request.paths.items() if path in files}
    )


LOG = "log.jsonl"
"""Name of the result file with the training log."""

WRITTEN = "training/progress.jsonl"
"""Path of the log in the folder of a training, which lies in a work folder or is one."""

COPY_SECONDS = 0.25
"""Minimum seconds between two searches of the work folder: progress is reported after each batch."""


class TrainingLog:
    """Copies the log of the training that runs to a job's folder.

    Args:
        folder: folder of the job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work_folder: Path | None = None
        self.copied_at = 0.0

    def watch(self, work_folder: Path) -> None:
        """Note the folder below which trainings write their logs."""
        self.work_folder = work_folder

    def follow(self, on_progress: Progress) -> Callable[[float, str], None]:
        """Return a callback that copies the log if it has grown, every `COPY_SECONDS`, and reports the progress."""

        def report(fraction: float, message: str) -> None:
            if time.monotonic() - self.copied_at >= COPY_SECONDS:
                with suppress(OSError):  # a disk that is full does not stop the training
                    self._copy()
                self.copied_at = time.monotonic()
            on_progress(fraction, message)

        return report

    def _copy(self) -> None:
        """Copy the log of the training that wrote last, unless it is copied already."""
        logs = [] if self.work_folder is None else list(self.work_folder.glob(f"**/{WRITTEN}"))
        if not logs:
            return
        log = max(logs, key=lambda path: path.stat().st_mtime)
        target = self.folder / LOG
        if not target.exists() or log.stat().st_size != target.stat().st_size:
            staging = self.folder / f".{LOG}"
            shutil.copyfile(log, staging)
            staging.replace(target)
