"""Chains on disk: versions that never change, and a live pointer that does.

chains/<name>/
├── pointer.json   {"live": 2, "earlier": [1], "last": 3, "forced": {"2": ["recall_at_10"]}}
├── 1/ 2/ 3/       artifacts, see transforms.artifact
└── .lock          held while versions or the pointer change

Any number of processes may read and write: a version appears by a rename, the pointer changes by
a rename, and readers look at the files, not at what they remember.
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
"""Chains kept in memory; one of 4096 × 1024 floats is 16 MB."""

VERSIONS_MOST = 10**9
"""Versions have at most nine digits, as `whole_number` reads them."""

FIT_FIELDS = {"encoder": dict, "target_encoder": dict, "provenance": dict, "certificate": dict}
"""What a fit adds to a chain's manifest."""

Gate = Callable[[Manifest], Sequence[str]]
"""Looks at a version that is to become live: raises if it may not, or names what it was forced past."""


@dataclass(frozen=True)
class Pointer:
    """Which version of a chain is live.

    Attributes:
        live: the version that the bare name means; None before the first promotion.
        earlier: versions that were live before, latest last; what rolling back goes to.
        last: the highest version ever given, so that none is given twice.
        forced: versions that were made live by force, with the gates they did not pass.
    """

    live: int | None = None
    earlier: tuple[int, ...] = ()
    last: int = 0
    forced: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, name: str, content: bytes) -> "Pointer":
        """Read a chain's pointer.

        Raises:
            ArtifactError: if it was damaged.
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
        """Raise `TypeError` unless versions are numbers that a folder can have, and gates are names."""
        versions = [*self.earlier, self.last, *self.forced, *([] if self.live is None else [self.live])]
        if not all(type(version) is int and 0 <= version < VERSIONS_MOST for version in versions):
            raise TypeError(f"a version is a whole number below {VERSIONS_MOST}")
        if not all(isinstance(gate, str) for gates in self.forced.values() for gate in gates):
            raise TypeError("a gate is a name")

    @property
    def past(self) -> tuple[str, ...]:
        """The gates that the live version did not pass."""
        return () if self.live is None else self.forced.get(self.live, ())

    def dump(self) -> bytes:
        """The same as JSON."""
        return json.dumps(asdict(self)).encode()


class LoadedChain:
    """A version in memory, with its folded forms made once for each size."""

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
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def encoder_fingerprint(self) -> str | None:
        """Whose vectors it takes; None if it was fitted on vectors of nobody's."""
        encoder = self.chain.metadata.get("encoder")
        return encoder["fingerprint"] if encoder else None

    @cached_property
    def reference(self) -> "FitDistribution | ArtifactError":
        """What the rows it was fitted on look like, read when first asked for; or why nobody knows."""
        from transforms.artifact import FitDistribution

        try:
            return FitDistribution.load(self.folder)
        except ArtifactError as error:
            return error

    def fold(self, dimensions: int | None, normalize: bool) -> "Chain":
        """The chain as one product, cut to a size."""
        key = (dimensions, self.normalizes(normalize))
        if key not in self.folded:
            self.folded[key] = self.chain.fold(*key)
        return self.folded[key]

    def as_asked(self, dimensions: int | None, normalize: bool) -> ChainRef:
        """The same for a worker that reads the chain itself."""
        return ChainRef(self.folder, self.digest, dimensions, self.normalizes(normalize))

    def normalizes(self, wanted: bool) -> bool:
        """Whether it gives unit vectors where that is wanted or not."""
        as_fitted = self.chain.quantizer is not None  # the ranges of codes are those of what was fitted
        return self.chain.normalize and (wanted or as_fitted)


def load_chain(folder: Path, root: Path | None) -> "Chain":
    """Read a chain as `Chain.load` does; torch is imported only here, for listing chains does without it."""
    from transforms.chain import Chain

    chain = Chain.load(folder, root)
    require_fit_fields(folder, chain.metadata)
    return chain


def require_fit_fields(folder: Path, manifest: Manifest) -> None:
    """Raise `ArtifactError` unless what a fit added to the manifest of a folder is what the service reads."""
    require_field_types(folder, manifest, FIT_FIELDS)
    require_field_types(folder, manifest.get("provenance") or {}, {"gates": dict})
    for name in ("encoder", "target_encoder"):
        if manifest.get(name) and not isinstance(manifest[name].get("fingerprint"), str):
            raise ArtifactError(f"the manifest of {display_name(folder)} cannot be read: {name} has no fingerprint")


