"""The process of one job from the queue: `python -m service.jobs.queued_process WORKER QUEUE JOB`."""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from filelock import Timeout
from redis import exceptions as redis_errors
from rq import get_current_job
from rq.executions import Execution
from rq.job import Job as QueuedJob
from rq.serializers import JSONSerializer

from service.home import Home
from service.jobs.queue import JobRecords, lost
from service.jobs.queue_worker import PASSING, SOCKET_SECONDS, JobWorker
from service.jobs.runners import Outcome, Reporter, carry_out
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


def write_meta(queued: QueuedJob, job: Job) -> None:
    """Write a job's progress into RQ's record of it; a Redis that is gone for a while does not stop a job."""
    queued.meta |= {"progress": job.progress, "message": job.message}
    with suppress(redis_errors.RedisError):
        queued.save_meta()  # type: ignore[no-untyped-call]


def perform(job_id: str) -> None:
    """What RQ calls for a job: does it, and writes its end."""
    queued = get_current_job()
    if queued is None:
        raise RuntimeError("a job is performed by a worker")
    records = JobRecords(queued.connection)
    record = records.record(job_id)
    if b"end" in record:  # an earlier try came to an end, and its worker was lost before RQ heard of it
        return
    job = Job(**json.loads(record[b"job"]))
    if b"cancel" in record:
        records.end(lost(job, cancelled=True))
        return
    settings = read_settings()
    home = Home(settings.home)
    reporter = Reporter(replace(job, state="running"), partial(write_meta, queued))
    make_root(home.jobs)
    sweep(home.jobs)
    with tempfile.TemporaryDirectory(dir=home.jobs, prefix=SCRATCH) as scratch, lock_file(Path(scratch) / ".lock"):
        folder = Path(scratch) / job_id
        make_folder(folder)
        inputs = json.loads(record[b"files"])
        outcome = fetch_inputs(records, job_id, folder, inputs) or carry_out(
            job.kind, json.loads(record[b"request"]), folder, settings, reporter
        )
        made = [path for path in folder.iterdir() if path.is_file() and path.name not in inputs]
        until_written(lambda: records.end(with_results(records, job_id, outcome, made).ended(reporter.job)))


def sweep(jobs: Path) -> None:
    """Remove what processes that were killed have left: it may hold a caller's texts."""
    for folder in jobs.glob(f"{SCRATCH}*"):
        with suppress(Timeout, OSError):
            if time.time() - folder.stat().st_mtime > LEFT_SECONDS:  # younger ones may be about to be locked
                with lock_file(folder / ".lock").acquire(blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)


def fetch_inputs(records: JobRecords, job_id: str, folder: Path, names: list[str]) -> Outcome | None:
    """Write a job's inputs into its folder; an outcome if they are not there any more."""
    for name in names:
        found = records.file(job_id, name)
        if found is None:
            return Outcome(error="the job's inputs are gone from Redis: send it again")
        with create_file(folder / name) as file:
            file.writelines(found.pieces)
    return None


def with_results(records: JobRecords, job_id: str, outcome: Outcome, made: list[Path]) -> Outcome:
    """Put what a job made where replicas find it; the outcome says what was too large for that."""
    if outcome.result is None:
        return outcome
    refused = records.keep_results(job_id, made)
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
    """End this process when its worker is gone: the job is given to another one."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def run(settings: Settings, worker_key: str, queue_name: str, job_id: str) -> None:
    """Perform a job for a worker, as `rq.worker.SpawnWorker`'s own process would."""
    client = connect(settings.redis_url, SOCKET_SECONDS)
    worker = JobWorker.find_by_key(worker_key, connection=client, serializer=JSONSerializer)
    if worker is None:
        sys.exit(1)
    queue = JobRecords(client).queue(queue_name)
    job = QueuedJob.fetch(job_id, connection=client, serializer=JSONSerializer)
    execution = Execution.fetch(os.environ["RQ_EXECUTION_ID"], job_id, connection=client)
    execution._job = job
    worker.execution = execution
    worker.main_work_horse(job, queue)


def main() -> None:
    """Perform the job that the command line names."""
    threading.Thread(target=end_with_parent, args=[os.getppid()], daemon=True).start()
    settings = read_settings()
    os.nice(5)  # serving comes first, where they share a machine
    import torch

    torch.set_num_threads(settings.job_threads)
    run(settings, *sys.argv[1:])


if __name__ == "__main__":
    main()
