"""The process of one job from a queue in Redis, run as `python -m lathe.service.jobs.redis.process JOB`."""

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from filelock import Timeout
from redis import exceptions as redis_errors

from lathe.service.chains.fits import wait_for_redis
from lathe.service.errors import ForbiddenError
from lathe.service.home import Home
from lathe.service.jobs.redis.queue import JobRecords
from lathe.service.jobs.redis.worker import SOCKET_SECONDS, may_pass
from lathe.service.jobs.requests import AnyJob, JobRequest
from lathe.service.jobs.runners import JobOutcome, ProgressReporter, limit_resources, run_request
from lathe.service.jobs.sources import resolve_allowed_path
from lathe.service.jobs.store import INPUT_NAMES, LOG, Job
from lathe.service.redis.connection import connect
from lathe.service.registries import open_trained
from lathe.service.settings import Settings, read_settings
from lathe.training.locks import lock_file
from lathe.transforms.files import create_file, make_folder, make_root
from lathe.transforms.progress import Progress, part_of

END_SECONDS = 120.0
"""Seconds for which writing a job's end is retried while Redis is unreachable."""
PARENT_SECONDS = 0.5
"""Seconds between two checks of whether the worker is alive."""
SCRATCH = ".queued-"
"""Prefix of temporary job folders."""
LEFT_SECONDS = 60.0
"""Age in seconds from which an unlocked temporary folder is removed."""


def run_taken_job(records: JobRecords, job_id: str, settings: Settings) -> None:
    """Run a job that a worker took from the queue, and write its progress, result files and end to Redis.

    It runs in a temporary folder. Temporary folders of killed processes are removed first. Returns at once if the job
    has ended or was queued again.
    """
    record = records.find(job_id)
    if record.job.ended or record.waiting:  # its worker was considered dead before this process began
        return
    home = Home(settings.home)

    make_root(home.jobs)
    _delete_leftovers(home.jobs)
    with tempfile.TemporaryDirectory(dir=home.jobs, prefix=SCRATCH) as scratch, lock_file(Path(scratch) / ".lock"):
        folder = Path(scratch) / job_id
        make_folder(folder)

        def write(job: Job) -> None:
            with suppress(redis_errors.RedisError):  # a short outage of Redis does not stop a job
                records.write_progress(job)
                _share_log(records, job_id, folder)

        def prepare(request: AnyJob) -> AnyJob:
            _require_allowed(request, settings)
            return _find_trained_encoders(request, settings, home, reporter)

        reporter = ProgressReporter(record.job, write)
        with reporter:
            outcome = fetch_inputs(records, job_id, folder) or run_request(
                record.job.kind, records.read_request(job_id), folder, settings, reporter, prepare
            )
        result_files = [path for path in folder.iterdir() if path.is_file() and path.name not in INPUT_NAMES]
        _retry_until_written(
            lambda: records.end(_store_results(records, job_id, outcome, result_files).end_job(reporter.job))
        )


def _require_allowed(request: JobRequest, settings: Settings) -> None:
    """Raise unless this worker's own settings allow the request's paths, embeddings APIs and model code.

    The settings are checked again because whoever can write to Redis can request a job.

    Raises:
        ForbiddenError: if a path is outside this worker's data root, an embeddings API is not in its settings, whose
            key would else be sent to any address, or a model has code of its own that this worker's
            settings do not trust.
        UnknownNameError: if a file does not exist.
    """
    for path in request.paths:
        resolve_allowed_path(path, settings.data_root)
    upstreams = [spec.upstream for spec in settings.specs if spec.upstream is not None]
    trusted = {(spec.model, spec.revision) for spec in settings.specs if spec.trust_remote_code}
    for encoder in request.encoders.values():
        if encoder.upstream is not None and encoder.upstream not in upstreams:
            raise ForbiddenError(
                f"the embeddings API of {encoder.name} is not one of this worker's: list it in the worker's "
                "LATHE_ENCODERS as in the server's"
            )
        if encoder.trust_remote_code and (encoder.model, encoder.revision) not in trusted:
            raise ForbiddenError(
                f"the model {encoder.model} has code of its own, which this worker does not trust: "
                "list it in the worker's LATHE_ENCODERS as in the server's"
            )


