"""File locks between threads and processes, which the operating system releases when their holder dies."""

from pathlib import Path

from filelock import FileLock

from lathe.transforms.files import PRIVATE_FILE, permissions_in


def lock_file(path: Path, timeout: float = -1) -> FileLock:
    """Return a lock on a file, which is not acquired yet.

    Acquiring it creates the file if missing, and fails for a symbolic link. A new lock file gets the permissions of its
    folder without the execute bits. Any thread of the process may release the lock.

    Args:
        path: path of the lock file. Its folder must exist by the time the lock is acquired.
        timeout: seconds that acquiring waits before it raises `filelock.Timeout`; -1 waits forever.
    """
    try:
        mode = permissions_in(path.parent) & 0o666
    except FileNotFoundError:  # acquiring it says so
        mode = PRIVATE_FILE
    return FileLock(path, timeout, mode, thread_local=False)
