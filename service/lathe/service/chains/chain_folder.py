"""The chains in one folder, for reading: their names, versions, pointers and manifests, and the chains themselves.

The folder is laid out as `lathe.service.chains.version_folder` says; versions are artifacts, see
`lathe.transforms.artifact`.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cachetools import LRUCache

from lathe.service.chains.file_stamp import MISSING, FileStamp, get_file_stamp
from lathe.service.chains.fit_fields import require_fit_fields
from lathe.service.chains.loaded_chain import LoadedChain, load_chain
from lathe.service.chains.names import split_ref
from lathe.service.chains.version_folder import VersionFolder
from lathe.transforms.artifact import MANIFEST, TENSORS, Manifest, read_file, read_manifest

if TYPE_CHECKING:
    from lathe.transforms.chain import Chain

MAX_LOADED = 64
"""Maximum number of chains kept in memory, least recently used ones dropped; one of 4096 × 1024 floats is 16 MB."""


class ChainFolder(VersionFolder):
    """The chains in one folder, with a cache of those that were loaded.

    Args:
        root: the folder.
        shipped: whether the folder is part of the installed package, whose files may be links to anywhere; otherwise no
            link may lead out of the folder.
    """

    def __init__(self, root: Path, shipped: bool = False) -> None:
        super().__init__(root, None if shipped else root)
        self.loaded: LRUCache[tuple[str, int], LoadedChain] = LRUCache(MAX_LOADED)
        self.pointers: dict[str, tuple[FileStamp, int | None]] = {}
        self.loading = threading.Lock()
        self.cache_lock = threading.Lock()  # held for moments; a disk is read under `loading`

    def read(self, name: str, version: int) -> "Chain":
        """Load a version from disk, bypassing the memory cache.

        Raises:
            ArtifactError: if its files are damaged.
        """
        return load_chain(self.root / name / str(version), self.links_within)

    def read_files(self, name: str, version: int) -> tuple[bytes, bytes]:
        """Return a version's (manifest, tensors) as bytes, as they are on disk, unchecked.

        Raises:
            OSError: if the files cannot be read.
        """
        folder = self.root / name / str(version)
        return read_file(folder, MANIFEST, self.links_within), read_file(folder, TENSORS, self.links_within)

    def get_loaded(self, ref: str) -> LoadedChain | None:
        """Return a chain from memory. None if it is not loaded, its files have changed, or no version is live.

        A bare name means the live version. The live version is remembered and read again if the pointer file changes.
        """
        name, version = split_ref(ref)
        if version is None:
            stamp, live = self.pointers.get(name, (MISSING, None))
            now = get_file_stamp(self.root / name / "pointer.json")
            # Another process may have moved the pointer.
            if now != stamp:
                live = self.live(name)
                self.pointers[name] = now, live
            version = live
        return None if version is None else self._get_unchanged(name, version)

    def _get_unchanged(self, name: str, version: int) -> LoadedChain | None:
        """Return a version from memory, or None if it is not loaded or its files have changed. Marks it as used."""
        with self.cache_lock:
            chain = self.loaded.get((name, version))
        return chain if chain is not None and chain.file_stamp == get_file_stamp(chain.folder) else None

    def load(self, ref: str) -> LoadedChain:
        """Load the chain that a reference such as `name@2` names, from memory if its files are unchanged.

        A chain read from disk is kept in memory; over `MAX_LOADED` chains, the least recently used one is dropped.

        Raises:
            UnknownNameError: if there is no such chain or version, or none is live.
            ArtifactError: if its files are damaged.
        """
        if (cached := self.get_loaded(ref)) is not None:
            return cached
        name, version = self.resolve(ref)
        # One load at a time: several threads would otherwise read the same files, and each hold a copy.
        with self.loading:
            chain = self._get_unchanged(name, version)  # another thread may have loaded it meanwhile
            if chain is None:
                folder = self.root / name / str(version)
                chain = LoadedChain(name, version, self.read(name, version), folder)
                with self.cache_lock:
                    self.loaded[name, version] = chain
        return chain

    def manifest(self, name: str, version: int) -> Manifest:
        """Read the manifest of a chain's version, check its fields, and return it as a dict.

        Raises:
            ArtifactError: if the manifest is damaged.
        """
        folder = self.root / name / str(version)
        manifest = read_manifest(folder, self.links_within)
        require_fit_fields(folder, manifest)
        return manifest
