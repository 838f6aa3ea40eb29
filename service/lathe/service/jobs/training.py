"""Jobs that train encoders: a training and an adaptation, and the log of what they train."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.home import Home
from lathe.service.jobs.job import LOG
from lathe.service.jobs.sources import locate_data_sets, locate_inputs, resolve_allowed_folder
from lathe.service.registries import open_registry, open_trained
from lathe.service.settings import Settings
from lathe.service.waiting import wait_for_redis
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.service.jobs.requests import AdaptJob, TrainJob

WRITTEN = "training/progress.jsonl"
"""Path of the log in the folder of a training, which lies in a work folder or is one."""

COPY_SECONDS = 0.25
"""Minimum seconds between two searches of the work folder: progress is reported after each batch."""


def run_train_job(job: "TrainJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Train the encoder that a job requests, and publish it.

    Returns the dict of `train_encoder`, with the `log_url` of the training log. The training log is copied to the job's
    folder each time it grows.
    """
    from lathe.service.encoders.training import TrainingContext, require_free_name, train_encoder

    home = Home(settings.home)
    require_free_name(job.request.name, settings)
    job.request.check()
    # A link may have appeared since the request came.
    request = job.request.model_copy(update={"job": locate_data_sets(job.request.job, settings.data_root)})
    log = TrainingLog(folder)
    context = TrainingContext(
        wait_for_redis(lambda: open_trained(home, settings.redis_url, [request.name]), part_of(on_progress, 0.0, 0.0)),
        home.training,
        "POST /train",
        job.encoder,
        job.auxiliary,
        settings,
        job=folder.name,
        on_work_folder=log.watch,
    )
    return train_encoder(request, context, log.follow(on_progress)) | {"log_url": f"/jobs/{folder.name}/log"}


def run_adapt_job(job: "AdaptJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Try what judged searches can improve, and publish the recommended change if the request has a name.

    Returns the dict of `lathe.service.encoders.adaptations.Adaptation.to_json`.
    """
    from lathe.service.encoders.adaptations import AdaptationContext, run_adaptation
    from lathe.training.encoder.opening import open_encoder

    request = locate_inputs(job.request, job.files, folder)
    for path in request.folders:  # a link may have appeared since the request came
        resolve_allowed_folder(path, settings.data_root, "folders")
    on_progress(0.0, "loading the encoder")
    encoder = open_encoder(job.encoder, settings.device, settings.vector_stores)
    home = Home(settings.home)
    waiting = part_of(on_progress, 0.0, 0.0)
    registry = wait_for_redis(lambda: open_registry(home, settings.redis_url), waiting)
    trained = wait_for_redis(
        lambda: open_trained(home, settings.redis_url, [request.name] if request.name else []), waiting
    )
    log = TrainingLog(folder)
    context = AdaptationContext(
        settings, registry, trained, home, "POST /adapt", job=folder.name, on_work_folder=log.watch
    )
    return run_adaptation(request, encoder, context, log.follow(on_progress)).to_json()


class TrainingLog:
    """Copies the log of the running training to a job's folder.

    Args:
        folder: folder of the job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work_folder: Path | None = None
        self.copied_at = 0.0

    def watch(self, work_folder: Path) -> None:
        """Set the folder below which trainings write their logs."""
        self.work_folder = work_folder

    def follow(self, on_progress: Progress) -> Callable[[float, str], None]:
        """Return a progress callback that passes progress on and copies a grown log every `COPY_SECONDS`."""

        def report(fraction: float, message: str) -> None:
            if time.monotonic() - self.copied_at >= COPY_SECONDS:
                with suppress(OSError):  # a disk that is full does not stop the training
                    self._copy()
                self.copied_at = time.monotonic()
            on_progress(fraction, message)

        return report

    def _copy(self) -> None:
        """Copy the newest training log below the work folder, unless the copy has its size already."""
        logs = [] if self.work_folder is None else list(self.work_folder.glob(f"**/{WRITTEN}"))
        if not logs:
            return
        log = max(logs, key=lambda path: path.stat().st_mtime)
        target = self.folder / LOG
        if not target.exists() or log.stat().st_size != target.stat().st_size:
            staging = self.folder / f".{LOG}"
            shutil.copyfile(log, staging)
            staging.replace(target)
