"""Workspace folders of running jobs, which are resumed after a kill, and the digest function of their keys."""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lathe.training.errors import TrainingError
from lathe.training.locks import lock_file
from lathe.transforms.files import make_folder, make_root

KEPT_SECONDS = 7 * 24 * 3600
"""Seconds, a week, after which the folder of a stopped run is deleted if no run resumed it."""


@contextmanager
def claim_workspace_folder(root: Path, key: str, keep: bool = False) -> Iterator[Path]:
    """Create or resume the folder `root/key.N`, lock it for the block, and yield its path. Deleted, unless `keep`.

    The folder is deleted if the block succeeds, unless `keep`. If the block raises or the process is killed, the folder
    stays, and the next call with the same key resumes it. N is the lowest number whose folder is not locked, so that
    concurrent runs with the same key get different folders. Unlocked folders that were not modified for `KEPT_SECONDS`
    are deleted first.
    """
    make_root(root)
    _delete_stale_folders(root)
    number = 0
    while True:
        number += 1
        folder = root / f"{key}.{number}"
        lock = get_folder_lock(folder)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        with lock:
            make_folder(folder)
            yield folder
            if not keep:
                _delete_locked(folder)
        return


@contextmanager
def lock_folder(folder: Path, error: TrainingError) -> Iterator[None]:
    """Create a folder if missing, and hold its lock while the block runs. Raise `error` if another run holds it."""
    make_root(folder)
    try:
        with lock_file(folder / ".lock").acquire(blocking=False):
            yield
    except Timeout:
        raise error from None


def _delete_stale_folders(root: Path) -> None:
    """Delete the folders `root/KEY.N` that were not modified for `KEPT_SECONDS` and that no process has locked."""
    for folder in root.glob("*.[0-9]*"):
        if not folder.is_dir() or time.time() - folder.stat().st_mtime < KEPT_SECONDS:
            continue
        try:
            with get_folder_lock(folder).acquire(blocking=False):
                _delete_locked(folder)
        except Timeout:
            continue


def _delete_locked(folder: Path) -> None:
    """Delete a folder whose lock is held, and its lock file. Processes that wait for the lock create the file again."""
    shutil.rmtree(folder, ignore_errors=True)
    Path(get_folder_lock(folder).lock_file).unlink(missing_ok=True)


def get_folder_lock(folder: Path) -> FileLock:
    """Return the lock of a workspace folder, the file `NAME.lock` next to the folder. It is not acquired yet."""
    return lock_file(folder.with_name(f"{folder.name}.lock"))


def digest(*parts: object) -> str:
    """Compute the SHA-256 of JSON-serializable values, serialized as one JSON list, as 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
