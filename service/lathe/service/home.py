"""The state folder: its paths, permissions and checks.

$LATHE_HOME/
├── admin.key     the generated admin key, mode 600
├── encoders.json encoders added with `lathe encoders add`, see lathe.service.encoder_settings
├── chains/       registry: <name>/<version>/, see lathe.service.chains.registry
├── size_routes.json  which chain answers which `dimensions`
├── uses.json     columns of PostgreSQL that a chain filled, see lathe.service.chains.usage
├── trained/      trained encoders: <name>/<version>/, see lathe.service.encoders.trained
├── training/     work folders of trainings that run or were stopped
├── indexes/      <name>/, see lathe.service.index
├── shared/       local replica of the chains, size routes and trained encoders in Redis, see lathe.service.redis
├── id            random id of this state folder, in the names of queues that only its server reads
├── jobs/         <id>/: request, state, log and result of each job
├── encoded/      vectors of texts that commands and jobs encoded, see lathe.training.encoder.vector_database
├── upstream/     vectors that embeddings APIs answered, see lathe.training.encoder.upstream.store
└── vectors/      vectors of running fits, and texts of out-of-domain corpora

It holds callers' texts and vectors: folders have mode 700, files 600. The state folder and the folders directly in it
may be links to other disks; deeper links are never followed when writing.
"""

import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lathe.transforms.files import make_folder, read_plain_file, write_synced

PROBE = bytes(4096)
"""Content of the file that tests the disk: on a full disk, an empty file could still be created."""

SWEPT_SECONDS = 3600.0
"""Age in seconds at which the temporary folder of a killed operation is deleted."""
MAX_KEY_BYTES = 1000
"""Maximum bytes of the files `admin.key` and `id`."""