def no_gate(_manifest: Manifest) -> Sequence[str]:
    """Lets any version through."""
    return ()


class Registry:
    """The chains in one folder.

    Args:
        root: the folder.
        shipped: whether it came with an installed package, whose files may be links to anywhere; in others no link
            may lead out of the folder.
    """

    def __init__(self, root: Path, shipped: bool = False) -> None:
        self.root = root
        self.links_within = None if shipped else root
        self.loaded: dict[tuple[str, int], LoadedChain] = {}
        self.pointers: dict[str, tuple[tuple[int, int], int | None]] = {}
        self.loading = threading.Lock()

    def names(self) -> list[str]:
        """Chains that have a version."""
        if not self.root.is_dir():
            return []
        return sorted(f.name for f in self.root.iterdir() if is_name(f.name) and self.versions(f.name))

    def versions(self, name: str) -> list[int]:
        """Versions of a chain, ascending; empty if there is no such chain."""
        folder = self.root / name
        if not folder.is_dir():
            return []
        return sorted(int(f.name) for f in folder.iterdir() if whole_number(f.name) and f.is_dir())

    def read(self, name: str, version: int) -> "Chain":
        """Read a version from disk.

        Raises:
            ArtifactError: if its files were damaged.
        """
        return load_chain(self.root / name / str(version), self.links_within)

    def read_files(self, name: str, version: int) -> tuple[bytes, bytes]:
        """Return the manifest and the serialized tensors of a version as they are on disk.

        Raises:
            OSError: if they cannot be read.
        """
        folder = self.root / name / str(version)
        return read_file(folder, MANIFEST, self.links_within), read_file(folder, TENSORS, self.links_within)

    def pointer(self, name: str) -> Pointer:
        """The pointer of a chain; empty if there is none.

        Raises:
            ArtifactError: if it was damaged or cannot be read.
        """
        try:
            return Pointer.parse(name, read_file(self.root / name, "pointer.json", self.links_within))
        except FileNotFoundError:
            return Pointer()
        except OSError as error:
            raise ArtifactError(f"the live pointer of the chain {name} cannot be read: {error.strerror}") from error

    def live(self, name: str) -> int | None:
        """The live version of a chain; None if there is none, or its pointer is damaged."""
        return self.readable_pointer(name).live

    def readable_pointer(self, name: str) -> Pointer:
        """The pointer of a chain; empty if there is none, or it is damaged."""
        try:
            return self.pointer(name)
        except ArtifactError:
            return Pointer()

    def resolve(self, ref: str) -> tuple[str, int]:
        """Name and version that `name`, `name@live` or `name@version` stands for.

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
        """A chain in memory whose files are the same as when it was read; else None."""
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
        """A chain ready to apply.

        Raises:
            UnknownNameError: if there is none of that name or version.
            ArtifactError: if its files were damaged.
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
        """What a version says of itself.

        Raises:
            ArtifactError: if it was damaged.
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
        """Add a fitted chain as the next version.

        Args:
            chain: its metadata becomes the manifest's.
            name: of the chain.
            promote: make it live; None does so if no version is.
            job: that fitted it; where jobs may run twice, the second run publishes nothing.
            statistics: of the rows it was fitted on, to store beside it.

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
        """Make a version live.

        Args:
            name: of the chain.
            version: of it.
            gate: asked first; what it raises leaves all as it was.

        Raises:
            UnknownNameError: if there is no such version.
            ArtifactError: if it was damaged.
        """
        self.resolve(f"{name}@{version}")
        with self.lock(name):
            chain = self.read(name, version)  # never make live what cannot be served
            return self.point(name, made_live(self.pointer(name), version, gate(chain.metadata)))

    def rollback(self, name: str) -> Pointer:
        """Make the version live that was live before.

        Raises:
            UnknownNameError: if there is no such chain.
            ConflictError: if no earlier version is there.
        """
        self.require_known(name)
        with self.lock(name):
            return self.point(name, rolled_back(name, self.pointer(name), self.versions(name)))

    def delete(self, name: str, version: int) -> None:
        """Remove a version for good; its number is not given again.

        Raises:
            UnknownNameError: if there is no such version.
            ConflictError: if it is live and others are there to be promoted first.
        """
        self.resolve(f"{name}@{version}")
        with self.lock(name):
            self.point(name, without(name, self.pointer(name), version, self.versions(name)))
            self.remove(name, version)

    def adopt(self, name: str, source: "Registry") -> bool:
        """Take over a chain of another registry with all its versions, unless the name was ever used here.

        Args:
            name: of the chain.
            source: where it is; nothing is changed there.

        Returns:
            Whether it was taken over.

        Raises:
            ArtifactError: if a version or the pointer was damaged.
        """
        return self._copy_chain(name, source, load_chain)

    def install(self, name: str, shipped: "Registry") -> bool:
        """Take over a chain that ships with Lathe; see `adopt`. Its digests are checked without loading torch."""
        return self._copy_chain(name, shipped, read_serialized_artifact)

    def _copy_chain(self, name: str, source: "Registry", check: Callable[[Path, Path | None], object]) -> bool:
        """Copy all versions of a chain, each after a check, unless the name was ever used; return whether it was."""
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
        """A chain with all its versions; damaged ones say so.

        Steps, provenance and certificate at the top are those of the version named, else of the
        live one, else of the newest.

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
        """A version's manifest, or why it cannot be read."""
        try:
            return {"version": version, "state": "ready"} | self.manifest(name, version)
        except ArtifactError as error:
            return {"version": version, "state": "corrupt", "error": str(error)}

    def require_known(self, name: str) -> None:
        """Raise `UnknownNameError` unless the chain has a version."""
        if not is_name(name) or not self.versions(name):
            raise UnknownNameError(f"there is no chain {name!r}", param="name")

    def lock(self, name: str) -> FileLock:
        """The right to change a chain, among threads and processes."""
        make_root(self.root)
        make_folder(self.root / name)
        return lock_file(self.root / name / ".lock")

    def remove(self, name: str, version: int) -> None:
        """Take a version off the disk; under the chain's lock."""
        doomed = self.root / name / f".{version}.{secrets.token_hex(6)}"
        (self.root / name / str(version)).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        self.loaded.pop((name, version), None)

    def point(self, name: str, pointer: Pointer) -> Pointer:
        """Replace the pointer, whole or not at all."""
        replace_synced(self.root / name / "pointer.json", pointer.dump())
        sync_folder(self.root / name)
        return pointer


