"""The process of one local job: `python -m service.jobs.local_process FOLDER`."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from filelock import Timeout

from service.jobs.runners import Reporter, carry_out, share_machine
from service.jobs.store import Job, JobStore
from service.settings import Settings, read_settings


def run_job(folder: Path, settings: Settings) -> None:
    """Run a job if it is queued and no other process holds its lock."""
    store = JobStore(folder.parent)
    try:
        with store.lock(folder.name).acquire(blocking=False):
            job = store.read(folder.name)
            if job.state == "queued":
                work(store, job, settings)
    except Timeout:
        return  # another process has it


def work(store: JobStore, job: Job, settings: Settings) -> None:
    """Run a queued job, whose lock is held, to its end: write its state as it changes, and remove its inputs."""
    folder = store.folder(job.id)
    if (folder / "cancel").exists():
        store.end_orphan(job)
        return
    running = store.write(replace(job, state="running", message="starting", pid=os.getpid()))
    reporter = Reporter(running, store.write)
    request = store.request(job.id)
    store.write(carry_out(job.kind, request, folder, settings, reporter).ended(reporter.job))
    store.drop_inputs(job.id)


def main(arguments: list[str]) -> None:
    """Run a job with lower priority than the server.

    Args:
        arguments: the job's folder.
    """
    settings = read_settings()
    share_machine(settings)
    run_job(Path(arguments[0]), settings)


if __name__ == "__main__":
    main(sys.argv[1:])
