"""Versions in one folder: their names and numbers, the live version of each name, and changes to these.

<name>/
├── pointer.json   {"live": 2, "earlier": [1], "last": 3, "forced": {"2": ["recall_at_10"]}}
├── 1/ 2/ 3/       one folder for each version
└── .lock          held while versions or the pointer change

Other processes may change the folder at any time, so each call checks the files instead of trusting its memory.

Gates are thresholds that a version must reach before it is promoted.
"""

import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock

from lathe.service.chains.names import is_name, parse_number, split_ref
from lathe.service.chains.pointer import Pointer
from lathe.service.errors import ConflictError, UnknownNameError
from lathe.training.fitting.requests import check_gate_names, is_upper_bound, read_gate_value, satisfies_gate
from lathe.training.locks import lock_file
from lathe.transforms.artifact import read_file
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, make_root, replace_synced, sync_folder

Gate = Callable[[Mapping[str, Any]], Sequence[str]]
"""Function that checks the manifest of a version to promote: raises, or returns failed gates to override."""

PointerChange = Callable[[Pointer, Collection[int]], Pointer]
"""Function from a name's pointer and versions to its new pointer; raises if the versions do not allow the change."""

VersionWriter = Callable[[Path, int], object]
"""Function that writes the files of a version with a given number to a new folder."""


