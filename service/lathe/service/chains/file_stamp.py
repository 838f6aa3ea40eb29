"""Recognition of files that were replaced since they were read, so that memory need not be trusted."""

from pathlib import Path

FileStamp = tuple[int, int]
"""Inode and modification time of a path in nanoseconds."""

MISSING: FileStamp = (0, 0)
"""Stamp of a path that does not exist."""


def get_file_stamp(path: Path) -> FileStamp:
    """Return a path's inode and modification time, by which a replaced file is noticed, or `MISSING` without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return MISSING
    return (status.st_ino, status.st_mtime_ns)
