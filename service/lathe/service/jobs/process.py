"""The process of one job, run as `python -m lathe.service.jobs.process JOB`."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from lathe.service.errors import BadValueError, ForbiddenError, ServiceError
from lathe.service.home import Home
from lathe.service.jobs.folder import FolderQueue
from lathe.service.jobs.job import Job, JobQueue
from lathe.service.jobs.requests import JobRequest, parse_request
from lathe.service.settings import Settings, read_settings
from lathe.service.waiting import StandingMessage
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError
from lathe.transforms.files import expand_home
from lathe.transforms.progress import Progress, part_of

PROGRESS_SECONDS = 0.25
"""Minimum seconds between two writes of a job's progress."""
STANDING_WRITE_SECONDS = 5.0
"""Seconds between two writes of a job whose progress stands."""
PARENT_SECONDS = 0.5
"""Seconds between two checks of whether the worker is alive."""


class _ProgressReporter:
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
        """Set the progress and message of the job, and write the job at most every `PROGRESS_SECONDS`.

        The progress never decreases.
        """
        self.message.say(message)
        self.job = replace(self.job, progress=round(max(self.job.progress, min(fraction, 1.0)), 4), message=message)
        # Steps may take microseconds, a write to disk or Redis much longer.
        if time.monotonic() - self.written >= PROGRESS_SECONDS:
            self._write()

    def _write(self) -> None:
        """Write the job. A message that has not changed for long says since when."""
        with self._lock:
            self.write(replace(self.job, message=self.message.describe()))
            self.written = time.monotonic()

    def _write_regularly(self) -> None:
        while not self._ended.wait(STANDING_WRITE_SECONDS):
            with suppress(OSError):  # a full disk fails the job where it writes its results
                self._write()


def run_job(queue: JobQueue, job_id: str, settings: Settings) -> None:
    """Run a job to its end, and write progress, result files and end to the queue, unless it must not run.

    Nothing is run if the job has ended or was cancelled, or another process runs it. An error of the job becomes its
    end, and is not raised.
    """
    with queue.claim(job_id) as claimed:
        if claimed is None:
            return
        job, folder = claimed
        content = queue.read_request(job_id)
        reporter = _ProgressReporter(job, partial(queue.write_progress, folder=folder))
        with reporter:
            problem = queue.fetch_inputs(job_id, folder)
            try:
                if problem:
                    raise BadValueError(problem)
                request = parse_request(job.kind, content)
                if queue.shared:
                    _require_allowed(request, settings)
                    request = _find_trained_encoders(request, settings, reporter)
                result = request.run(folder, settings, reporter)
            except Exception as error:
                ended = reporter.job.fail(_describe_error(error, folder, settings))
            else:
                ended = reporter.job.succeed(result)
        queue.end(ended, folder)


def _describe_error(error: Exception, folder: Path, settings: Settings) -> str:
    """Describe for a caller the error that ended a job. Print the traceback of an unexpected error to stderr.

    The message of an unexpected error is left out, because it may quote texts.
    """
    match error:
        case TrainingError() | TransformError() | ServiceError():
            return _hide_folders(str(error), folder, settings)
        case OSError():
            # The name without the folder, which callers need not know.
            file = f": {Path(str(error.filename)).name}" if error.filename else ""
            return f"{error.strerror}{file}"
        case MemoryError():
            return "out of memory"
        case _:
            traceback.print_exception(error)  # into the job's log
            return f"{type(error).__name__}; the log of the job's process says more"


def _hide_folders(message: str, folder: Path, settings: Settings) -> str:
    """Make absolute paths in an error message relative to the job's folder, the data folder or the state folder.

    Callers of the API do not need to know where these folders are.
    """
    known = (folder, settings.data_root, expand_home(settings.home))
    for root in (path for known_path in known if known_path is not None for path in (known_path, known_path.resolve())):
        message = message.replace(f"{root}/./", "").replace(f"{root}/", "")
    return message


def _require_allowed(request: JobRequest, settings: Settings) -> None:
    """Raise unless this worker's own settings allow the paths, embeddings APIs and model code of the request.

    The settings are checked again because whoever can write to Redis can request a job.

    Raises:
        ForbiddenError: if a path is outside this worker's data root, an embeddings API is not in its settings, whose
            key would else be sent to any address, or a model has code of its own that this worker's
            settings do not trust.
        UnknownNameError: if a file does not exist.
    """
    from lathe.service.jobs.sources import resolve_allowed_path

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


def _find_trained_encoders(request: JobRequest, settings: Settings, on_progress: Progress) -> JobRequest:
    """Copy missing trained encoders from Redis, and replace their specs in the request by specs with local paths.

    In the request, the folders are on the server that queued the job.

    Raises:
        UnknownNameError: if Redis has no such version.
    """
    named = {field: spec for field, spec in request.encoders.items() if "@" in spec.name}
    if not named:
        return request
    from lathe.service.publishing.context import open_trained
    from lathe.service.waiting import wait_for_redis

    names = {spec.name.partition("@")[0] for spec in named.values()}
    home = Home(settings.home)
    trained = wait_for_redis(lambda: open_trained(home, settings.redis_url, names), part_of(on_progress, 0.0, 0.0))
    specs = {field: trained.build_spec(*trained.resolve(spec.name), spec.dtype) for field, spec in named.items()}
    return request.model_copy(update=specs)


def _limit_resources(settings: Settings) -> None:
    """Lower this process's priority by `job_nice`, and limit torch and BLAS to `job_threads` threads."""
    yield_to_others(settings.job_nice)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(settings.job_threads)
    threadpool_limits(settings.job_threads, user_api="blas")  # NumPy's, which a fork server starts with one


def yield_to_others(nice: int) -> None:
    """Lower this process's priority by `nice`, so that requests are served before jobs.

    Threads that the process starts later inherit the priority. What the system does not have, or does not allow, is
    skipped. With the policy SCHED_IDLE, any other process would stop a job entirely, and serving would lose no less.
    """
    os.nice(nice)
    # Linux may share the cores among sessions first (sched_autogroup), and look at a process's priority only within its
    # own session, which a job's process has for itself.
    if hasattr(os, "getsid") and os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def _open_queue(settings: Settings) -> JobQueue:
    if not settings.redis_url:
        return FolderQueue(Home(settings.home).jobs)
    from lathe.service.jobs.redis_queue import RedisQueue

    return RedisQueue.open(settings)


def _exit_with_parent(parent: int) -> None:
    """Wait until `parent`, the worker that started this process, has ended, then exit this process.

    The job is then given to another worker.
    """
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Run the job whose id is the only argument, with lower priority. With Redis, exit when the worker ends.

    Args:
        arguments: the job's id.
    """
    parent = os.getppid()
    settings = read_settings()
    queue = _open_queue(settings)
    if queue.shared:
        threading.Thread(target=_exit_with_parent, args=[parent], daemon=True).start()
    _limit_resources(settings)
    run_job(queue, arguments[0], settings)


if __name__ == "__main__":
    main(sys.argv[1:])
