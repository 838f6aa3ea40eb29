"""The chain registry on disk: immutable versions, a mutable live pointer, size routes, and changes to them.

Any number of processes may read and write: versions appear and pointers change by a rename.

Starter chains ship with Lathe and are installed in a registry.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lathe.service.chains.chain_folder import ChainFolder, SizeRoutes
from lathe.service.chains.loaded_chain import load_chain
from lathe.service.chains.names import require_name
from lathe.transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, Manifest, read_file, read_serialized_artifact
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, write_synced

if TYPE_CHECKING:
    from lathe.transforms.artifact import FitDistribution
    from lathe.transforms.chain import Chain


class Registry(ChainFolder):
    """The chains of transforms in one folder, and changes to them.

    The arguments are the same as for `ChainFolder`.

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
        distribution: "FitDistribution | None" = None,
    ) -> tuple[int, bool]:
        """Save a fitted chain as the next version of its name. Return `(version number, whether this version is live)`.

        Args:
            chain: its metadata becomes the manifest's.
            name: name of the chain.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that fitted the chain; in Redis, a job that runs twice publishes once.
            distribution: distribution of the rows the chain was fitted on, stored in the version's folder.

        Raises:
            BadValueError: if the name is not valid.
        """
        require_name(name)

        def write(folder: Path, version: int) -> None:
            chain.save(folder, {"name": name, "version": version}, distribution)

        return self.add_version(name, promote, job, write)

    def check_version(self, name: str, version: int) -> Manifest:
        """Load a version of a chain from disk, which checks its files, and return its manifest.

        Raises:
            ArtifactError: if its files are damaged.
        """
        return self.read(name, version).metadata

    def import_chain(self, name: str, source: "Registry") -> bool:
        """Copy a chain with all versions and its pointer from another registry, and return whether it was copied.

        A name that has a pointer here, even one whose versions were deleted, is not copied.

        Raises:
            ArtifactError: if a version or the pointer is damaged.
        """
        return self.copy_chain(name, source, load_chain)

    def copy_chain(self, name: str, source: "Registry", check: Callable[[Path, Path | None], object]) -> bool:
        """Copy a chain with all versions and its pointer from another registry, and return whether it was copied.

        A chain that has a pointer here is not copied. Versions that exist here are left as they are.

        Args:
            name: name of the chain.
            source: registry that has it.
            check: reads and checks an artifact folder, and raises if it is damaged.
        """
        if (self.root / name / "pointer.json").exists():
            return False
        with self.lock(name):
            for version in source.versions(name):
                folder = source.root / name / str(version)
                check(folder, source.links_within)
                if not (self.root / name / str(version)).exists():
                    with self.stage_version(name, version) as staging:
                        _copy_artifact(folder, staging, source.links_within)
            self.write_pointer(name, source.read_pointer(name))
        return True

    def remove_folder(self, name: str, version: int) -> None:
        """Delete a version's folder and drop the version from memory. The caller holds the chain's lock."""
        super().remove_folder(name, version)
        with self.cache_lock:
            self.loaded.pop((name, version), None)


def _copy_artifact(source: Path, target: Path, root: Path | None) -> None:
    """Copy the manifest, tensors and fit distribution of an artifact folder to a new folder, where they exist.

    With a `root`, no link in `source` may lead out of that folder.
    """
    make_folder(target)
    for name in (TENSORS, DISTRIBUTION, MANIFEST):
        with suppress(FileNotFoundError):  # not every fit leaves a fit distribution
            write_synced(target / name, read_file(source, name, root))


STARTERS = Path(__file__).parent / "starter_chains"
"""Folder of the registry of starter chains, `<name>/1/`, fitted by `make starters`."""


def install_starters(registry: Registry) -> None:
    """Copy the chains that ship with Lathe to a registry, except those whose name was ever used there.

    The copied chains also get the size routes listed in a file next to the starter chains, where these routes are free.
    In a local replica of a Redis the chains are copied to the replica only. A new Redis gets them from there. If the
    registry's file of size routes is damaged, no routes are assigned: the server starts, and its health reports it.

    Raises:
        OSError: if the registry cannot be written.
    """
    shipped = Registry(STARTERS, shipped=True)
    # Their digests are checked without importing torch, which loading a chain takes.
    check = read_serialized_artifact
    installed = [name for name in shipped.names() if registry.copy_chain(name, shipped, check)]
    for encoder, named in shipped.size_routes.read().items():
        for route, name in named.items():
            if name in installed:
                with suppress(ArtifactError):
                    registry.size_routes.assign(encoder, route, name, replace=False)
