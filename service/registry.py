"""The chain registry on disk: immutable versions and a mutable live pointer.

chains/<name>/
├── pointer.json   {"live": 2, "earlier": [1], "last": 3, "forced": {"2": ["recall_at_10"]}}
├── 1/ 2/ 3/       artifacts, see transforms.artifact
└── .lock          held while versions or the pointer change

Any number of processes may read and write: versions appear and pointers change by a rename, and readers check the files
instead of trusting their memory.
"""

import json
import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from service.engine.chain_ref import ChainRef
from service.errors import ConflictError, UnknownNameError
from service.names import is_name, require_name, split_ref, whole_number
from training.locks import lock_file
from transforms.artifact import (
    DISTRIBUTION,
    MANIFEST,
    TENSORS,
    Manifest,
    display_name,
    read_file,
    read_manifest,
    read_serialized_artifact,
    require_field_types,
)
from transforms.errors import ArtifactError
from transforms.files import make_folder, make_root, replace_synced, sync_folder, write_synced

if TYPE_CHECKING:
    from transforms.artifact import FitDistribution, FitStatistics
    from transforms.chain import Chain

LOADED_MOST = 64
"""Maximum number of chains kept in memory, least recently used ones dropped; one of 4096 × 1024 floats is 16 MB."""

VERSIONS_MOST = 10**9
"""Upper bound of version numbers: `whole_number` parses at most nine digits."""

FIT_FIELDS = {"encoder": dict, "target_encoder": dict, "provenance": dict, "certificate": dict}
"""Fields that a fit adds to a chain's manifest, with their JSON types."""

Gate = Callable[[Manifest], Sequence[str]]
"""Checks the manifest of a version to promote: raises, or returns the failed gates overridden by force."""


@dataclass(frozen=True)
class Pointer:
    """The live version of a chain, and the history of live versions.

    Attributes:
        live: version that the bare name refers to; None before the first promotion.
        earlier: versions that were live before, the most recent last; rollback returns to them.
        last: highest version number ever used, so that none is used twice.
        forced: gates that versions promoted by force had failed, by version.
    """

    live: int | None = None
    earlier: tuple[int, ...] = ()
    last: int = 0
    forced: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, name: str, content: bytes) -> "Pointer":
        """Parse the content of a chain's pointer file.

        Raises:
            ArtifactError: if the content is damaged.
        """
        try:
            found = json.loads(content)
            forced = {int(version): tuple(gates) for version, gates in found.get("forced", {}).items()}
            pointer = cls(found["live"], tuple(found["earlier"]), found["last"], forced)
            pointer.require_types()
            return pointer
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"the live pointer of the chain {name} cannot be read: {error!r}") from error

    def require_types(self) -> None:
        """Raise `TypeError` unless all versions are whole numbers in range and all gates are strings."""
        versions = [*self.earlier, self.last, *self.forced, *([] if self.live is None else [self.live])]
        if not all(type(version) is int and 0 <= version < VERSIONS_MOST for version in versions):
            raise TypeError(f"a version is a whole number below {VERSIONS_MOST}")
        if not all(isinstance(gate, str) for gates in self.forced.values() for gate in gates):
            raise TypeError("a gate is a name")

    @property
    def past(self) -> tuple[str, ...]:
        """Failed gates that were overridden when the live version was promoted."""
        return () if self.live is None else self.forced.get(self.live, ())

    def dump(self) -> bytes:
        """Serialize the pointer to JSON bytes."""
        return json.dumps(asdict(self)).encode()


