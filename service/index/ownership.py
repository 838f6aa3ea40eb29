"""One process owns an index: the graph is in its memory, and the record has one writer."""

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
    lock = FileLock(folder / ".lock", thread_local=False)
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
    with suppress(OSError):
        note.write_text(json.dumps({"pid": os.getpid()}))
    return lock