def _find_trained_encoders(request: AnyJob, settings: Settings, home: Home, on_progress: Progress) -> AnyJob:
    """Return the request with the specs of trained encoders as this machine has them, copying them from Redis first.

    Their folders are those of the server that queued the job.

    Raises:
        UnknownNameError: if Redis has no such version.
    """
    named = {field: spec for field, spec in request.encoders.items() if "@" in spec.name}
    if not named:
        return request
    names = {spec.name.partition("@")[0] for spec in named.values()}
    trained = wait_for_redis(lambda: open_trained(home, settings.redis_url, names), part_of(on_progress, 0.0, 0.0))
    specs = {field: trained.build_spec(*trained.resolve(spec.name), spec.dtype) for field, spec in named.items()}
    return request.with_encoders(specs)


def _share_log(records: JobRecords, job_id: str, folder: Path) -> None:
    """Store the training log of a running job in Redis, if it has one that has grown."""
    log = folder / LOG
    if log.exists() and records.files.read_size(job_id, LOG) != log.stat().st_size:
        records.files.store_results(job_id, [log])


def _delete_leftovers(jobs: Path) -> None:
    """Remove temporary job folders that killed processes left in `jobs`: unlocked and over `LEFT_SECONDS` old.

    They may hold callers' texts.
    """
    for folder in jobs.glob(f"{SCRATCH}*"):
        with suppress(Timeout, OSError):
            if time.time() - folder.stat().st_mtime > LEFT_SECONDS:  # younger ones may be about to be locked
                with lock_file(folder / ".lock").acquire(blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)


def fetch_inputs(records: JobRecords, job_id: str, folder: Path) -> JobOutcome | None:
    """Copy a job's input files from Redis to `folder`. Return None, or a failed outcome if they are damaged.

    Returns:
        None, or a failed outcome that says that the inputs are missing or damaged.
    """
    try:
        names = records.files.read_input_names(job_id)
        for name in names:
            input_file = records.files.read(job_id, name)
            if input_file is None:
                return JobOutcome(error="the job's inputs are missing in Redis: send the job again")
            with create_file(folder / name) as file:
                file.writelines(input_file.pieces)
    except (ValueError, redis_errors.ResponseError):
        return JobOutcome(error="the job's inputs in Redis are damaged: send the job again")
    return None


def _store_results(records: JobRecords, job_id: str, outcome: JobOutcome, result_files: list[Path]) -> JobOutcome:
    """Store a successful job's result files in Redis, and return its outcome, changed if they are too large.

    Nothing is stored for a failed job. If the vectors are too large, the outcome explains that in place of their URL.
    """
    if outcome.result is None:
        return outcome
    refused = records.files.store_results(job_id, result_files)
    if "vectors.npy" not in refused:
        return outcome
    message = "too large to go through Redis: `lathe reduce` with the chain gives the same vectors"
    return replace(outcome, result=outcome.result | {"vectors_url": None, "vectors_error": message})


def _retry_until_written(write: Callable[[], object]) -> None:
    """Call `write` until it succeeds, retrying while Redis is unreachable, full or read-only.

    The error is raised after `END_SECONDS`, any other error at once.
    """
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            write()
            return
        except redis_errors.RedisError as error:
            if not may_pass(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _exit_with_parent(parent: int) -> None:
    """Wait until `parent`, the worker that started this process, has ended, then exit this process.

    The job is then given to another worker.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Run the job whose id is the only argument, and exit early if the worker that started it ends.

    The result is written to Redis.

    Args:
        arguments: the job's id.
    """
    threading.Thread(target=_exit_with_parent, args=[os.getppid()], daemon=True).start()
    settings = read_settings()
    limit_resources(settings)
    run_taken_job(JobRecords(connect(settings.redis_url, SOCKET_SECONDS)), arguments[0], settings)


if __name__ == "__main__":
    main(sys.argv[1:])
