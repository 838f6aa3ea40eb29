"""Writing files and folders: whole or not at all, as private as the folder around them, never through a link.

A file in a folder of mode 700 gets mode 600, a folder in it 700, whatever the umask; elsewhere the umask decides.
A file that is written new takes the place of what has its name: a link is replaced and what it points to stays as it
is. A file that is continued must be a plain file with this one name.
"""

import errno
import os
import stat
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""A pipe that nobody writes to would hold up whoever opens it."""


def permissions_in(folder: Path) -> int:
    """Return the permission bits for folders in a folder: all of the owner's, and of others' those it has itself."""
    return PRIVATE_FOLDER | (folder.stat().st_mode & 0o077)


def create_file(path: Path, private: bool = False) -> BufferedRandom:
    """Create a file and return it open for writing; what has its name is removed, and nothing behind a link touched.

    Args:
        path: of the file.
        private: mode 600 whatever the folder's.

    Raises:
        OSError: if it cannot be created.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    mode = PRIVATE_FILE if private else 0o666 & permissions_in(path.parent)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK, mode), "w+b")


def continue_file(path: Path, append: bool = False) -> BufferedRandom:
    """Open a file for reading and writing where it is, created if it is missing.

    Args:
        path: of the file.
        append: whether all that is written goes to its end.

    Raises:
        OSError: if it is a link, no plain file, or has another name too: that one might be somebody else's.
    """
    flags = os.O_RDWR | os.O_CREAT | NO_LINK | NO_WAIT | (os.O_APPEND if append else 0)
    file = os.fdopen(os.open(path, flags, 0o666 & permissions_in(path.parent)), "r+b")
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        file.close()
        raise OSError(errno.EMLINK, "it is not a plain file with one name", path.name)
    return file


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and those above it, where they are missing.

    Args:
        path: of the folder.
        private: mode 700 whatever the mode of the folder above.

    Raises:
        NotADirectoryError: if it is a link or a file.
        OSError: if it cannot be created.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process was quicker
            folder.mkdir(PRIVATE_FOLDER if private and folder == path else permissions_in(folder.parent))
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory: a link or a file is in its place", path.name)


def make_root(path: Path) -> None:
    """Create a folder where there is none; unlike for `make_folder`, an operator may have put a link in its place."""
    if not path.is_dir():
        make_folder(path)


def write_synced(path: Path, payload: bytes, private: bool = False) -> None:
    """Write a new file and wait until the disk has it."""
    with create_file(path, private) as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, payload: bytes, private: bool = False) -> None:
    """Do the same for a file that others may be reading: it is there whole, as it was or as it will be."""
    staging = path.with_name(f".{path.name}")
    try:
        write_synced(staging, payload, private)
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)  # on a full disk it would keep the last bytes
        raise


def sync_folder(path: Path) -> None:
    """Wait until the disk has the folder's entries, so that a rename survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
