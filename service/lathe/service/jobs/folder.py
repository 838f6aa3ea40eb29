"""Jobs in a folder, which the server runs itself: one training and one other job at a time.

jobs/<id>/
├── request.json   parameters
├── job.json       state, progress, result; replaced atomically, only by the holder of the lock
├── .lock          held by the job's process while it lives: the system releases it in any case
├── cancel         present once a stop was requested
├── log.txt        output of the process
└── …              inputs and results, by kind of job

queued ──► running ──► succeeded
   │ ◄────────┤                    (a training whose process ends without a result, once)
   │          ├──────► failed      (also when its process ends without a result)
   └──────────┴──────► cancelled

Processes outlive the server. Input files come with jobs' requests and are deleted when the job ends. The training log
is there while the job runs.
"""

import builtins
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Literal

from filelock import FileLock, Timeout

from lathe.service.errors import UnknownNameError
from lathe.service.jobs.job import (
    INPUT_NAMES,
    MAX_JOBS,
    TRAINING_KINDS,
    Job,
    ResultFile,
    WorkerClass,
    create_job,
    is_job_id,
    parse_job,
)
from lathe.training.locks import lock_file
from lathe.transforms.beneath import OutsideError, open_beneath, read_beneath
from lathe.transforms.files import continue_file, create_file, make_folder, make_root, sync_folder, write_synced

MAX_TRIES = 2
"""Number of times that a training is started before it is given up; other jobs are started once."""

log = logging.getLogger(__name__)


