"""The process of one local job, run as `python -m lathe.service.jobs.local_process FOLDER`."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from filelock import Timeout

from lathe.service.jobs.runners import ProgressReporter, limit_resources, run_request
from lathe.service.jobs.store import Job, JobStore
from lathe.service.settings import Settings, read_settings


def run_job(folder: Path, settings: Settings) -> None:
    """Run the job in `folder` to its end, unless it is not queued any more or another process runs it."""
    store = JobStore(folder.parent)
    try:
        with store.lock(folder.name).acquire(blocking=False):
            job = store.read(folder.name)
            # The job may have ended, or been cancelled, while this process started.
            if job.state == "queued":
                _run_queued_job(store, job, settings)
    except Timeout:
        return  # another process runs the job


def _run_queued_job(store: JobStore, job: Job, settings: Settings) -> None:
    """Run a queued job to its end, writing its state to disk as it changes.

    The job's inputs are removed when it ends. If its cancellation was requested, it is marked as cancelled instead of
    being run. The caller holds the job's lock.
    """
    folder = store.find_folder(job.id)
    if (folder / "cancel").exists():
        store.end_orphan(job)
        return
    running = store.write(replace(job, state="running", message="starting", pid=os.getpid()))
    reporter = ProgressReporter(running, store.write)
    request = store.read_request(job.id)
    with reporter:
        outcome = run_request(job.kind, request, folder, settings, reporter)
    store.delete_inputs(job.id)  # before the end is written: an ended job has none
    store.write(outcome.end_job(reporter.job))


def main(arguments: list[str]) -> None:
    """Run the job whose folder is the only argument, with lower priority than the server.

    The job is run by `run_job`.

    Args:
        arguments: the job's folder.
    """
    settings = read_settings()
    limit_resources(settings)
    run_job(Path(arguments[0]), settings)


if __name__ == "__main__":
    main(sys.argv[1:])
