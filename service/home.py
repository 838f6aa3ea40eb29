"""The state folder.

$LATHE_HOME/
├── admin.key     the generated admin key, mode 600
├── encoders.json encoders added with `lathe encoders add`, see service.hosted
├── chains/       registry: <name>/<version>/, see service.registry
├── places.json   which chain answers which size
├── indexes/      <name>/, see service.index
├── shared/       this replica's copy of the chains and places in Redis, see service.shared
├── id            of this state folder, in the names of jobs only its owner can run
├── jobs/         <id>/: request, state, log and result of each job
└── vectors/      vectors of fits under way, and of foreign text

It holds callers' texts and vectors: the folder and those in it have mode 700, files 600. It and the folders directly in
it may be links to other disks; deeper links are never written through.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from transforms.files import make_folder, write_synced

PROBE = bytes(4096)
"""A block: on a full disk an empty file can still be made."""


@dataclass(frozen=True)
class Home:
    """Paths inside a state folder."""

    root: Path

    @property
    def chains(self) -> Path:
        """The registry."""
        return self.root / "chains"

    @property
    def places(self) -> Path:
        """Which chain answers which size."""
        return self.root / "places.json"

    @property
    def shared(self) -> Path:
        """The copy of what replicas share."""
        return self.root / "shared"

    @property
    def indexes(self) -> Path:
        """A folder for each index."""
        return self.root / "indexes"

    @property
    def jobs(self) -> Path:
        """A folder for each job."""
        return self.root / "jobs"

    @property
    def vectors(self) -> Path:
        """The workspace of fits."""
        return self.root / "vectors"

    @property
    def admin_key(self) -> Path:
        """The file with the generated key."""
        return self.root / "admin.key"

    @property
    def id(self) -> Path:
        """The file with the folder's id."""
        return self.root / "id"

    @property
    def areas(self) -> tuple[Path, ...]:
        """The folders in it."""
        return (self.chains, self.shared, self.indexes, self.jobs, self.vectors)

    def open(self) -> str | None:
        """Make the folder ready for writing: create what is missing, and take others' permissions where they have any.

        Returns:
            Why it cannot be written; None if it can.

        Raises:
            ValueError: for a folder that is not safe to use, see `require_safe`.
        """
        self.require_safe()
        try:
            if not self.root.exists():
                make_folder(self.root, private=True)
            for area in self.areas:
                if not area.is_dir():
                    make_folder(area, private=True)
        except OSError as error:
            return unwritable(error)
        self.require_safe()  # another may have been quicker to make it
        for folder in (self.root, *self.areas):
            take_permissions(folder.resolve())
        return self.problem()

    def require_writable(self) -> None:
        """Make the folder ready for writing, see `open`; raise `ValueError` if it cannot be written, or is not safe."""
        if problem := self.open():
            raise ValueError(f"{problem}: {self.root}; set LATHE_HOME to a folder that can")

    def require_safe(self) -> None:
        """Raise `ValueError` for a folder that others could put chains, indexes or links into.

        Its owner must be this process's user, or root, who can do anything anyway.
        """
        for folder in (self.root, *self.areas):
            with suppress(OSError):  # missing, or unreadable: another error says so
                found = folder.stat()
                if found.st_mode & stat.S_IWOTH:
                    raise ValueError(
                        f"every user of this machine can write to the state folder {folder}: look at what is in it, "
                        f"then chmod 700 {folder}, or set LATHE_HOME to a folder of its own, such as {folder / 'lathe'}"
                    )
                if found.st_uid not in (0, os.geteuid()):
                    raise ValueError(
                        f"the state folder {folder} belongs to user {found.st_uid}, this is user {os.geteuid()}: "
                        "run as that user, change its owner, or set LATHE_HOME to a folder of your own"
                    )

    def cautions(self) -> list[str]:
        """Who else can write to the folder although it is used."""
        writable = [folder for folder in (self.root, *self.areas) if is_group_writable(folder)]
        return [
            f"the group {folder.stat().st_gid} can write to the state folder {folder}: who is in it can change what is "
            "served"
            for folder in writable
        ]

    def tighten(self) -> None:
        """Take others' permissions on everything in the folder that belongs to this user; links are left alone."""
        for area in self.areas:
            for path in everything_in(area):
                take_permissions(path)
        with suppress(OSError):
            for path in self.root.iterdir():
                take_permissions(path)

    def problem(self) -> str | None:
        """Return why the folder cannot be written, by writing a block to it; None if it can."""
        probe = self.root / f".probe.{secrets.token_hex(4)}"
        try:
            write_synced(probe, PROBE, private=True)
        except OSError as error:
            return unwritable(error)
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
        return None

    def read_or_make_admin_key(self) -> str:
        """The generated admin key; made with mode 600 the first time.

        Raises:
            OSError: if it can be neither read nor written.
        """
        return read_or_make(self.admin_key, secrets.token_urlsafe(32))

    def read_or_make_id(self) -> str:
        """What tells this folder from others; errors as for the key."""
        return read_or_make(self.id, secrets.token_hex(8))


def read_or_make(path: Path, content: str) -> str:
    """A file's line; the first who asks for it writes it, with mode 600."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    if not path.exists():
        write_synced(staging, content.encode() + b"\n", private=True)
        try:
            os.link(staging, path)  # unlike a rename, never replaces another's
        except FileExistsError:
            pass
        finally:
            staging.unlink()
    return path.read_text().strip()


def unwritable(error: OSError) -> str:
    """Return the sentence on a state folder that cannot be written, without its path: anybody may read it."""
    return f"the state folder cannot be written: {error.strerror}"


def is_group_writable(folder: Path) -> bool:
    """Return whether the group of a folder can write to it."""
    with suppress(OSError):
        return bool(folder.stat().st_mode & stat.S_IWGRP)
    return False


def everything_in(folder: Path) -> Iterator[Path]:
    """Yield every file and folder below a folder; links are yielded and not followed."""
    for inside, folders, files in os.walk(folder):
        yield from (Path(inside, name) for name in (*folders, *files))


def take_permissions(path: Path) -> None:
    """Take what group and others may do with a file or folder of this user.

    Left as they are: links, files with another name elsewhere, and what belongs to others, such as the root of a
    volume in Kubernetes.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError):
        found = path.lstat()
        plain = stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
        if not plain or not found.st_mode & 0o077 or found.st_uid != os.geteuid():
            return
        descriptor = os.open(path, flags)
        try:
            now = os.fstat(descriptor)
            if (now.st_dev, now.st_ino, now.st_nlink) == (found.st_dev, found.st_ino, found.st_nlink):
                os.fchmod(descriptor, stat.S_IMODE(now.st_mode) & ~0o077)
        finally:
            os.close(descriptor)
