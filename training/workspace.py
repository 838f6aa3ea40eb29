"""Folders for vectors under way: one for each source and encoder, found again after a kill."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from training.errors import TrainingError
from training.locks import lock_file
from transforms.files import make_folder, make_root

KEPT_SECONDS = 7 * 24 * 3600
"""How long the vectors of a stopped run wait to be taken up again."""


@contextmanager
def claimed_folder(root: Path, key: str) -> Iterator[Path]:
    """A folder of this key that no other process uses; removed when the work in it succeeds.

    After an error or a kill it stays, for the next run with the same key to go on in; after a
    week it is swept. Two runs at once with one key get two folders.
    """
    make_root(root)
    sweep(root)
    number = 0
    while True:
        number += 1
        folder = root / f"{key}.{number}"
        lock = lock_of(folder)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        with lock:
            make_folder(folder)
            yield folder
            shutil.rmtree(folder, ignore_errors=True)
        return


@contextmanager
def exclusive(folder: Path, refusal: TrainingError) -> Iterator[None]:
    """A folder that a user named, made where it is missing, for one run at a time.

    Raises:
        TrainingError: the refusal, if another run has it.
    """
    make_root(folder)
    try:
        with lock_file(folder / ".lock").acquire(blocking=False):
            yield
    except Timeout:
        raise refusal from None


def sweep(root: Path) -> None:
    """Remove folders that nobody has used for a week and nobody holds."""
    for folder in root.glob("*.[0-9]*"):
        if not folder.is_dir() or time.time() - folder.stat().st_mtime < KEPT_SECONDS:
            continue
        try:
            with lock_of(folder).acquire(blocking=False):
                shutil.rmtree(folder, ignore_errors=True)
        except Timeout:
            continue


def lock_of(folder: Path) -> FileLock:
    """The lock on a folder; the system frees it when its holder dies."""
    return lock_file(folder.with_name(f"{folder.name}.lock"))
