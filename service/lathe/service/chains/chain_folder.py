"""The chains in one folder, for reading: their names, versions, pointers and manifests, and the chains themselves.

chains/<name>/
├── pointer.json   {"live": 2, "earlier": [1], "last": 3, "forced": {"2": ["recall_at_10"]}}
├── 1/ 2/ 3/       artifacts, see lathe.transforms.artifact
└── .lock          held while versions or the pointer change

Other processes may change the folder at any time, so each call checks the files instead of trusting its memory.
"""

import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache

from lathe.service.chains.file_stamp import MISSING, FileStamp, get_file_stamp
from lathe.service.chains.fit_fields import require_fit_fields
from lathe.service.chains.loaded_chain import LoadedChain, load_chain
from lathe.service.chains.names import is_name, parse_number, split_ref
from lathe.service.chains.pointer import Pointer
from lathe.service.errors import UnknownNameError
from lathe.transforms.artifact import MANIFEST, TENSORS, Manifest, read_file, read_manifest
from lathe.transforms.errors import ArtifactError

if TYPE_CHECKING:
    from lathe.transforms.chain import Chain

MAX_LOADED = 64
"""Maximum number of chains kept in memory, least recently used ones dropped; one of 4096 × 1024 floats is 16 MB."""


class ChainFolder:
    """The chains in one folder, with a cache of those that were loaded.

    Args:
        root: the folder.
        shipped: whether the folder is part of the installed package, whose files may be links to anywhere; otherwise no
            link may lead out of the folder.
    """

    def __init__(self, root: Path, shipped: bool = False) -> None:
        self.root = root
        self.links_within = None if shipped else root
        self.loaded: LRUCache[tuple[str, int], LoadedChain] = LRUCache(MAX_LOADED)
        self.pointers: dict[str, tuple[FileStamp, int | None]] = {}
        self.loading = threading.Lock()
        self.cache_lock = threading.Lock()  # held for moments; a disk is read under `loading`

    def names(self) -> list[str]:
        """List the names of chains that have a version, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(f.name for f in self.root.iterdir() if is_name(f.name) and self.versions(f.name))

    def versions(self, name: str) -> list[int]:
        """List the version numbers of a chain, ascending. The list is empty if there is no such chain."""
        folder = self.root / name
        if not folder.is_dir():
            return []
        return sorted(int(f.name) for f in folder.iterdir() if parse_number(f.name) and f.is_dir())

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

    def read_pointer(self, name: str) -> Pointer:
        """Read which version of a chain is live. The pointer is an empty one if the chain has no pointer file.

        Raises:
            ArtifactError: if the file is damaged or cannot be read.
        """
        try:
            return Pointer.parse(name, read_file(self.root / name, "pointer.json", self.links_within))
        except FileNotFoundError:
            return Pointer()
        except OSError as error:
            raise ArtifactError(f"the live pointer of the chain {name} cannot be read: {error.strerror}") from error

    def live(self, name: str) -> int | None:
        """Return the live version of a chain.

        The result is None if no version is live, or the pointer is damaged.
        """
        return self.read_pointer_or_empty(name).live

    def read_pointer_or_empty(self, name: str) -> Pointer:
        """Read which version of a chain is live. The pointer is empty if its file is missing or damaged."""
        try:
            return self.read_pointer(name)
        except ArtifactError:
            return Pointer()

    def resolve(self, ref: str) -> tuple[str, int]:
        """Resolve a reference `name`, `name@live` or `name@version` to a chain's name and version number.

        A name without a version means the live version.

        Raises:
            UnknownNameError: if there is no such chain or version, or none is live.
        """
        name, version = split_ref(ref)
        versions = self.versions(name)
        self.require_version(name, version, versions)
        if version is not None:
            return name, version
        live = self.read_pointer(name).live
        if live is None:
            raise UnknownNameError(
                f"no version of the chain {name} is live; name one as {name}@{versions[-1]} or promote it",
                param="chain",
            )
        return name, live

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

    def describe(self, ref: str) -> dict[str, Any]:
        """Describe a chain as a JSON object: the manifest of one version, which version is live, and all versions.

        `live` is the live version, `earlier` lists the live versions before it, and `forced` the gates overridden for
        the live one. `versions` has the manifest of each version, or marks it as corrupt if it is damaged. The manifest
        at the top level is that of the version in `ref`, else of the live one, else of the newest.

        Raises:
            UnknownNameError: if there is no such chain or version.
        """
        name, requested = split_ref(ref)
        self.require_known(name)
        numbers, pointer = self.versions(name), self.read_pointer_or_empty(name)
        described = self.resolve(ref)[1] if requested else pointer.live or numbers[-1]
        versions = [self.describe_version(name, version) for version in numbers]
        current = next((v for v in versions if v["version"] == described), versions[-1])
        earlier = [version for version in pointer.earlier if version in numbers]
        pointer_fields = {"live": pointer.live, "earlier": earlier, "forced": list(pointer.overridden_gates)}
        return current | {"name": name} | pointer_fields | {"versions": versions}

    def describe_version(self, name: str, version: int) -> dict[str, Any]:
        """Return a version's manifest with `state` "ready", or an object with `state` "corrupt" and the error.

        The version is corrupt if its manifest cannot be read.
        """
        try:
            return {"version": version, "state": "ready"} | self.manifest(name, version)
        except ArtifactError as error:
            return {"version": version, "state": "corrupt", "error": str(error)}

    def require_version(self, name: str, version: int | None, versions: Collection[int]) -> None:
        """Raise `UnknownNameError` unless `version` is in `versions`, the versions that the chain has.

        Args:
            name: name of the chain.
            version: the version; None stands for any of them.
            versions: versions of the chain.
        """
        if not versions:
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no chain {name[:80]!r}; there are: {known}", param="chain")
        if version is not None and version not in versions:
            existing = ", ".join(map(str, sorted(versions)))
            raise UnknownNameError(f"the chain {name} has no version {version}; it has {existing}", param="chain")

    def require_known(self, name: str) -> None:
        """Raise `UnknownNameError` unless the chain exists, that is, has a version."""
        if not is_name(name) or not self.versions(name):
            raise UnknownNameError(f"there is no chain {name!r}", param="name")
