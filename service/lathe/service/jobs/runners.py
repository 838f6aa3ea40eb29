"""The function that runs each kind of job, and the outcome of a job."""

import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from lathe.service.errors import ServiceError
from lathe.service.jobs.kinds.adapt import run_adapt_job
from lathe.service.jobs.kinds.advise import run_advice_job
from lathe.service.jobs.kinds.fit import run_fit_job
from lathe.service.jobs.kinds.reindex import run_reindex
from lathe.service.jobs.kinds.train import run_train_job
from lathe.service.jobs.requests import AnyJob, parse_request
from lathe.service.jobs.store import Job
from lathe.service.settings import Settings
from lathe.service.waiting import StandingMessage
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError
from lathe.transforms.files import expand_home
from lathe.transforms.progress import Progress

PROGRESS_SECONDS = 0.25
"""Minimum seconds between two writes of a job's progress."""
STANDING_WRITE_SECONDS = 5.0
"""Seconds between two writes of a job whose progress stands."""

Runner = Callable[[Any, Path, Settings, Progress], dict[str, Any]]
"""Runs a validated request, see `lathe.service.jobs.requests`, in the job's folder, and returns the result as JSON."""
RUNNERS: dict[str, Runner] = {
    "fit": run_fit_job,
    "advise": run_advice_job,
    "reindex": run_reindex,
    "train": run_train_job,
    "adapt": run_adapt_job,
}


class ProgressReporter:
    """A progress callback that updates a job, and writes it at most every `PROGRESS_SECONDS`.

    Within its block, the job is also written every `STANDING_WRITE_SECONDS`, so that a message that stands says so.
    """

    def __init__(self, job: Job, write: Callable[[Job], object]) -> None:
        self.job = job
        self.write = write
        self.message = StandingMessage()
        self.written = 0.0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_regularly, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()  # no write may follow that of the job's end

    def __call__(self, fraction: float, message: str) -> None:
        """Set the progress and message of the job, and write it if the last write is `PROGRESS_SECONDS` ago.

        The progress never decreases.
        """
        self.message.say(message)
        self.job = replace(self.job, progress=round(max(self.job.progress, min(fraction, 1.0)), 4), message=message)
        # Steps may take microseconds, a write to disk or Redis much longer.
        if time.monotonic() - self.written >= PROGRESS_SECONDS:
            self._write()

    def _write(self) -> None:
        with self._lock:
            self.write(replace(self.job, message=self.message.describe()))
            self.written = time.monotonic()

    def _write_regularly(self) -> None:
        while not self._ended.wait(STANDING_WRITE_SECONDS):
            with suppress(OSError):  # a full disk fails the job where it writes its results
                self._write()


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job: either a result or an error."""

    result: dict[str, Any] | None = None
    error: str | None = None

    def end_job(self, job: Job) -> Job:
        """Return a copy of the job in state "succeeded" or "failed", with this outcome's result or error."""
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


def run_request(
    kind: str,
    content: bytes,
    folder: Path,
    settings: Settings,
    on_progress: Progress,
    prepare: Callable[[AnyJob], AnyJob] | None = None,
) -> JobOutcome:
    """Validate and run a job's request. Return its result, or the error it failed with, as an outcome.

    An unexpected error's traceback is printed to stderr, and its message left out of the outcome: it may quote texts.

    Args:
        kind: kind of the job.
        content: its request as JSON.
        folder: folder with its inputs, to which results are written; named by the job's id.
        settings: settings of the process.
        on_progress: called with progress in [0, 1] and a message.
        prepare: returns the request as it is run here, or raises a `ServiceError` if it may not be; None to run it as
            it is.
    """
    try:
        request = parse_request(kind, content)
    except ValueError as error:
        return JobOutcome(error=str(error))

    try:
        if prepare is not None:
            request = prepare(request)
        return JobOutcome(RUNNERS[kind](request, folder, settings, on_progress))
    except (TrainingError, TransformError, ServiceError) as error:
        return JobOutcome(error=_hide_folders(str(error), folder, settings))
    except OSError as error:
        # The name without the folder, which callers need not know.
        file = f": {Path(str(error.filename)).name}" if error.filename else ""
        return JobOutcome(error=f"{error.strerror}{file}")
    except MemoryError:
        return JobOutcome(error="out of memory")
    except Exception as error:
        traceback.print_exc()  # into the job's log
        return JobOutcome(error=f"{type(error).__name__}; the log of the job's process says more")


def _hide_folders(message: str, folder: Path, settings: Settings) -> str:
    """Return an error message with paths relative to the job's folder, the data folder or the state folder.

    Whoever may read jobs need not know where these are.
    """
    known = (folder, settings.data_root, expand_home(settings.home))
    for root in (path for known_path in known if known_path is not None for path in (known_path, known_path.resolve())):
        message = message.replace(f"{root}/./", "").replace(f"{root}/", "")
    return message


def limit_resources(settings: Settings) -> None:
    """Give way to all other processes, and limit torch and BLAS to the settings' number of job threads."""
    yield_to_others(settings.job_nice)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(settings.job_threads)
    threadpool_limits(settings.job_threads, user_api="blas")  # NumPy's, which a fork server starts with one


def yield_to_others(nice: int) -> None:
    """Lower this process's priority by `nice`: requests go before jobs, which take what is left of the cores.

    Threads that it starts later inherit that. What the system does not have, or does not allow, is left out. With the
    policy SCHED_IDLE, any other process would stop a job entirely, and serving would lose no less.
    """
    os.nice(nice)
    # Linux may share the cores among sessions first (sched_autogroup), and look at a process's priority only within its
    # own session, which a job's process has for itself.
    if hasattr(os, "getsid") and os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))
