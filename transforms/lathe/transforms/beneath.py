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

from lathe.transforms.files import NO_LINK, NO_WAIT, open_plain, read_within

MAX_LINKS = 40
"""Maximum number of links followed on the way to one file, as in Linux."""
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
"""Flags of `os.open` for a folder."""
FILE = os.O_RDONLY | NO_LINK | NO_WAIT
"""Flags of `os.open` for a file or a folder; opening a link fails, opening a pipe does not wait."""


class OutsideError(OSError):
    """A path, or a link along it, leads out of the folder it must stay in."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EXDEV, "it leads out of the folder", name)


def open_beneath(root: Path, name: str) -> BufferedReader:
    """Open the regular file `root/name` for reading bytes.

    Links on the way are followed, unless one leads out of `root`.

    Args:
        root: the folder; it may be a link.
        name: path of the file relative to the folder.

    Raises:
        OutsideError: if the name or a link leads out of the folder.
        FileNotFoundError, IsADirectoryError, OSError: as `open`; also for pipes and devices, and for too many links.
    """
    with _open_descriptor(root, name) as descriptor:
        return open_plain(descriptor, name)


def read_beneath(root: Path, name: str, max_bytes: int | None = None) -> bytes:
    """Read the regular file `root/name`, and return its bytes.

    Links on the way are followed, unless one leads out of `root`.

    Raises:
        OSError: what `open_beneath` raises; also for a file of more than `max_bytes`, where None allows any number.
    """
    with open_beneath(root, name) as file:
        return read_within(file, max_bytes)


def list_beneath(root: Path, name: str) -> list[str] | None:
    """List the regular files below the folder `root/name`, None if it is not a folder. A link out of `root` raises.

    Links to files are listed, links to folders are not entered, and broken links are left out.

    Returns:
        The sorted paths relative to `root`, or None if `root/name` is not a folder.

    Raises:
        OutsideError: if the name, or a link among the files, leads out of `root`.
        OSError: if it cannot be read.
    """
    with _open_descriptor(root, name) as descriptor:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return None

        paths = []
        for folder, _, files, held in os.fwalk(".", dir_fd=descriptor, onerror=_raise):
            for file in files:
                path = str(PurePosixPath(name, folder, file))
                mode = os.stat(file, dir_fd=held, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _leads_to_file(root, path)):
                    paths.append(path)

    return sorted(paths, key=lambda path: PurePosixPath(path).parts)


@contextmanager
def _open_descriptor(root: Path, name: str) -> Iterator[int]:
    """Open the file or folder `root/name` for the block, and yield the descriptor. A path out of `root` raises.

    The descriptor is closed after the block. Links are followed one part of the path at a time, and never out of
    `root`. The errors are as in `open_beneath`.
    """
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
                # Back by descriptor, because opening `..` would lead elsewhere if the folder was moved meanwhile.
                os.close(folders.pop())
                continue

            try:
                # Only the last part may be a file. Links fail to open, so none is followed without being checked.
                folders.append(os.open(part, FILE if not parts else FOLDER | NO_LINK, dir_fd=folders[-1]))
            except OSError as error:
                target = _read_link_target(part, folders[-1], error)
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None

                if target.is_absolute():  # it may point back into the folder
                    target = _make_relative_to_root(root, target, name)
                    while len(folders) > 1:
                        os.close(folders.pop())

                parts += reversed(target.parts)

        yield folders[-1]
    finally:
        for descriptor in folders:
            os.close(descriptor)


def _read_link_target(part: str, folder: int, error: OSError) -> PurePosixPath:
    """Return the path that a symbolic link points to. If `part` is not a link, raise `error`.

    With `error`, opening `part` failed.

    Args:
        part: name of the link.
        folder: descriptor of the folder that holds the link.
        error: raised by opening it without following links.
    """
    # O_NOFOLLOW fails with ELOOP on Linux and EMLINK on FreeBSD; with O_DIRECTORY a link may give ENOTDIR.
    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
        raise error
    try:
        return PurePosixPath(os.readlink(part, dir_fd=folder))
    except OSError:
        raise error from None


def _make_relative_to_root(root: Path, target: PurePosixPath, name: str) -> PurePosixPath:
    """Return the absolute path `target` relative to `root`.

    `root` may be spelled with links or with its links resolved.

    Raises:
        OutsideError: if it is not below `root`; names `name`.
    """
    # A link may spell the root as the caller does, or with its own links resolved.
    for known in (root.absolute(), root.resolve()):
        with suppress(ValueError):
            return target.relative_to(known)
    raise OutsideError(name)


def _leads_to_file(root: Path, name: str) -> bool:
    """Return whether `root/name` is a regular file that can be opened, False for a broken link. Outside `root`, raise.

    Raises:
        OutsideError: if it is outside `root`.
    """
    try:
        open_beneath(root, name).close()
    # OutsideError is an OSError: without this clause, a link that leads out would count as broken.
    except OutsideError:
        raise
    except OSError:
        return False

    return True


def _raise(error: OSError) -> None:
    """Raise `error`: passed to `os.fwalk`, which otherwise ignores folders that it cannot read."""
    raise error
