"""The chain registry on disk: immutable versions, a mutable live pointer, size routes, and changes to them.

Any number of processes may read and write: versions appear and pointers change by a rename.
"""

import secrets
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from lathe.service.chains.chain_folder import ChainFolder
from lathe.service.chains.loaded_chain import load_chain
from lathe.service.chains.names import is_name, require_name
from lathe.service.chains.pointer import Pointer
from lathe.service.chains.size_routes import SizeRoutes
from lathe.service.errors import UnknownNameError
from lathe.training.locks import lock_file
from lathe.transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, Manifest, read_file, read_serialized_artifact
from lathe.transforms.files import make_folder, make_root, replace_synced, sync_folder, write_synced

if TYPE_CHECKING:
    from lathe.transforms.artifact import FitStatistics
    from lathe.transforms.chain import Chain

Gate = Callable[[Manifest], Sequence[str]]
"""Function that checks the manifest of a version to promote: raises, or returns failed gates to override."""


PointerChange = Callable[[Pointer, Collection[int]], Pointer]
"""Function from a chain's pointer and versions to its new pointer; raises if the versions do not allow the change."""


class Registry(ChainFolder):
    """The chains in one folder, and changes to them.

    The arguments are those of `ChainFolder`.

    Attributes:
        size_routes: which chain answers a request for a number of dimensions; their file is beside the folder, or in it
            if it is part of the installed package.
    """

    def __init__(self, root: Path, shipped: bool = False) -> None:
        super().__init__(root, shipped)
        self.size_routes = SizeRoutes((root if shipped else root.parent) / "size_routes.json", self)

    def publish(
        self,
        chain: "Chain",
        name: str,
        promote: bool | None,
        job: str | None = None,
        statistics: "FitStatistics | None" = None,
    ) -> tuple[int, bool]:
        """Save a fitted chain as its next version. Return the version number, and whether the version is live.

        The version is made live if `promote` says so.

        Args:
            chain: its metadata becomes the manifest's.
            name: name of the chain.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that fitted the chain; in Redis, a job that runs twice publishes once.
            statistics: statistics of the rows the chain was fitted on, stored in the version's folder.

        Returns:
            The version, and whether it is live.

        Raises:
            BadValueError: if the name is not valid.
        """
        require_name(name)
        with self.lock(name):
            pointer = self.read_pointer(name)
            # `pointer.last` keeps the numbers of deleted versions from being used again.
            version = max([pointer.last, *self.versions(name)]) + 1
            chain.save(self.root / name / str(version), {"name": name, "version": version}, statistics)
            pointer = pointer.add_version(version, promote)
            self.write_pointer(name, pointer)
        return version, pointer.live == version

    def promote(self, name: str, version: int, gate: Gate) -> Pointer:
        """Make a version live, unless `gate` refuses its manifest by raising. Return the new pointer.

        Args:
            name: name of the chain.
            version: version to promote.
            gate: called with the manifest first; if it raises, nothing changes. It returns the names of gates that the
                version fails, which the pointer records as overridden.

        Raises:
            UnknownNameError: if there is no such version.
            ArtifactError: if its files are damaged.
        """

        def change(pointer: Pointer, versions: Collection[int]) -> Pointer:
            self.require_version(name, version, versions)
            chain = self.read_to_promote(name, version)  # never make live what cannot be served
            return pointer.promote(version, gate(chain.metadata))

        return self._change_pointer(name, change)

    def rollback(self, name: str) -> Pointer:
        """Make the live version before the current one live again, and return the new pointer.

        It is the most recent of the earlier live versions that still exists.

        Raises:
            UnknownNameError: if there is no such chain.
            ConflictError: if no earlier version exists.
        """

        def change(pointer: Pointer, versions: Collection[int]) -> Pointer:
            if not versions:
                raise UnknownNameError(f"there is no chain {name!r}", param="name")
            return pointer.roll_back(name, versions)

        return self._change_pointer(name, change)

    def delete(self, name: str, version: int) -> None:
        """Delete a version of a chain permanently. Its number is not used again.

        Raises:
            UnknownNameError: if there is no such version.
            ConflictError: if the version is live and there are others, one of which must be promoted first.
        """

        def change(pointer: Pointer, versions: Collection[int]) -> Pointer:
            self.require_version(name, version, versions)
            return pointer.remove_version(name, version, versions)

        self._change_pointer(name, change, doomed=version)

    def read_to_promote(self, name: str, version: int) -> "Chain":
        """Load a version that is to be made live.

        Raises:
            ArtifactError: if its files are damaged.
        """
        return self.read(name, version)

    def _change_pointer(self, name: str, change: PointerChange, doomed: int | None = None) -> Pointer:
        """Compute a chain's new pointer with `change`, write it, and return it. Also delete the version `doomed`.

        If `change` raises, as it does for a chain without versions, nothing changes.

        Args:
            name: name of the chain.
            change: function that computes the new pointer.
            doomed: version to delete afterwards; None for none.
        """
        if not is_name(name) or not self.versions(name):  # before the lock, which creates a folder
            return change(Pointer(), ())
        with self.lock(name):
            pointer = self.write_pointer(name, change(self.read_pointer(name), self.versions(name)))
            if doomed is not None:
                self.remove_folder(name, doomed)
        return pointer

    def import_chain(self, name: str, source: "Registry") -> bool:
        """Copy a chain with all versions and its pointer from another registry, unless the name was ever used here.

        Returns:
            Whether the chain was copied.

        Raises:
            ArtifactError: if a version or the pointer is damaged.
        """
        return self._copy_chain(name, source, load_chain)

    def install(self, name: str, shipped: "Registry") -> bool:
        """Copy a chain that ships with Lathe, unless the name was ever used here.

        Unlike `import_chain`, this checks the digests of its files without importing torch.

        Returns:
            Whether the chain was copied.
        """
        return self._copy_chain(name, shipped, read_serialized_artifact)

    def _copy_chain(self, name: str, source: "Registry", check: Callable[[Path, Path | None], object]) -> bool:
        """Copy a chain with all versions and its pointer from another registry, and return whether it was copied.

        A chain that has a pointer here is not copied. Versions that exist here are left as they are.

        Args:
            name: name of the chain.
            source: registry that has it.
            check: reads and checks an artifact folder, and raises if it is damaged.

        Returns:
            Whether the chain was copied.
        """
        if (self.root / name / "pointer.json").exists():
            return False
        with self.lock(name):
            for version in source.versions(name):
                folder, target = source.root / name / str(version), self.root / name / str(version)
                check(folder, source.links_within)
                if not target.exists():
                    _copy_artifact(folder, target, source.links_within)
            self.write_pointer(name, source.read_pointer(name))
        return True

    def lock(self, name: str) -> FileLock:
        """Create the chain's folder, and return the lock that callers hold while they change the chain."""
        make_root(self.root)
        make_folder(self.root / name)
        return lock_file(self.root / name / ".lock")

    def remove_folder(self, name: str, version: int) -> None:
        """Delete a version's folder and drop the version from memory. The caller holds the chain's lock."""
        # Renamed first: a reader sees the version whole or not at all.
        doomed = self.root / name / f".{version}.{secrets.token_hex(6)}"
        (self.root / name / str(version)).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        with self.cache_lock:
            self.loaded.pop((name, version), None)

    def write_pointer(self, name: str, pointer: Pointer) -> Pointer:
        """Write a chain's pointer file atomically, replacing the old one, and return `pointer` unchanged."""
        replace_synced(self.root / name / "pointer.json", pointer.serialize())
        sync_folder(self.root / name)
        return pointer


def _copy_artifact(source: Path, target: Path, root: Path | None) -> None:
    """Copy the manifest, tensors and fit distribution of an artifact folder to a new folder, where they exist.

    Args:
        source: folder to copy.
        target: new folder, which appears when it is complete.
        root: folder out of which no link in `source` may lead; None follows links anywhere.
    """
    staging = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        make_folder(staging)
        for name in (TENSORS, DISTRIBUTION, MANIFEST):
            with suppress(FileNotFoundError):  # not every fit leaves a reference
                write_synced(staging / name, read_file(source, name, root))
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