class VersionFolder:
    """The versions of chains, or of trained encoders, in one folder.

    Args:
        root: the folder.
        shipped: whether the folder is part of the installed package, whose files may be links to anywhere.

    Attributes:
        kind: what the versions are of, for messages and the parameter of errors.
        links_within: folder that no link may lead out of; None follows links anywhere.
    """

    kind: ClassVar[str] = "chain"

    def __init__(self, root: Path, shipped: bool = False) -> None:
        self.root = root
        self.links_within = None if shipped else root

    def names(self) -> list[str]:
        """List the names that have at least one version, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(f.name for f in self.root.iterdir() if is_name(f.name) and self.versions(f.name))

    def versions(self, name: str) -> list[int]:
        """List the version numbers of a name, ascending. The list is empty if there is no such name."""
        folder = self.root / name
        if not folder.is_dir():
            return []
        return sorted(int(f.name) for f in folder.iterdir() if parse_number(f.name) and f.is_dir())

    def read_pointer(self, name: str) -> Pointer:
        """Read which version of a name is live, and which were. The pointer is empty if there is no pointer file.

        Raises:
            ArtifactError: if the file is damaged or cannot be read.
        """
        try:
            return Pointer.parse(name, read_file(self.root / name, "pointer.json", self.links_within), self.kind)
        except FileNotFoundError:
            return Pointer()
        except OSError as error:
            raise ArtifactError(
                f"the live pointer of the {self.kind} {name} cannot be read: {error.strerror}"
            ) from error

    def live(self, name: str) -> int | None:
        """Return the live version of a name, or None if no version is live or the pointer is damaged."""
        return self._read_pointer_or_empty(name).live

    def _read_pointer_or_empty(self, name: str) -> Pointer:
        """Return the pointer of a name, empty if the pointer file is missing or damaged."""
        try:
            return self.read_pointer(name)
        except ArtifactError:
            return Pointer()

    def resolve(self, ref: str) -> tuple[str, int]:
        """Resolve a reference `name`, `name@live` or `name@version`, and return `(name, version number)`.

        A name without a version means the live version.

        Raises:
            UnknownNameError: if there is no such name or version, or none is live.
        """
        name, version = split_ref(ref, self.kind)
        versions = self.versions(name)
        self._require_version(name, version, versions)
        if version is not None:
            return name, version
        live = self.read_pointer(name).live
        if live is None:
            raise UnknownNameError(
                f"no version of the {self.kind} {name} is live; name one as {name}@{versions[-1]} or promote it",
                param=self.kind,
            )
        return name, live

    def _require_version(self, name: str, version: int | None, versions: Collection[int]) -> None:
        """Raise `UnknownNameError` unless `version`, or any version if it is None, is in `versions`."""
        if not versions:
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no {self.kind} {name[:80]!r}; there are: {known}", param=self.kind)
        if version is not None and version not in versions:
            existing = ", ".join(map(str, sorted(versions)))
            raise UnknownNameError(
                f"the {self.kind} {name} has no version {version}; it has {existing}", param=self.kind
            )

    def manifest(self, name: str, version: int) -> dict[str, Any]:
        """Read the manifest of a version and return it as a dict.

        Raises:
            ArtifactError: if it is missing or damaged.
        """
        raise NotImplementedError

    def check_version(self, name: str, version: int) -> dict[str, Any]:
        """Read all files of a version, as serving it would, to check them. Return its manifest.

        Raises:
            ArtifactError: if its files are damaged.
        """
        raise NotImplementedError

    def find_published(self, name: str, job: str | None) -> int | None:
        """Return the version that a job published, by the manifests, or None. Manifests of chains name no job."""
        if job is None:
            return None
        for version in self.versions(name):
            with suppress(ArtifactError):
                if self.manifest(name, version).get("job") == job:
                    return version
        return None

    def add_version(self, name: str, promote: bool | None, job: str | None, write: VersionWriter) -> tuple[int, bool]:
        """Write the next version of a name, and return `(version, whether it is live)`. A job publishes only once.

        Args:
            name: the name.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that publishes it; the version that it has published already is returned instead.
            write: called with the path of a new folder and the version's number; writes the version's files.
        """
        with self.lock(name):
            pointer = self.read_pointer(name)
            if (published := self.find_published(name, job)) is not None:
                return published, pointer.live == published
            # `pointer.last` keeps the numbers of deleted versions from being used again.
            version = max([pointer.last, *self.versions(name)]) + 1
            with self.stage_version(name, version) as staging:
                write(staging, version)
            pointer = self.write_pointer(name, pointer.add_version(version, promote))
        return version, pointer.live == version

    @contextmanager
    def stage_version(self, name: str, version: int) -> Iterator[Path]:
        """Yield the path of a folder to create, which becomes the version's folder when the block ends.

        A version that is there is replaced. After an error nothing is changed. The caller holds the name's lock.
        """
        staging = self.root / name / f".{version}.{secrets.token_hex(6)}"
        try:
            yield staging
            if (self.root / name / str(version)).exists():
                self.remove_folder(name, version)
            # Renamed once it is complete: whoever reads the folder sees all files of a version or none.
            staging.rename(self.root / name / str(version))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(self.root / name)

    def promote(self, name: str, version: int, gate: Gate) -> Pointer:
        """Make a version live, unless `gate` raises for its manifest, and return the new pointer.

        Args:
            name: the name.
            version: version to promote.
            gate: called with the manifest first; if it raises, nothing changes. It returns the names of gates that the
                version fails, which the pointer records as overridden.

        Raises:
            UnknownNameError: if there is no such version.
            ArtifactError: if its files are damaged.
        """

        def change(pointer: Pointer, versions: Collection[int]) -> Pointer:
            self._require_version(name, version, versions)
            manifest = self.check_version(name, version)  # never make live what cannot be served
            return pointer.promote(version, gate(manifest))

        return self.change_pointer(name, change)

    def describe(self, ref: str) -> dict[str, Any]:
        """Describe a name as JSON: the manifest of one version, the live version, and all versions.

        `live` is the live version, `earlier` lists the live versions before it, and `forced` the gates overridden for
        the live version. `versions` has the manifest of each version, or marks it as corrupt if it is damaged. The
        manifest at the top level belongs to the version in `ref`, else to the live version, else to the newest.

        Raises:
            UnknownNameError: if there is no such name or version.
        """
        name, requested = split_ref(ref, self.kind)
        numbers = self.versions(name) if is_name(name) else []
        if not numbers:
            raise UnknownNameError(f"there is no {self.kind} {name!r}", param="name")
        pointer = self._read_pointer_or_empty(name)
        described = self.resolve(ref)[1] if requested else pointer.live or numbers[-1]
        versions = [self.describe_version(name, version) for version in numbers]
        current = next((v for v in versions if v["version"] == described), versions[-1])
        earlier = [version for version in pointer.earlier if version in numbers]
        return current | {"name": name} | pointer.to_json() | {"earlier": earlier, "versions": versions}

    def describe_version(self, name: str, version: int) -> dict[str, Any]:
        """Return a version's manifest with `state` "ready", or `state` "corrupt" and the error if it is damaged."""
        try:
            return {"version": version, "state": "ready"} | self.manifest(name, version)
        except ArtifactError as error:
            return {"version": version, "state": "corrupt", "error": str(error)}

    def rollback(self, name: str) -> Pointer:
        """Make the latest earlier version that still exists live again, and return the new pointer.

        Raises:
            UnknownNameError: if there is no such name.
            ConflictError: if no earlier version exists.
        """

        def change(pointer: Pointer, versions: Collection[int]) -> Pointer:
            if not versions:
                raise UnknownNameError(f"there is no {self.kind} {name!r}", param="name")
            return pointer.roll_back(name, versions, self.kind)

        return self.change_pointer(name, change)

    def delete(self, name: str, version: int) -> None:
        """Delete a version permanently. Its number is not used again.

        Raises:
            UnknownNameError: if there is no such version.
            ConflictError: if the version is live and there are others, one of which must be promoted first.
        """

        def change(pointer: Pointer, versions: Collection[int]) -> Pointer:
            self._require_version(name, version, versions)
            return pointer.remove_version(name, version, versions)

        self.change_pointer(name, change, doomed=version)

    def change_pointer(self, name: str, change: PointerChange, doomed: int | None = None) -> Pointer:
        """Compute a name's new pointer with `change`, write it, delete the version `doomed`, and return the pointer.

        If `change` raises, as it does for a name without versions, nothing changes.

        Args:
            name: the name.
            change: function that computes the new pointer.
            doomed: version to delete afterwards; None for none.
        """
        if not is_name(name) or not self.versions(name):  # before the lock, which creates a folder
            return change(Pointer(), ())
        with self.lock(name):
            # The pointer first, so that no reader is sent to a version that is being deleted.
            pointer = self.write_pointer(name, change(self.read_pointer(name), self.versions(name)))
            if doomed is not None:
                self.remove_folder(name, doomed)
        return pointer

    def lock(self, name: str) -> FileLock:
        """Create the folder of a name, and return the file lock for changes, which is not acquired yet."""
        make_root(self.root)
        make_folder(self.root / name)
        return lock_file(self.root / name / ".lock")

    def remove_folder(self, name: str, version: int) -> None:
        """Delete a version's folder. The caller holds the name's lock."""
        # Renamed first: a reader sees the version whole or not at all.
        doomed = self.root / name / f".{version}.{secrets.token_hex(6)}"
        (self.root / name / str(version)).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def write_pointer(self, name: str, pointer: Pointer) -> Pointer:
        """Replace a name's pointer file atomically, and return `pointer` unchanged."""
        replace_synced(self.root / name / "pointer.json", pointer.serialize())
        sync_folder(self.root / name)
        return pointer