class LoadedChain:
    """A version of a chain in memory, with a cache of its folded forms by size."""

    def __init__(self, name: str, version: int, chain: "Chain", folder: Path) -> None:
        self.folder = folder
        self.made = made_when(folder)
        self.name = name
        self.version = version
        self.chain = chain
        self.digest: str = chain.metadata["tensors_sha256"]
        self.folded: dict[tuple[int | None, bool], Chain] = {}

    @property
    def ref(self) -> str:
        """Reference `name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def encoder_fingerprint(self) -> str | None:
        """Fingerprint of the encoder whose vectors the chain takes; None if it was fitted without an encoder."""
        encoder = self.chain.metadata.get("encoder")
        return encoder["fingerprint"] if encoder else None

    @cached_property
    def reference(self) -> "FitDistribution | ArtifactError":
        """Distribution of the rows the chain was fitted on, read on first access; the error if unreadable."""
        from transforms.artifact import FitDistribution

        try:
            return FitDistribution.load(self.folder)
        except ArtifactError as error:
            return error

    def fold(self, dimensions: int | None, normalize: bool) -> "Chain":
        """Return the chain with its affine steps multiplied into one, cut to a size; cached by size and normalization.

        Args:
            dimensions: output dimensions; None for all.
            normalize: whether unit vectors are wanted; ignored where the chain does not normalize, or quantizes.
        """
        key = (dimensions, self.normalizes(normalize))
        if key not in self.folded:
            self.folded[key] = self.chain.fold(*key)
        return self.folded[key]

    def as_asked(self, dimensions: int | None, normalize: bool) -> ChainRef:
        """Return the reference from which a worker process loads and folds the same chain; arguments as in `fold`."""
        return ChainRef(self.folder, self.digest, dimensions, self.normalizes(normalize))

    def normalizes(self, wanted: bool) -> bool:
        """Return whether outputs are unit vectors: the chain normalizes, and that is wanted or it has a quantizer."""
        as_fitted = self.chain.quantizer is not None  # the ranges of codes are those of what was fitted
        return self.chain.normalize and (wanted or as_fitted)


def load_chain(folder: Path, root: Path | None) -> "Chain":
    """Load a chain and check the manifest fields that a fit added; imports torch only here, as listing needs none."""
    from transforms.chain import Chain

    chain = Chain.load(folder, root)
    require_fit_fields(folder, chain.metadata)
    return chain


def require_fit_fields(folder: Path, manifest: Manifest) -> None:
    """Raise `ArtifactError` unless the fields that a fit added to a manifest have the types that the service reads."""
    require_field_types(folder, manifest, FIT_FIELDS)
    require_field_types(folder, manifest.get("provenance") or {}, {"gates": dict})
    for name in ("encoder", "target_encoder"):
        if manifest.get(name) and not isinstance(manifest[name].get("fingerprint"), str):
            raise ArtifactError(f"the manifest of {display_name(folder)} cannot be read: {name} has no fingerprint")


def no_gate(_manifest: Manifest) -> Sequence[str]:
    """Accept any version: a `Gate` that never raises and returns no gates."""
    return ()


class Registry:
    """The chains in one folder, and changes to them.

    Args:
        root: the folder.
        shipped: whether the folder is part of the installed package, whose files may be links to anywhere; otherwise no
            link may lead out of the folder.
    """

    def __init__(self, root: Path, shipped: bool = False) -> None:
        self.root = root
        self.links_within = None if shipped else root
        self.loaded: dict[tuple[str, int], LoadedChain] = {}
        self.pointers: dict[str, tuple[tuple[int, int], int | None]] = {}
        self.loading = threading.Lock()

    def names(self) -> list[str]:
        """List the names of chains that have a version, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(f.name for f in self.root.iterdir() if is_name(f.name) and self.versions(f.name))

    def versions(self, name: str) -> list[int]:
        """List the versions of a chain, ascending; empty if there is no such chain."""
        folder = self.root / name
        if not folder.is_dir():
            return []
        return sorted(int(f.name) for f in folder.iterdir() if whole_number(f.name) and f.is_dir())

    def read(self, name: str, version: int) -> "Chain":
        """Load a version from disk, bypassing the memory cache.

        Raises:
            ArtifactError: if its files are damaged.
        """
        return load_chain(self.root / name / str(version), self.links_within)

    def read_files(self, name: str, version: int) -> tuple[bytes, bytes]:
        """Return the bytes of a version's manifest and tensor files, unchecked.

        Raises:
            OSError: if the files cannot be read.
        """
        folder = self.root / name / str(version)
        return read_file(folder, MANIFEST, self.links_within), read_file(folder, TENSORS, self.links_within)

    def pointer(self, name: str) -> Pointer:
        """Read the pointer of a chain; an empty one if there is no pointer file.

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
        """Return the live version of a chain; None if no version is live, or the pointer is damaged."""
        return self.readable_pointer(name).live

    def readable_pointer(self, name: str) -> Pointer:
        """Read the pointer of a chain; an empty one if there is no pointer file, or it is damaged."""
        try:
            return self.pointer(name)
        except ArtifactError:
            return Pointer()

    def resolve(self, ref: str) -> tuple[str, int]:
        """Return the name and version that `name`, `name@live` or `name@version` refers to.

        Raises:
            UnknownNameError: if there is no such chain or version, or none is live.
        """
        name, version = split_ref(ref)
        versions = self.versions(name)
        if not versions:
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no chain {name!r}; there are: {known}", param="chain")
        if version is not None:
            if version not in versions:
                has = ", ".join(map(str, versions))
                raise UnknownNameError(f"the chain {name} has no version {version}; it has {has}", param="chain")
            return name, version
        live = self.pointer(name).live
        if live is None:
            raise UnknownNameError(
                f"no version of the chain {name} is live; name one as {name}@{versions[-1]} or promote it",
                param="chain",
            )
        return name, live

    def load_quickly(self, ref: str) -> LoadedChain | None:
        """Return the chain from memory if its files have not changed since it was loaded; None otherwise."""
        name, version = split_ref(ref)
        if version is None:
            made, live = self.pointers.get(name, ((0, 0), None))
            now = made_when(self.root / name / "pointer.json")
            if now != made:
                live = self.live(name)
                self.pointers[name] = now, live
            version = live
        found = None if version is None else self.loaded.get((name, version))
        return found if found is not None and found.made == made_when(found.folder) else None

    def load(self, ref: str) -> LoadedChain:
        """Return a chain ready to apply, from memory if its files have not changed, else from disk.

        Raises:
            UnknownNameError: if there is no such chain or version.
            ArtifactError: if its files are damaged.
        """
        if (quickly := self.load_quickly(ref)) is not None:
            return quickly
        name, version = self.resolve(ref)
        folder = self.root / name / str(version)
        with self.loading:
            found = self.loaded.pop((name, version), None)
            if found is None or found.made != made_when(folder):  # somebody removed it and fitted anew
                found = LoadedChain(name, version, self.read(name, version), folder)
            self.loaded[name, version] = found  # last in the dictionary: used last
            while len(self.loaded) > LOADED_MOST:
                self.loaded.pop(next(iter(self.loaded)))
        return found

    def manifest(self, name: str, version: int) -> Manifest:
        """Read and check the manifest of a version.

        Raises:
            ArtifactError: if the manifest is damaged.
        """
        folder = self.root / name / str(version)
        manifest = read_manifest(folder, self.links_within)
        require_fit_fields(folder, manifest)
        return manifest

    def publish(
        self,
        chain: "Chain",
        name: str,
        promote: bool | None,
        job: str | None = None,
        statistics: "FitStatistics | None" = None,
    ) -> tuple[int, bool]:
        """Save a fitted chain as the next version, and make it live if wanted.

        Args:
            chain: its metadata becomes the manifest's.
            name: name of the chain.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that fitted the chain; where jobs may run twice, the second run publishes nothing. Unused
                here.
            statistics: statistics of the rows the chain was fitted on, stored in the version's folder.

        Returns:
            The version, and whether it is live.
        """
        require_name(name)
        with self.lock(name):
            pointer = self.pointer(name)
            version = max([pointer.last, *self.versions(name)]) + 1
            chain.save(self.root / name / str(version), {"name": name, "version": version}, statistics)
            pointer = with_version(pointer, version, promote)
            self.point(name, pointer)
        return version, pointer.live == version

    def promote(self, name: str, version: int, gate: Gate = no_gate) -> Pointer:
        """Make a version live and return the new pointer.

        Args:
            name: name of the chain.
            version: version to promote.
            gate: called with the manifest first; if it raises, nothing changes.

        Raises:
            UnknownNameError: if there is no such version.
            ArtifactError: if its files are damaged.
        """
        self.resolve(f"{name}@{version}")
        with self.lock(name):
            chain = self.read(name, version)  # never make live what cannot be served
            return self.point(name, made_live(self.pointer(name), version, gate(chain.metadata)))

    def rollback(self, name: str) -> Pointer:
        """Make the most recent earlier live version live again, and return the new pointer.

        Raises:
            UnknownNameError: if there is no such chain.
            ConflictError: if no earlier version exists.
        """
        self.require_known(name)
        with self.lock(name):
            return self.point(name, rolled_back(name, self.pointer(name), self.versions(name)))

    def delete(self, name: str, version: int) -> None:
        """Delete a version permanently; its number is not used again.

        Raises:
            UnknownNameError: if there is no such version.
            ConflictError: if the version is live and there are others, one of which must be promoted first.
        """
        self.resolve(f"{name}@{version}")
        with self.lock(name):
            self.point(name, without(name, self.pointer(name), version, self.versions(name)))
            self.remove(name, version)

    def adopt(self, name: str, source: "Registry") -> bool:
        """Copy a chain with all versions and its pointer from another registry, unless the name was ever used here.

        Args:
            name: name of the chain.
            source: registry to copy from; it is not changed.

        Returns:
            Whether the chain was copied.

        Raises:
            ArtifactError: if a version or the pointer is damaged.
        """
        return self._copy_chain(name, source, load_chain)

    def install(self, name: str, shipped: "Registry") -> bool:
        """Copy a chain that ships with Lathe, as `adopt` does, but check its digests without importing torch."""
        return self._copy_chain(name, shipped, read_serialized_artifact)

    def _copy_chain(self, name: str, source: "Registry", check: Callable[[Path, Path | None], object]) -> bool:
        """Copy all versions of a chain after `check`, unless the name was ever used; return whether it was copied."""
        if (self.root / name / "pointer.json").exists():
            return False
        with self.lock(name):
            for version in source.versions(name):
                folder, target = source.root / name / str(version), self.root / name / str(version)
                check(folder, source.links_within)
                if not target.exists():
                    copy_artifact(folder, target, source.links_within)
            self.point(name, source.pointer(name))
        return True

    def describe(self, ref: str) -> dict[str, Any]:
        """Describe a chain with all its versions as JSON; damaged versions are marked as corrupt.

        Steps, provenance and certificate at the top level are those of the version in `ref`, else of the live one, else
        of the newest.

        Raises:
            UnknownNameError: if there is no such chain or version.
        """
        name, wanted = split_ref(ref)
        self.require_known(name)
        numbers, pointer = self.versions(name), self.readable_pointer(name)
        shown = self.resolve(ref)[1] if wanted else pointer.live or numbers[-1]
        versions = [self.describe_version(name, version) for version in numbers]
        current = next((v for v in versions if v["version"] == shown), versions[-1])
        earlier = [version for version in pointer.earlier if version in numbers]
        known = {"live": pointer.live, "earlier": earlier, "forced": list(pointer.past)}
        return current | {"name": name} | known | {"versions": versions}

    def describe_version(self, name: str, version: int) -> dict[str, Any]:
        """Return a version's manifest and state "ready"; if it cannot be read, state "corrupt" and the error."""
        try:
            return {"version": version, "state": "ready"} | self.manifest(name, version)
        except ArtifactError as error:
            return {"version": version, "state": "corrupt", "error": str(error)}

    def require_known(self, name: str) -> None:
        """Raise `UnknownNameError` unless the chain has a version."""
        if not is_name(name) or not self.versions(name):
            raise UnknownNameError(f"there is no chain {name!r}", param="name")

    def lock(self, name: str) -> FileLock:
        """Create the chain's folder and return the file lock that must be held to change the chain."""
        make_root(self.root)
        make_folder(self.root / name)
        return lock_file(self.root / name / ".lock")

    def remove(self, name: str, version: int) -> None:
        """Delete a version's folder and drop the chain from memory; the caller holds the chain's lock."""
        doomed = self.root / name / f".{version}.{secrets.token_hex(6)}"
        (self.root / name / str(version)).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        self.loaded.pop((name, version), None)

    def point(self, name: str, pointer: Pointer) -> Pointer:
        """Replace the chain's pointer file atomically and return the pointer."""
        replace_synced(self.root / name / "pointer.json", pointer.dump())
        sync_folder(self.root / name)
        return pointer


