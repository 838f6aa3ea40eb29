"""What each kind of job does, and how it ends."""

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from service.advise_job import run_advise_request
from service.errors import ServiceError
from service.fit_job import run_fit_request
from service.jobs.requests import JobRequest, parse_request
from service.jobs.store import Job
from service.reindex_job import run_reindex
from service.settings import Settings
from training.errors import TrainingError
from transforms.errors import TransformError
from transforms.progress import Progress

PROGRESS_SECONDS = 0.25

Runner = Callable[[Any, Path, Settings, Progress], dict[str, Any]]
"""Takes the request of its kind, see `service.jobs.requests`."""
RUNNERS: dict[str, Runner] = {
    "fit": run_fit_request,
    "advise": run_advise_request,
    "reindex": run_reindex,
}


class Reporter:
    """Notes a job's progress, and writes it down not more often than anybody can look.

    Args:
        job: that runs; replaced as it goes on.
        write: writes its state and progress.
    """

    def __init__(self, job: Job, write: Callable[[Job], object]) -> None:
        self.job = job
        self.write = write
        self.written = 0.0

    def __call__(self, fraction: float, message: str) -> None:
        """Note progress."""
        self.job = replace(self.job, progress=round(max(self.job.progress, min(fraction, 1.0)), 4), message=message)
        if time.monotonic() - self.written >= PROGRESS_SECONDS:
            self.write(self.job)
            self.written = time.monotonic()


@dataclass(frozen=True)
class Outcome:
    """How a job ended: with a result, or with an error."""

    result: dict[str, Any] | None = None
    error: str | None = None

    def ended(self, job: Job) -> Job:
        """The job after this."""
        done = self.error is None
        return replace(
            job,
            state="succeeded" if done else "failed",
            progress=1.0 if done else job.progress,
            message="done" if done else "failed",
            error=self.error,
            result=self.result,
            finished_at=datetime.now(UTC).isoformat(),
            pid=None,
        )


def carry_out(
    kind: str,
    content: bytes,
    folder: Path,
    settings: Settings,
    on_progress: Progress,
    check: Callable[[JobRequest, Settings], None] | None = None,
) -> Outcome:
    """Do what a job was asked to do; whatever goes wrong is an outcome too.

    Args:
        kind: of the job.
        content: its request, JSON that is checked here.
        folder: with its inputs, gets its results; named like the job.
        settings: of the process.
        on_progress: called with progress in [0, 1] and a message.
        check: raises a `ServiceError` for a request that is not to be run here.
    """
    try:
        request = parse_request(kind, content)
    except ValueError as error:
        return Outcome(error=str(error))
    try:
        if check is not None:
            check(request, settings)
        return Outcome(RUNNERS[kind](request, folder, settings, on_progress))
    except (TrainingError, TransformError, ServiceError) as error:
        return Outcome(error=str(error))
    except OSError as error:
        file = f": {Path(str(error.filename)).name}" if error.filename else ""  # its folder is the machine's own affair
        return Outcome(error=f"{error.strerror}{file}")
    except MemoryError:
        return Outcome(error="out of memory")
    except Exception as error:
        traceback.print_exc()  # into the job's log; the message may quote texts
        return Outcome(error=f"{type(error).__name__}; the log of the job's process says more")


def share_machine(settings: Settings) -> None:
    """Give way to serving, and compute with the threads that a job may use."""
    os.nice(5)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(settings.job_threads)
    threadpool_limits(settings.job_threads, user_api="blas")  # NumPy's, which a fork server starts with one
