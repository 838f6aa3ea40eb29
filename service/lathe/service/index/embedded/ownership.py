"""Ownership of an index by one process, because the graph is in its memory, and the record has one writer.

The lock file lies beside the folder of the index, so that it stays when the folder is created or deleted.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lathe.service.errors import ConflictError, UnavailableError
from lathe.training.locks import lock_file
from lathe.transforms.files import create_file


def acquire_index(folder: Path, name: str) -> FileLock:
    """Acquire the lock of an index without waiting, and return the lock.

    The process id is written to `owner.json` in the folder, if that is possible.

    Raises:
        ConflictError: if another process holds the lock.
        UnavailableError: if the lock file cannot be used.
    """
    lock = lock_file(_build_lock_path(folder))
    note = folder / "owner.json"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = "another process"
        with suppress(OSError, ValueError, KeyError):
            owner = f"process {json.loads(note.read_bytes())['pid']}"
        raise ConflictError(
            f"the index {name} is owned by {owner}, and one process owns an index: send its requests there",
            param="name",
            code="index_owned_elsewhere",
        ) from None
    except OSError as error:
        raise UnavailableError(f"the index {name} cannot be locked: {error.strerror}") from error
    with suppress(OSError):  # there may be no folder yet, or no more
        with create_file(note) as file:
            file.write(json.dumps({"pid": os.getpid()}).encode())
    return lock


def _build_lock_path(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")