class Home:
    """A state folder: the paths in it, and checks of whether it is safe and can be written.

    Attributes:
        chains: folder of the registry.
        shared: folder of the local replica of what servers share in Redis.
        shared_chains: folder of the local replica of the chains in Redis.
        trained: folder with a folder for each trained encoder.
        shared_trained: folder of the local replica of the trained encoders in Redis.
        training: folder with the work folders of trainings.
        indexes: folder with a folder for each index.
        jobs: folder with a folder for each job.
        vectors: folder for vectors during fits, the workspace folder.
        upstream: folder for the vectors that embeddings APIs answered.
        encoded: folder for the vectors of texts that commands and jobs encoded.
        folders: the folders directly in the state folder.
        admin_key: file with the generated admin key.
        uses: file with the uses of chains of transforms outside the state folder.
        id: file with the id of the state folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.chains, self.shared, self.trained = root / "chains", root / "shared", root / "trained"
        self.shared_chains, self.shared_trained = self.shared / "chains", self.shared / "trained"
        self.training, self.indexes, self.jobs = root / "training", root / "indexes", root / "jobs"
        self.encoded, self.upstream, self.vectors = root / "encoded", root / "upstream", root / "vectors"
        self.folders = (
            *(self.chains, self.shared, self.trained, self.training, self.indexes, self.jobs),
            *(self.encoded, self.upstream, self.vectors),
        )
        self.admin_key, self.uses, self.id = root / "admin.key", root / "uses.json", root / "id"

    def open(self) -> str | None:
        """Create missing folders and restrict their permissions.

        Returns why the state folder cannot be written, or None if it can.

        Raises:
            ValueError: if every user can write to a folder, or another user owns it.
        """
        self._require_safe()
        try:
            if not self.root.exists():
                make_folder(self.root, private=True)
            for folder in self.folders:
                if not folder.is_dir():
                    make_folder(folder, private=True)
        except OSError as error:
            return _describe_write_error(error)
        self._require_safe()  # another process may have created it first
        for folder in (self.root, *self.folders):
            _restrict_permissions(folder.resolve())
        return self.find_write_problem()

    def open_writable(self) -> None:
        """Create missing folders and restrict their permissions, as `open` does.

        Raises:
            ValueError: if the folder cannot be written or is not safe.
        """
        if problem := self.open():
            raise ValueError(f"{problem}: {self.root}; set LATHE_HOME to a folder that can be written")

    def _require_safe(self) -> None:
        """Raise `ValueError` if every user can write to the state folder or a folder in it, or another user owns one.

        The owner must be this process's user, or root, who can do anything anyway. Folders that are missing or cannot
        be read are skipped: another error reports them.
        """
        for folder in (self.root, *self.folders):
            with suppress(OSError):  # missing or unreadable
                status = folder.stat()
                if status.st_mode & stat.S_IWOTH:
                    raise ValueError(
                        f"every user of this machine can write to the state folder {folder}: check its content, "
                        f"then chmod 700 {folder}, or set LATHE_HOME to a folder of its own, such as {folder / 'lathe'}"
                    )
                if status.st_uid not in (0, os.geteuid()):
                    raise ValueError(
                        f"the state folder {folder} belongs to user {status.st_uid}, and this is user {os.geteuid()}: "
                        "run as that user, change its owner, or set LATHE_HOME to a folder of your own"
                    )

    def list_warnings(self) -> list[str]:
        """Return a sentence for each folder of the state that its group can write to."""
        writable = [folder for folder in (self.root, *self.folders) if _is_group_writable(folder)]
        return [
            f"the group {folder.stat().st_gid} can write to the state folder {folder}: its members can change what is "
            "served"
            for folder in writable
        ]

    def restrict_permissions(self) -> None:
        """Remove group's and others' permissions from all files and folders of this user in the state folder.

        Links are skipped.
        """
        for folder in self.folders:
            for path in _walk(folder):
                _restrict_permissions(path)
        with suppress(OSError):
            for path in self.root.iterdir():
                _restrict_permissions(path)

    def delete_leftovers(self) -> None:
        """Delete temporary folders over an hour old, which killed creations, publications and deletions left."""
        roots = [self.indexes]
        for versions in (self.chains, self.trained, self.shared_chains, self.shared_trained):
            roots += versions.glob("*")
        for folder in (folder for root in roots for folder in root.glob(".*.*")):
            if folder.is_dir() and not folder.is_symlink() and time.time() - folder.stat().st_mtime > SWEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def find_write_problem(self) -> str | None:
        """Write and delete a test file in the state folder. Return why that failed, or None if it succeeded."""
        probe = self.root / f".probe.{secrets.token_hex(4)}"
        try:
            write_synced(probe, PROBE, private=True)
        except OSError as error:
            return _describe_write_error(error)
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
        return None

    def read_or_create_admin_key(self) -> str:
        """Return the generated admin key, creating its file with mode 600 if there is none.

        Raises:
            OSError: if the file can be neither read nor written.
        """
        return _read_or_create(self.admin_key, secrets.token_urlsafe(32))

    def read_or_create_id(self) -> str:
        """Return the id of this state folder, creating its file if there is none.

        Raises:
            OSError: if the file can be neither read nor written.
        """
        return _read_or_create(self.id, secrets.token_hex(8))


def _read_or_create(path: Path, content: str) -> str:
    """Return the text of a file, stripped. If there is no file, create it with `content` and mode 600 first.

    If several processes create the file at once, all return the content of the first.

    Args:
        path: path of the file.
        content: text of a new file.
    """
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    if not path.exists():
        write_synced(staging, content.encode() + b"\n", private=True)
        try:
            os.link(staging, path)  # unlike a rename, never replaces the file of another process
        except FileExistsError:
            pass
        finally:
            staging.unlink()
    return read_plain_file(path, MAX_KEY_BYTES).decode().strip()


def _describe_write_error(error: OSError) -> str:
    return f"the state folder cannot be written: {error.strerror}"


def _is_group_writable(folder: Path) -> bool:
    """Return whether a folder's group can write to it. False if the folder is missing or cannot be read."""
    with suppress(OSError):
        return bool(folder.stat().st_mode & stat.S_IWGRP)
    return False


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def _restrict_permissions(path: Path) -> None:
    """Remove all permissions of group and others from a file or folder that belongs to this user.

    Errors are ignored. Left unchanged are links, files with several hard links, and what belongs to other users, such
    as the root of a volume in Kubernetes.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError):
        before = path.lstat()
        plain = stat.S_ISDIR(before.st_mode) or (stat.S_ISREG(before.st_mode) and before.st_nlink == 1)
        if not plain or not before.st_mode & 0o077 or before.st_uid != os.geteuid():
            return
        descriptor = os.open(path, flags)
        try:
            now = os.fstat(descriptor)
            # Another file may have taken the path after `lstat`: only the one that was checked is changed.
            same_file = (now.st_dev, now.st_ino, now.st_nlink) == (before.st_dev, before.st_ino, before.st_nlink)
            if same_file:
                os.fchmod(descriptor, stat.S_IMODE(now.st_mode) & ~0o077)
        finally:
            os.close(descriptor)
