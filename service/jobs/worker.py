"""The process of one job: `python -m service.jobs.worker FOLDER`."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import Timeout

from service.advise_job import run_advise_request
from service.errors import ServiceError
from service.fit_job import run_fit_request
from service.jobs.store import Job, JobStore
from service.reindex_job import run_reindex
from service.settings import Settings, read_settings
from training.errors import TrainingError
from transforms.errors import TransformError
from transforms.transform import Progress

PROGRESS_SECONDS = 0.25

Runner = Callable[[dict[str, Any], Path, Settings, Progress], dict[str, Any]]
RUNNERS: dict[str, Runner] = {
    "fit": run_fit_request,
    "advise": run_advise_request,
    "reindex": run_reindex,
}


class Reporter:
    """Writes a job's progress, not more often than anybody can look."""

    def __init__(self, store: JobStore, job: Job) -> None:
        self.store = store
        self.job = job
        self.written = 0.0

    def __call__(self, fraction: float, message: str) -> None:
        """Note progress."""
        self.job = replace(self.job, progress=round(max(self.job.progress, min(fraction, 1.0)), 4), message=message)
        if time.monotonic() - self.written >= PROGRESS_SECONDS:
            self.store.write(self.job)
            self.written = time.monotonic()


def run_job(folder: Path, settings: Settings) -> None:
    """Run a job that is still queued, under its lock."""
    store = JobStore(folder.parent)
    try:
        with store.lock(folder.name).acquire(blocking=False):
            job = store.read(folder.name)
            if job.state == "queued":
                work(store, job, settings)
    except Timeout:
        return  # another process has it


def work(store: JobStore, job: Job, settings: Settings) -> None:
    """From queued to an end."""
    folder = store.folder(job.id)
    if (folder / "cancel").exists():
        store.end_orphan(job)
        return
    reporter = Reporter(store, store.write(replace(job, state="running", message="starting", pid=os.getpid())))
    request = json.loads((folder / "request.json").read_bytes())
    try:
        result = RUNNERS[job.kind](request, folder, settings, reporter)
        ended = replace(reporter.job, state="succeeded", progress=1.0, message="done", result=result)
    except (TrainingError, TransformError, ServiceError) as error:
        ended = replace(reporter.job, state="failed", message="failed", error=str(error))
    except OSError as error:
        ended = replace(reporter.job, state="failed", message="failed", error=f"{error.strerror}: {error.filename}")
    except MemoryError:
        ended = replace(reporter.job, state="failed", message="failed", error="out of memory")
    except Exception as error:
        traceback.print_exc()  # into the job's log; the message may quote texts
        ended = replace(
            reporter.job, state="failed", message="failed", error=f"{type(error).__name__}; see log.txt of the job"
        )
    store.write(replace(ended, pid=None, finished_at=datetime.now(UTC).isoformat()))
    store.drop_inputs(job.id)


def main() -> None:
    """Run the job in the folder named on the command line."""
    settings = read_settings()
    os.nice(5)  # serving comes first
    import torch

    torch.set_num_threads(settings.job_threads)
    run_job(Path(sys.argv[1]), settings)


if __name__ == "__main__":
    main()
