"""Locks among threads and processes, which the system frees when their holder dies."""

from pathlib import Path

from filelock import FileLock

from transforms.files import PRIVATE_FILE, permissions_in


def lock_file(path: Path, timeout: float = -1) -> FileLock:
    """Return a lock on a file that is made where it is missing, as private as its folder; a link is no lock.

    Args:
        path: of the file, whose folder is there.
        timeout: seconds to wait for it; -1 waits for ever.
    """
    try:
        mode = permissions_in(path.parent) & 0o666
    except FileNotFoundError:  # acquiring it says so
        mode = PRIVATE_FILE
    return FileLock(path, timeout, mode, thread_local=False)