@dataclass(frozen=True)
class _FailedGate:
    """A gate (a threshold on a measure of the certificate) that a version fails.

    Attributes:
        value: measured value; None if it was not measured.
        is_maximum: whether the threshold is a maximum instead of a minimum.
        origin: who set the gate, in words.
    """

    gate: str
    threshold: float
    value: float | None
    is_maximum: bool
    origin: str

    def __str__(self) -> str:
        value = "was not measured" if self.value is None else f"is {self.value:.4g}"
        bound = "at most" if self.is_maximum else "at least"
        return f"{self.gate} {value}, wanted {bound} {self.threshold:g} ({self.origin})"


def promote_with_gates(
    registry: VersionFolder,
    name: str,
    version: int,
    gates: Mapping[str, float] | None = None,
    force: bool = False,
    require_known_gates: Callable[[Mapping[str, float]], None] = check_gate_names,
) -> Pointer:
    """Make a version live if its certificate passes all gates, or with `force`, and return the new pointer.

    Gates are thresholds on metrics of the certificate: the gates of its fit, and `gates`.

    Args:
        registry: registry of chains, or trained encoders.
        name: name of the chain or encoder.
        version: version to promote.
        gates: thresholds on the certificate, besides those the version was fitted with.
        force: whether to promote in spite of failed gates; the pointer then records which.
        require_known_gates: raises for a gate that no certificate of this kind has.

    Raises:
        ConflictError: with the code `gate_failed` and each failed gate.
        FitError, JobError: if a gate is not a measure of the certificate.
        UnknownNameError: if there is no such version.
        ArtifactError: if its files are damaged.
    """
    requested = gates or {}
    require_known_gates(requested)

    def pass_gates(manifest: Mapping[str, Any]) -> list[str]:
        failed = _find_failed_gates(manifest, requested)
        if failed and not force:
            raise ConflictError(
                f"{name}@{version} does not pass its gates: {'; '.join(map(str, failed))}. "
                "The live version stays; `force` promotes this one in spite of them",
                param="version",
                code="gate_failed",
            )
        return list(dict.fromkeys(failed_gate.gate for failed_gate in failed))

    return registry.promote(name, version, pass_gates)


def _find_failed_gates(manifest: Mapping[str, Any], requested: Mapping[str, float]) -> list[_FailedGate]:
    """List the gates (thresholds on measures) that a version's certificate fails.

    The gates set by its fit come first, then those in `requested`. A metric that was not measured fails its gate.
    """
    certificate = manifest.get("certificate") or {}
    # The fit stored its gates, so that a promotion by hand has to pass them too.
    fitted_with = (manifest.get("provenance") or {}).get("gates") or {}
    failed = []
    for origin, gates in (("set by its fit", fitted_with), ("asked for", requested)):
        for gate, threshold in gates.items():
            figure = read_gate_value(gate, certificate)
            if not satisfies_gate(gate, threshold, figure):
                failed.append(_FailedGate(gate, threshold, figure, is_upper_bound(gate), origin))
    return failed