def copy_artifact(source: Path, target: Path, root: Path | None) -> None:
    """Copy the files of an artifact folder, which are known by name, whole or not at all; `root` as in `read_file`."""
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
    """The pointer after a promotion, past gates or past none."""
    if pointer.live == version:
        return pointer
    earlier = pointer.earlier if pointer.live is None else (*pointer.earlier, pointer.live)
    past = without_key(pointer.forced, version) | ({version: tuple(forced)} if forced else {})
    return replace(pointer, live=version, earlier=tuple(v for v in earlier if v != version), forced=past)


def with_version(pointer: Pointer, version: int, promote: bool | None) -> Pointer:
    """The pointer after a version was added; None promotes it if none is live."""
    pointer = replace(pointer, last=version)
    live = promote if promote is not None else pointer.live is None
    return made_live(pointer, version) if live else pointer


def rolled_back(name: str, pointer: Pointer, versions: Collection[int]) -> Pointer:
    """The pointer after going back among the versions there are.

    Raises:
        ConflictError: if no earlier version is there.
    """
    earlier = [version for version in pointer.earlier if version in versions]
    if not earlier:
        raise ConflictError(f"the chain {name} has no earlier version to go back to", param="name")
    return replace(pointer, live=earlier[-1], earlier=tuple(earlier[:-1]))


def without(name: str, pointer: Pointer, version: int, versions: Collection[int]) -> Pointer:
    """The pointer after a version was deleted.

    Raises:
        ConflictError: if it is live and others are there to be promoted first.
    """
    if version == pointer.live:
        if len(versions) > 1:
            raise ConflictError(f"{name}@{version} is live; promote another version first", param="version")
        pointer = replace(pointer, live=None)
    earlier = tuple(v for v in pointer.earlier if v != version)
    return replace(pointer, earlier=earlier, forced=without_key(pointer.forced, version))


def without_key(forced: Mapping[int, tuple[str, ...]], version: int) -> dict[int, tuple[str, ...]]:
    """What is said of the other versions."""
    return {other: gates for other, gates in forced.items() if other != version}


def made_when(path: Path) -> tuple[int, int]:
    """What tells a file or folder from another that takes its place; zeros if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)