def copy_artifact(source: Path, target: Path, root: Path | None) -> None:
    """Copy the known files of an artifact folder to `target`, which appears when complete; `root` as in `read_file`."""
    staging = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        make_folder(staging)
        for name in (TENSORS, DISTRIBUTION, MANIFEST):
            with suppress(FileNotFoundError):  # not every fit leaves a reference
                write_synced(staging / name, read_file(source, name, root))
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def made_live(pointer: Pointer, version: int, forced: Sequence[str] = ()) -> Pointer:
    """Return the pointer after promoting a version, whose failed gates are recorded in `forced`."""
    if pointer.live == version:
        return pointer
    earlier = pointer.earlier if pointer.live is None else (*pointer.earlier, pointer.live)
    past = without_key(pointer.forced, version) | ({version: tuple(forced)} if forced else {})
    return replace(pointer, live=version, earlier=tuple(v for v in earlier if v != version), forced=past)


def with_version(pointer: Pointer, version: int, promote: bool | None) -> Pointer:
    """Return the pointer after adding a version, live if `promote` is true, or None and no version is live."""
    pointer = replace(pointer, last=version)
    live = promote if promote is not None else pointer.live is None
    return made_live(pointer, version) if live else pointer


def rolled_back(name: str, pointer: Pointer, versions: Collection[int]) -> Pointer:
    """Return the pointer after a rollback to the most recent earlier version that exists.

    Raises:
        ConflictError: if no earlier version exists.
    """
    earlier = [version for version in pointer.earlier if version in versions]
    if not earlier:
        raise ConflictError(f"the chain {name} has no earlier version to go back to", param="name")
    return replace(pointer, live=earlier[-1], earlier=tuple(earlier[:-1]))


def without(name: str, pointer: Pointer, version: int, versions: Collection[int]) -> Pointer:
    """Return the pointer after deleting a version.

    Raises:
        ConflictError: if the version is live and there are others, one of which must be promoted first.
    """
    if version == pointer.live:
        if len(versions) > 1:
            raise ConflictError(f"{name}@{version} is live; promote another version first", param="version")
        pointer = replace(pointer, live=None)
    earlier = tuple(v for v in pointer.earlier if v != version)
    return replace(pointer, earlier=earlier, forced=without_key(pointer.forced, version))


def without_key(forced: Mapping[int, tuple[str, ...]], version: int) -> dict[int, tuple[str, ...]]:
    """Return the mapping without the version's entry."""
    return {other: gates for other, gates in forced.items() if other != version}


def made_when(path: Path) -> tuple[int, int]:
    """Return inode and modification time of a path, to recognize that it was replaced; zeros if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)
