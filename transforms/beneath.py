"""Files below a folder, opened so that neither `..` nor a link leads out of it.

Each folder on the way is opened by descriptor below the one before (`openat`), so that nothing can be exchanged between
a check and its use. The folder itself may be a link. Links below it are followed as long as they stay below it.

root ── a ── b ── file
 │      fd   fd   fd      a link: its target's parts are walked from the descriptor that holds the link
 fd ◄── `..` goes back one descriptor; past `root` it is refused
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath

from transforms.files import NO_LINK, NO_WAIT

MAX_LINKS = 40
"""Links on the way to one file, as in Linux."""
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
FILE = os.O_RDONLY | NO_LINK | NO_WAIT


class OutsideError(OSError):
    """A path, or a link on its way, that leads out of the folder."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EXDEV, "it leads out of the folder", name)


def open_beneath(root: Path, name: str) -> BufferedReader:
    """Open a plain file below a folder for reading.

    Args:
        root: the folder; it may be a link.
        name: of the file, relative to the folder.

    Raises:
        OutsideError: if the name or a link leads out of the folder.
        FileNotFoundError, IsADirectoryError, OSError: as `open`; also for pipes and devices, and for too many links.
    """
    with opened(root, name) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a plain file", name)
        return os.fdopen(os.dup(descriptor), "rb")


def read_beneath(root: Path, name: str) -> bytes:
    """Return the bytes of a file below a folder; errors as `open_beneath`."""
    with open_beneath(root, name) as file:
        return file.read()


def list_beneath(root: Path, name: str) -> list[str] | None:
    """Return the names of all plain files below a folder that lies below `root`, sorted, relative to `root`.

    Folders that are links are not entered; links to nothing are left out.

    Returns:
        None if the name is a file's.

    Raises:
        OutsideError: if the name, or a link among the files, leads out of `root`.
        OSError: if it cannot be read.
    """
    with opened(root, name) as descriptor:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return None
        found = []
        for folder, _, files, held in os.fwalk(".", dir_fd=descriptor, onerror=_raise):
            for file in files:
                path = str(PurePosixPath(name, folder, file))
                mode = os.stat(file, dir_fd=held, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _leads_to_file(root, path)):
                    found.append(path)
    return sorted(found, key=lambda path: PurePosixPath(path).parts)


@contextmanager
def opened(root: Path, name: str) -> Iterator[int]:
    """Open a file or folder below a folder by descriptor, until the block ends; errors as `open_beneath`."""
    folders = [os.open(root, FOLDER)]
    parts, links = list(reversed(PurePosixPath(name).parts)), 0
    try:
        while parts:
            part = parts.pop()
            if part == "/":
                raise OutsideError(name)
            if part == "..":
                if len(folders) == 1:
                    raise OutsideError(name)
                os.close(folders.pop())
                continue
            try:
                folders.append(os.open(part, FILE if not parts else FOLDER | NO_LINK, dir_fd=folders[-1]))
            except OSError as error:
                target = _target_of_link(part, folders[-1], error)
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
                if target.is_absolute():  # it may point back into the folder
                    target = _below(root, target, name)
                    while len(folders) > 1:
                        os.close(folders.pop())
                parts += reversed(target.parts)
        yield folders[-1]
    finally:
        for descriptor in folders:
            os.close(descriptor)


def _target_of_link(part: str, folder: int, error: OSError) -> PurePosixPath:
    """Return where a link points that could not be opened as a file or folder; raise the error if it is none."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
        raise error
    try:
        return PurePosixPath(os.readlink(part, dir_fd=folder))
    except OSError:
        raise error from None


def _below(root: Path, target: PurePosixPath, name: str) -> PurePosixPath:
    """Return an absolute target relative to the folder.

    Raises:
        OutsideError: if it lies elsewhere.
    """
    for known in (root.absolute(), root.resolve()):
        with suppress(ValueError):
            return target.relative_to(known)
    raise OutsideError(name)


def _leads_to_file(root: Path, name: str) -> bool:
    """Return whether a link leads to a file; raise `OutsideError` if it leads out of the folder."""
    try:
        open_beneath(root, name).close()
    except OutsideError:
        raise
    except OSError:
        return False
    return True


def _raise(error: OSError) -> None:
    """Let an error of a walk through."""
    raise error
