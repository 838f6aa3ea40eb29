"""Jobs on disk.

jobs/<id>/
├── request.json   what to do
├── job.json       state, progress, result; replaced whole, by the job's process alone
├── .lock          held by that process while it lives: the system frees it whatever happens
├── cancel         there once somebody asked to stop it
├── log.txt        what the process printed
└── …              inputs and results of the job's kind

queued ──► running ──► succeeded
   │          ├──────► failed      (also when its process is gone without a word)
   └──────────┴──────► cancelled
"""

import json
import os
import re
import secrets
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from service.codec import dump_json
from service.errors import UnknownNameError
from training.locks import lock_file
from transforms.beneath import read_beneath
from transforms.files import create_file, make_folder, make_root, sync_folder, write_synced

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
KEPT_MOST = 200
"""Ended jobs kept; the oldest beyond that are removed with their results."""


@dataclass(frozen=True)
class Job:
    """A job as it is shown.

    Attributes:
        progress: 0 to 1.
        message: what it is doing.
        error: why it failed.
        result: what it made.
        pid: of its process while it runs.
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

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state in ENDED

    def public(self) -> dict[str, Any]:
        """Its JSON."""
        return {key: value for key, value in asdict(self).items() if key != "pid"}


JOB: TypeAdapter[Job] = TypeAdapter(Job)


def parse_job(job_id: str, content: bytes) -> Job:
    """Return a job from its JSON.

    Raises:
        ValueError, TypeError: if it is not that job's, or no answer could hold it; the message quotes nothing of it.
    """
    try:
        job = JOB.validate_json(content)
    except ValidationError as error:
        raise ValueError(describe(error)) from None
    if job.id != job_id or not 0 <= job.progress <= 1:
        raise ValueError("its id or progress cannot be that of this job")
    dump_json(job.public())  # numbers beyond 64 bits, for instance, are no JSON here
    return job


def describe(error: ValidationError) -> str:
    """Return what a validation found first, without the value."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'JSON'}: {first['msg']}"[:200]


class JobStore:
    """The jobs in one folder, for any number of processes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, job_id: str) -> Path:
        """Where a job's files are.

        Raises:
            UnknownNameError: if there is no such job.
        """
        folder = self.root / job_id
        if not is_job_id(job_id) or not (folder / "job.json").is_file():
            raise UnknownNameError(f"there is no job {job_id!r}", param="id")
        return folder

    def create(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """A new queued job, whole on disk or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        job = new_job(kind)
        staging = self.root / f".{job.id}"
        try:
            make_root(self.root)
            make_folder(staging)
            for name, payload in files.items():
                write_synced(staging / name, payload)
            write_synced(staging / "request.json", json.dumps(request).encode())
            write_synced(staging / "job.json", json.dumps(asdict(job)).encode())
            staging.rename(self.root / job.id)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(self.root)
        self.prune()
        return job

    def request(self, job_id: str) -> bytes:
        """Return what a job was asked to do, as it was written.

        Raises:
            UnknownNameError: if there is no such job.
        """
        self.folder(job_id)
        return read_beneath(self.root, f"{job_id}/request.json")

    def ids(self) -> list[str]:
        """All jobs, newest first."""
        if not self.root.is_dir():
            return []
        return sorted((f.name for f in self.root.iterdir() if is_job_id(f.name) and f.is_dir()), reverse=True)

    def read(self, job_id: str) -> Job:
        """A job as its process last wrote it.

        Raises:
            UnknownNameError: if there is no such job.
        """
        self.folder(job_id)
        try:
            return parse_job(job_id, read_beneath(self.root, f"{job_id}/job.json"))
        except FileNotFoundError:  # removed in this moment
            raise UnknownNameError(f"there is no job {job_id!r}", param="id") from None
        except (ValueError, TypeError, OSError) as error:  # a power cut, or another version of Lathe
            return Job(job_id, "unknown", "failed", message="failed", error=f"the job's record is damaged: {error}")

    def get(self, job_id: str) -> Job:
        """A job as it is: one whose process died is failed, or cancelled if that was wanted.

        Raises:
            UnknownNameError: if there is no such job.
        """
        job = self.read(job_id)
        return self.settle(job) if job.state == "running" else job

    def list(self) -> list[Job]:
        """All jobs, newest first."""
        found = []
        for job_id in self.ids():
            with suppress(UnknownNameError):  # removed meanwhile
                found.append(self.get(job_id))
        return found

    def write(self, job: Job) -> Job:
        """Replace a job's state; only by who holds its lock."""
        staging = self.root / job.id / ".job.json"
        with create_file(staging) as file:
            file.write(json.dumps(asdict(job)).encode())
            file.flush()
            if job.ended:
                os.fsync(file.fileno())
        staging.replace(self.root / job.id / "job.json")
        return job

    def lock(self, job_id: str) -> FileLock:
        """The right to run a job and write its state."""
        return lock_file(self.root / job_id / ".lock")

    def settle(self, job: Job) -> Job:
        """End a job that has no process; one that has is left alone."""
        try:
            with self.lock(job.id).acquire(blocking=False):
                job = self.read(job.id)  # it may have ended just now
                return job if job.ended else self.end_orphan(job)
        except Timeout:
            return job

    def end_orphan(self, job: Job) -> Job:
        """End a job whose process is gone, under its lock."""
        wanted = (self.root / job.id / "cancel").exists()
        ended = replace(
            job,
            state="cancelled" if wanted else "failed",
            message="cancelled" if wanted else "its process ended without a result",
            error=None if wanted else f"the job's process was killed or crashed while {job.message}",
            finished_at=datetime.now(UTC).isoformat(),
            pid=None,
        )
        with suppress(OSError):  # on a full disk the answer is still the truth
            self.write(ended)
            self.drop_inputs(job.id)
        return ended

    def drop_inputs(self, job_id: str) -> None:
        """Remove the texts or vectors a caller sent: nobody needs them any more."""
        for path in (self.root / job_id).glob("source.*"):
            path.unlink(missing_ok=True)

    def cancel(self, job_id: str) -> Job:
        """Ask a job to stop: a queued one ends at once, a running one is terminated.

        Raises:
            UnknownNameError: if there is no such job.
        """
        job = self.get(job_id)
        if job.ended:
            return job
        create_file(self.root / job_id / "cancel").close()
        if job.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(job.pid, signal.SIGTERM)
        return self.settle(job)

    def prune(self) -> None:
        """Remove the oldest ended jobs beyond those kept."""
        for job_id in self.ids()[KEPT_MOST:]:
            with suppress(UnknownNameError):
                if self.get(job_id).ended:
                    shutil.rmtree(self.root / job_id, ignore_errors=True)


def new_job(kind: str) -> Job:
    """A queued job with an id of its own, which begins with the time."""
    now = datetime.now(UTC)
    return Job(id=f"{now:%Y%m%d%H%M%S}{secrets.token_hex(4)}", kind=kind, created_at=now.isoformat())


def is_job_id(text: str) -> bool:
    """Whether a job can have this id."""
    return re.fullmatch("[0-9a-f]{22}", text) is not None
