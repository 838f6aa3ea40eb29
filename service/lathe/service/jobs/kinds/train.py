"""Job that trains an encoder, `POST /train`, and the log of what jobs train."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lathe.service.jobs.job import LOG
from lathe.service.jobs.requests import JobRequest
from lathe.service.jobs.sources import locate_data_sets
from lathe.service.settings import Settings
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.finetuning.requests import NewTraining
from lathe.transforms.progress import Progress

WRITTEN = "training/progress.jsonl"
"""Path of the log in the folder of a training, which lies in a work folder or is one."""

COPY_SECONDS = 0.25
"""Minimum seconds between two searches of the work folder: progress is reported after each batch."""


class TrainJob(JobRequest):
    """A training with the specs of the encoder to train and of the one that mines negatives."""

    encoder: EncoderSpec
    auxiliary: EncoderSpec
    request: NewTraining

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Train the encoder and publish it.

        Returns the dict of `train_encoder`, with the `log_url` of the training log. The training log is copied to the
        job's folder each time it grows.
        """
        from lathe.service.publishing.context import PublishContext
        from lathe.service.publishing.training import require_free_name, train_encoder

        require_free_name(self.request.name, settings)
        self.request.check()
        # A link may have appeared since the request came.
        located = locate_data_sets(self.request.job, settings.data_root)
        request = self.request.model_copy(update={"job": located})
        log = JobTrainingLog(folder)
        names = [request.name]
        context = PublishContext.open(settings, "POST /train", names, folder.name, log.watch, on_progress)
        reporting = log.follow(on_progress)
        result = train_encoder(request, context, reporting, base=self.encoder, auxiliary=self.auxiliary)
        return result | {"log_url": f"/jobs/{folder.name}/log"}


class JobTrainingLog:
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
