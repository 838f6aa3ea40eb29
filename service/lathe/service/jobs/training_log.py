"""The training log of a job, which is there while it runs."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lathe.transforms.progress import Progress

LOG = "log.jsonl"
"""Name of the result file with the training log."""

WRITTEN = "training/progress.jsonl"
"""Path of the log in the folder of a training, which lies in a work folder or is one."""

COPY_SECONDS = 0.25
"""Minimum seconds between two searches of the work folder: progress is reported after each batch."""


class TrainingLog:
    """Copies the log of the training that runs to a job's folder.

    Args:
        folder: folder of the job.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work_folder: Path | None = None
        self.copied_at = 0.0

    def watch(self, work_folder: Path) -> None:
        """Note the folder below which trainings write their logs."""
        self.work_folder = work_folder

    def follow(self, on_progress: Progress) -> Callable[[float, str], None]:
        """Return a callback that copies the log if it has grown, every `COPY_SECONDS`, and reports the progress."""

        def report(fraction: float, message: str) -> None:
            if time.monotonic() - self.copied_at >= COPY_SECONDS:
                with suppress(OSError):  # a disk that is full does not stop the training
                    self._copy()
                self.copied_at = time.monotonic()
            on_progress(fraction, message)

        return report

    def _copy(self) -> None:
        """Copy the log of the training that wrote last, unless it is copied already."""
        logs = [] if self.work_folder is None else list(self.work_folder.glob(f"**/{WRITTEN}"))
        if not logs:
            return
        log = max(logs, key=lambda path: path.stat().st_mtime)
        target = self.folder / LOG
        if not target.exists() or log.stat().st_size != target.stat().st_size:
            staging = self.folder / f".{LOG}"
            shutil.copyfile(log, staging)
            staging.replace(target)
