"""One process owns an index: the graph is in its memory, and the record has one writer.

The lock lies beside the index's folder, so that it stays while the folder comes and goes.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from service.errors import ConflictError, UnavailableError


def own(folder: Path, name: str) -> FileLock:
    """The right to an index.

    Raises:
        ConflictError: if another process has it.
    """
    lock = FileLock(lock_file(folder), thread_local=False)
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
        note.write_text(json.dumps({"pid": os.getpid()}))
    return lock


def lock_file(folder: Path) -> Path:
    """Where an index's lock lies."""
    return folder.with_name(f".{folder.name}.lock")