class FolderQueue:
    """The jobs in one folder. It has the methods of `lathe.service.jobs.job.JobQueue`."""

    shared = False
    workers = None

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ended: set[str] = set()  # jobs that `take` need not read again

    def warnings(self) -> builtins.list[str]:
        """Return an empty list. A job that cannot be started fails with the reason instead."""
        return []

    def _find_folder(self, job_id: str) -> Path:
        folder = self.root / job_id
        if not is_job_id(job_id) or not (folder / "job.json").is_file():
            raise UnknownNameError(f"there is no job {job_id!r}", param="id")
        return folder

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Write a queued job with its request and input files to disk, and delete ended jobs over the limit.

        The job appears as a whole, or not at all. Returns the job.
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
        """Return a job's request as the JSON bytes that were written, without parsing."""
        self._find_folder(job_id)
        return read_beneath(self.root, f"{job_id}/request.json")

    def report_damaged_request(self, job_id: str, why: str) -> None:
        """Log that a job's request cannot be read."""
        log.error("job %s: %s", job_id, why)

    def open_result(self, job_id: str, name: str) -> ResultFile | None:
        """Open the result file `name` of a job, or return None if the job has no such file."""
        self._find_folder(job_id)
        try:
            return ResultFile.from_file(open_beneath(self.root, f"{job_id}/{name}"))
        except (FileNotFoundError, OutsideError):
            return None

    def list_ids(self) -> builtins.list[str]:
        """Return the ids of all jobs, newest first."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            return sorted((entry.name for entry in entries if is_job_id(entry.name) and entry.is_dir()), reverse=True)

    def read(self, job_id: str) -> Job:
        """Read a job's state as last written to disk. A job with a damaged file is returned as failed."""
        self._find_folder(job_id)
        try:
            return parse_job(job_id, read_beneath(self.root, f"{job_id}/job.json"))
        except FileNotFoundError:  # removed in this moment
            raise UnknownNameError(f"there is no job {job_id!r}", param="id") from None
        except (ValueError, TypeError, OSError) as error:  # a power cut, or another version of Lathe
            return Job(job_id, "unknown", "failed", message="failed", error=f"the job's record is damaged: {error}")

    def get(self, job_id: str) -> Job:
        """Return a job in its current state. If its process ended without a result, first end or requeue the job.

        The job is marked as failed or cancelled, or a training is queued again.
        """
        job = self.read(job_id)
        return self._settle(job) if job.state == "running" else job

    def list(self) -> builtins.list[Job]:
        """Return all jobs in their current state, as `get` does, newest first."""
        jobs = []
        for job_id in self.list_ids():
            with suppress(UnknownNameError):  # removed meanwhile
                jobs.append(self.get(job_id))
        return jobs

    def cancel(self, job_id: str) -> Job:
        """Cancel a job, and return it. A queued job ends at once, a running job gets SIGTERM.

        A job that has ended is returned unchanged.
        """
        job = self.get(job_id)
        if job.ended:
            return job
        # Before the signal: whoever settles the job then knows that it was cancelled and did not fail.
        create_file(self.root / job_id / "cancel").close()
        if job.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(job.pid, signal.SIGTERM)
        return self._settle(job)

    def prune(self) -> None:
        """Delete ended jobs beyond the `MAX_JOBS` newest jobs, with their results."""
        for job_id in self.list_ids()[MAX_JOBS:]:
            with suppress(UnknownNameError):
                if self.get(job_id).ended:
                    shutil.rmtree(self.root / job_id, ignore_errors=True)

    def take(self, worker_class: WorkerClass) -> Job | None:
        """Return the first queued job of a class, or None if none is queued or a job of this class runs.

        Nothing is written: the process of the job marks it as running. A running job may be left from an earlier
        server; its lock tells when it ends.
        """
        queued = []
        ids = self.list_ids()
        self._ended.intersection_update(ids)
        for job_id in ids:
            if job_id in self._ended:
                continue
            try:
                job = self.get(job_id)
            except UnknownNameError:  # removed meanwhile
                continue
            if job.ended:
                self._ended.add(job_id)
            elif (job.kind in TRAINING_KINDS) == (worker_class == "trainings"):
                if job.state == "running":
                    return None
                queued.append(job)
        return min(queued, key=lambda job: job.created_at, default=None)

    def record_job_heartbeat(self, job: Job) -> Literal["goes on", "cancelled"]:
        """Return "cancelled" if a stop of the job was requested, else "goes on". Nothing is recorded.

        The lock of the job shows that its process is alive.
        """
        return "cancelled" if self._is_cancelled(job.id) else "goes on"

    def release(self, job: Job, counts: bool = True) -> None:
        """End an unfinished job whose process is over as failed or cancelled, or queue a training again."""
        with suppress(UnknownNameError):  # it was deleted
            current = self.get(job.id)
            # A process that died before it marked the job as running. A training that is queued again has another try.
            if current.state == "queued" and current.tries == job.tries:
                current = self._settle(current)
            if current.ended:  # on a full disk, that may not be written
                self._ended.add(job.id)

    def open_output(self, job_id: str) -> AbstractContextManager[IO[bytes]]:
        """Open the job's `log.txt` for appending, and return a context that yields the file."""
        return continue_file(self._find_folder(job_id) / "log.txt", append=True)

    @contextmanager
    def claim(self, job_id: str) -> Iterator[tuple[Job, Path] | None]:
        """Lock a queued job, mark it as running, and yield the job and its folder, or yield None if it must not run.

        The lock is held within the block. None is yielded if the job has ended or was cancelled, or another process
        runs it.
        """
        try:
            lock = self._lock(job_id).acquire(blocking=False)
        except Timeout:
            yield None
            return
        with lock:
            job = self.read(job_id)
            if job.state == "queued" and self._is_cancelled(job_id):
                job = self._end_orphan(job)
            # The job may have ended, or been cancelled, while this process started.
            if job.state != "queued":
                yield None
                return
            job = replace(job, state="running", message="starting", pid=os.getpid())
            self._write(job)
            yield job, self.root / job_id

    def fetch_inputs(self, job_id: str, folder: Path) -> None:
        """Do nothing: the inputs are in the job's folder."""

    def write_progress(self, job: Job, folder: Path) -> None:
        """Write the state of a running job to its file. The caller holds the job's lock."""
        self._write(job)

    def end(self, job: Job, folder: Path) -> None:
        """Delete a job's inputs, and write its final state to its file. The caller holds the job's lock."""
        self._delete_inputs(job.id)  # before the end is written: an ended job has none
        self._write(job)

    def _write(self, job: Job) -> None:
        """Write a job's state to its file atomically. The caller holds the job's lock."""
        staging = self.root / job.id / ".job.json"
        with create_file(staging) as file:
            file.write(json.dumps(asdict(job)).encode())
            file.flush()
            # Only the end must survive a power cut: progress is written often, and a sync is slow.
            if job.ended:
                os.fsync(file.fileno())
        staging.replace(self.root / job.id / "job.json")

    def _lock(self, job_id: str) -> FileLock:
        return lock_file(self.root / job_id / ".lock")

    def _is_cancelled(self, job_id: str) -> bool:
        return (self.root / job_id / "cancel").exists()

    def _settle(self, job: Job) -> Job:
        """End a job that no process runs any more, or queue a training again. Return the job.

        A job that has ended, or whose lock a process holds, is returned unchanged.
        """
        try:
            with self._lock(job.id).acquire(blocking=False):
                job = self.read(job.id)  # it may have ended just now
                return job if job.ended else self._end_orphan(job)
        except Timeout:
            return job

    def _end_orphan(self, job: Job) -> Job:
        """Mark a job whose process is gone as failed or cancelled and delete its inputs, or queue a training again.

        A training is queued again once. The caller holds the job's lock. A full disk is not an error.
        """
        cancelled = self._is_cancelled(job.id)
        if not cancelled and job.state == "running" and job.kind in TRAINING_KINDS and job.tries + 1 < MAX_TRIES:
            queued = replace(
                job, state="queued", message="its process died; it goes on soon", pid=None, tries=job.tries + 1
            )
            with suppress(OSError):
                self._write(queued)
                return queued
        ended = (
            job.cancel()
            if cancelled
            else job.fail(
                f"the job's process was killed or crashed while {job.message}", "its process ended without a result"
            )
        )
        with suppress(OSError):  # on a full disk, the returned state is still right
            self._delete_inputs(job.id)
            self._write(ended)
        return ended

    def _delete_inputs(self, job_id: str) -> None:
        for name in INPUT_NAMES:
            (self.root / job_id / name).unlink(missing_ok=True)
