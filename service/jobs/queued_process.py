"""The process of one job from the queue: `python -m service.jobs.queued_process JOB`."""

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

from service.errors import ForbiddenError
from service.home import Home
from service.jobs.queue import JobRecords
from service.jobs.queue_worker import PASSING, SOCKET_SECONDS
from service.jobs.requests import INPUT_NAMES, JobRequest
from service.jobs.runners import Outcome, Reporter, carry_out, share_machine
from service.jobs.sources import allowed_path
from service.jobs.store import Job
from service.settings import Settings, read_settings
from service.shared.link import connect
from training.locks import lock_file
from transforms.files import create_file, make_folder, make_root

END_SECONDS = 120.0
"""How long the end of a job is tried to be written, should Redis be gone just then."""
PARENT_SECONDS = 0.5
SCRATCH = ".queued-"
LEFT_SECONDS = 60.0


def perform(records: JobRecords, job_id: str, settings: Settings) -> None:
    """Do a job that a worker has taken, and write its end."""
    record = records.find(job_id)
    if record.job.ended or record.waiting:  # its worker was thought dead before this process had begun
        return
    home = Home(settings.home)

    def write(job: Job) -> None:
        with suppress(redis_errors.RedisError):  # a Redis that is gone for a while does not stop a job
            records.write_progress(job)

    reporter = Reporter(record.job, write)
    make_root(home.jobs)
    sweep(home.jobs)
    with tempfile.TemporaryDirectory(dir=home.jobs, prefix=SCRATCH) as scratch, lock_file(Path(scratch) / ".lock"):
        folder = Path(scratch) / job_id
        make_folder(folder)
        outcome = fetch_inputs(records, job_id, folder) or carry_out(
            record.job.kind, records.request(job_id), folder, settings, reporter, require_allowed
        )
        made = [path for path in folder.iterdir() if path.is_file() and path.name not in INPUT_NAMES]
        until_written(lambda: records.end(with_results(records, job_id, outcome, made).ended(reporter.job)))


def require_allowed(request: JobRequest, settings: Settings) -> None:
    """Refuse what only whoever runs this worker may allow: whoever can write to Redis can ask for a job.

    Raises:
        ForbiddenError: for files outside this worker's data root, and for a model with code of its own that this
            worker's settings do not name so.
        UnknownNameError: for a file that is not there.
    """
    for path in request.paths:
        allowed_path(path, settings.data_root)
    trusted = {(spec.model, spec.revision) for spec in settings.specs if spec.trust_remote_code}
    for encoder in request.encoders:
        if encoder.trust_remote_code and (encoder.model, encoder.revision) not in trusted:
            raise ForbiddenError(
                f"the model {encoder.model} brings code of its own, and this worker does not trust it: "
                "list it in the worker's LATHE_ENCODERS as in the server's"
            )


def sweep(jobs: Path) -> None:
    """Remove what processes that were killed have left: it may hold a caller's texts."""
    for folder in jobs.glob(f"{SCRATCH}*"):
        with suppress(Timeout, OSError):
            if time.time() - folder.stat().st_mtime > LEFT_SECONDS:  # younger ones may be about to be locked
                with lock_file(folder / ".lock").acquire(blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)


def fetch_inputs(records: JobRecords, job_id: str, folder: Path) -> Outcome | None:
    """Write a job's inputs into its folder; return an outcome if they are not there any more."""
    try:
        names = records.files.input_names(job_id)
        for name in names:
            found = records.files.read(job_id, name)
            if found is None:
                return Outcome(error="the job's inputs are gone from Redis: send it again")
            with create_file(folder / name) as file:
                file.writelines(found.pieces)
    except (ValueError, redis_errors.ResponseError):
        return Outcome(error="the job's inputs in Redis are damaged: send it again")
    return None


def with_results(records: JobRecords, job_id: str, outcome: Outcome, made: list[Path]) -> Outcome:
    """Put what a job made where replicas find it; the outcome says what was too large for that."""
    if outcome.result is None:
        return outcome
    refused = records.files.keep_results(job_id, made)
    if "vectors.npy" not in refused:
        return outcome
    words = "too large to go through Redis: `lathe reduce` with the chain gives the same vectors"
    return replace(outcome, result=outcome.result | {"vectors_url": None, "vectors_error": words})


def until_written(write: Callable[[], object]) -> None:
    """Try to write an end until Redis takes it, or for so long that the job had better be done again."""
    deadline = time.monotonic() + END_SECONDS
    while True:
        try:
            write()
            return
        except PASSING:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def end_with_parent(parent: int) -> None:
    """End this process when the one that started it is gone: the job is given to another worker."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Perform a job.

    Args:
        arguments: its id.
    """
    threading.Thread(target=end_with_parent, args=[os.getppid()], daemon=True).start()
    settings = read_settings()
    share_machine(settings)
    perform(JobRecords(connect(settings.redis_url, SOCKET_SECONDS)), arguments[0], settings)


if __name__ == "__main__":
    main(sys.argv[1:])
