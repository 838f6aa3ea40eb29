"""Versions whose record is in Redis, served from a copy in a folder: what chains and trained encoders share.

Changes are made in Redis first. A replica copies missing versions, checks them, and only then moves its own pointer, so
that it never serves a partial version; altered versions are refused, and the live version stays live. While Redis is
unreachable, the replica serves from the copy.
"""

import hashlib
import logging
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from redis import exceptions as redis_errors
from redis.client import Pipeline

from lathe.service.chains.names import is_name
from lathe.service.chains.pointer import Pointer
from lathe.service.chains.version_folder import PointerChange, VersionFolder
from lathe.service.encoders.trained import make_parents
from lathe.service.errors import UnavailableError
from lathe.service.redis.connection import RedisConnection, convert_wrong_type_errors
from lathe.service.redis.version_record import (
    IDENTITY,
    SharedRecord,
    VersionRecord,
    VersionStamp,
    build_key,
    compute_digest,
    delete_stamp,
    read_record,
    write_pointer,
    write_stamp,
)
from lathe.transforms.artifact import MANIFEST, read_file
from lathe.transforms.beneath import open_beneath
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, parse_json, read_pieces, sync_folder, write_pieces, write_synced

GRACE_SECONDS = 2.0
"""Seconds that a new, empty replica waits before it starts a record in an empty Redis, so that replicas with versions
go first."""

UPLOAD_SECONDS = 3600
"""Seconds after which files expire that no record came to name."""

REFUSED = Counter("lathe_registry_refused", "Versions in Redis that were altered or cut off, each time one was read")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upload:
    """Files of a version that were written to Redis, and that expire unless a transaction keeps them.

    Attributes:
        stamp: what the record will say of the version.
        key: where the files are until then: another replica may have committed the same, if a job ran twice.
    """

    stamp: VersionStamp
    key: str


class SharedVersions(VersionFolder, ABC):
    """Versions of chains of transforms, or of trained encoders, that replicas share in Redis, with a copy in a folder.

    lathe:files:<digest> hash: a version's manifest, and the pieces of its other files as <path>:<number>

    The digest in the key is the manifest's. Files may be large, so they are written before the transaction in
    which a record names them. Until then they expire.

    A subclass says which files a version has. It names this class before that of the folder, and calls `connect` in its
    constructor.

    Attributes:
        refused: versions that were altered in Redis, with what is wrong.
    """

    def connect(self, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        """Store the connection to Redis. Nothing is requested from it yet.

        Args:
            connection: connection to Redis.
            grace_seconds: seconds that a new replica waits for others to start the record in an empty Redis.
        """
        self.connection = connection
        self.grace_seconds = grace_seconds
        self.record = SharedRecord(connection, self.root)
        self.refused: dict[str, str] = {}

    @abstractmethod
    def list_files(self, manifest: bytes) -> Mapping[str, str | None]:
        """Return the files of a version besides its manifest, as `{relative path: SHA-256}`.

        A file whose digest is None may be missing, and is checked when it is read.

        Raises:
            ValueError: if the manifest is damaged.
        """

    def join_record(self) -> None:
        """Use the set of versions in Redis, or start one, then write to Redis the names that only this copy has.

        A name that is damaged in this copy is logged and skipped.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
        """
        self.record.join(self.grace_seconds)
        for name in self.names():
            try:
                self.push(name, self)
            except (ArtifactError, OSError) as error:
                log.error("this replica's copy of the %s %s is damaged: %s", self.kind, name, error)

    def list_all_names(self) -> list[str]:
        """Return the names of the chains, or trained encoders, that Redis or this copy has, sorted.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        prefix = build_key(self.kind, "")
        with self.connection.reached() as client:
            keys = [key.decode(errors="replace") for key in client.scan_iter(f"{prefix}*", count=1000)]
        return sorted({*filter(is_name, (key.removeprefix(prefix) for key in keys)), *self.names()})

    def push(self, name: str, source: VersionFolder) -> bool:
        """Write a chain or trained encoder with all versions in `source` to Redis, unless Redis knows its name.

        Returns whether it was written.

        Raises:
            ArtifactError: if a version is damaged.
            UnavailableError: if Redis is unreachable, or full.
        """
        key = build_key(self.kind, name)
        with self.connection.reached() as client:
            if client.exists(key):
                return False
        pointer = source.read_pointer(name)
        uploads = {version: self.upload_version(source, name, version) for version in source.versions(name)}

        def change(pipe: Pipeline) -> bool:
            if pipe.exists(key):
                pipe.multi()
                return False
            self._write_versions(pipe, name, uploads, pointer)
            return True

        return self.record.transaction(change, key)

    def publish_files(
        self,
        name: str,
        promote: bool | None,
        job: str | None,
        prepare: Callable[[int], tuple[bytes, Mapping[str, Path]]],
    ) -> tuple[int, bool]:
        """Add the next version of a chain or trained encoder in Redis, leaving the copy on disk as it is.

        Returns the version's number, and whether it is live.

        Args:
            name: the name.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that publishes it; one that runs twice publishes once.
            prepare: function that returns the manifest and files of a version with a given number.

        Raises:
            UnavailableError: if Redis is unreachable, or has no room for the files.
        """
        while True:  # another version may take the number while this one is written
            with self.connection.reached() as client:
                record = read_record(client, self.kind, name)
            # A job whose worker was lost runs again, perhaps after it has published.
            if (published := record.find_published(job)) is not None:
                return published, record.pointer.live == published
            version = record.next_version
            upload = self.upload(*prepare(version), None, job)
            if (pointer := self._commit(name, version, promote, upload)) is not None:
                return version, pointer.live == version

    def _commit(self, name: str, version: int, promote: bool | None, upload: Upload) -> Pointer | None:
        """Write an uploaded version to the record of its name. Return the new pointer, None if the number is taken."""

        def change(pipe: Pipeline) -> Pointer | None:
            record = read_record(pipe, self.kind, name)
            if record.next_version != version:
                pipe.multi()
                return None
            pointer = record.pointer.add_version(version, promote)
            self._write_versions(pipe, name, {version: upload}, pointer)
            return pointer

        return self.record.transaction(change, build_key(self.kind, name))

    def upload_version(self, source: VersionFolder, name: str, version: int) -> Upload:
        """Write a version's files from a folder to Redis, where they expire unless a transaction keeps them.

        Raises:
            ArtifactError: if they are damaged.
            UnavailableError: if Redis is unreachable, or full.
        """
        folder = source.root / name / str(version)
        try:
            manifest = read_file(folder, MANIFEST, source.links_within)
            files = {path: folder / path for path in self.list_files(manifest)}
            job = parse_json(manifest).get("job")
        except ValueError as error:
            raise ArtifactError(f"the manifest of the {self.kind} {name}@{version} cannot be read: {error}") from error
        return self.upload(manifest, files, source.links_within, job)

    def upload(self, manifest: bytes, files: Mapping[str, Path], root: Path | None, job: str | None) -> Upload:
        """Write a manifest and files to Redis, where they expire unless a transaction keeps them. Return the upload.

        Args:
            manifest: the manifest.
            files: places of the other files, by their paths in the version.
            root: folder out of which no link may lead; None follows links anywhere.
            job: id of the job that publishes the version; None without a job.

        Raises:
            ArtifactError: if a file does not have the digest in the manifest.
            OSError: if a file cannot be read.
            UnavailableError: if Redis is unreachable, or full. What was written is removed after any of these errors.
        """
        stamp = VersionStamp(compute_digest(manifest), job)
        # A random key, as another replica may be writing the same files: two writers must not share pieces.
        key = f"{build_files_key(stamp)}:{secrets.token_hex(8)}"
        with self.connection.reached() as client:
            try:
                client.hset(key, MANIFEST, manifest)
                client.expire(key, UPLOAD_SECONDS)
                for path, digest in self.list_files(manifest).items():
                    if digest is None and not files[path].exists():
                        continue
                    hashed = hashlib.sha256()
                    for number, piece in enumerate(_read_pieces(files[path], root)):
                        hashed.update(piece)
                        client.hset(key, f"{path}:{number}", piece)
                    if digest not in (None, hashed.hexdigest()):
                        raise ArtifactError(f"the file {path} of a version is not the one that was published")
            except (redis_errors.ResponseError, ArtifactError, OSError):
                client.delete(key)
                raise
        return Upload(stamp, key)

    def _write_versions(self, pipe: Pipeline, name: str, uploads: Mapping[int, Upload], pointer: Pointer) -> None:
        """Begin the writes of a Redis transaction, and queue the writes of a name's uploaded versions and pointer.

        Raises:
            UnavailableError: if uploaded files are gone, which a Redis that is full may remove.
        """
        if not all(pipe.exists(upload.key) for upload in uploads.values()):
            raise UnavailableError("Redis is full (maxmemory); nothing was written", code="redis_full")
        pipe.multi()
        for version, upload in uploads.items():
            pipe.rename(upload.key, build_files_key(upload.stamp))
            pipe.persist(build_files_key(upload.stamp))
            write_stamp(pipe, self.kind, name, version, upload.stamp)
        write_pointer(pipe, self.kind, name, pointer)

    def pull_if_reachable(self, name: str) -> None:
        """Update the copy of a chain or trained encoder from Redis.

        If Redis is unreachable, do nothing, as the replicator will.
        """
        with suppress(UnavailableError):
            self.pull(name)

    def pull(self, name: str) -> None:
        """Update the copy of a chain or trained encoder on disk from Redis.

        New versions are fetched, the live version is set, and versions that are gone are deleted. If the record of the
        name is missing in Redis, the versions here are written back to it.

        Raises:
            UnavailableError: if Redis is unreachable, or holds another record than before.
            ArtifactError: if the record cannot be read; the copy stays unchanged.
        """
        with self.lock(name), self.connection.reached() as client:
            with (
                convert_wrong_type_errors(f"the record of the {self.kind} {name}"),
                client.pipeline(transaction=False) as pipe,  # a full Redis refuses even to read in a transaction
            ):
                pipe.hgetall(build_key(self.kind, name))
                pipe.get(IDENTITY)
                content, identity = pipe.execute()
            self.record.require_same_identity(identity)  # an emptied Redis is no reason to empty this copy
            if not content and self.versions(name):  # deleted names keep their record: this one was lost
                self.push(name, self)
                return

            record = VersionRecord.parse(self.kind, name, content)
            for version, stamp in record.stamps.items():
                if not self._has_version(name, version, stamp):
                    self._fetch_version(name, version, stamp)

            # The pointer moves before versions are deleted, so that the live version is never one that is gone.
            self._apply_pointer(name, record)
            for version in set(self.versions(name)) - set(record.stamps) - {self.live(name)}:
                self.remove_folder(name, version)
            known = {f"{name}@{version}" for version in record.stamps}
            for ref in [ref for ref in self.refused if ref.startswith(f"{name}@") and ref not in known]:
                del self.refused[ref]

    def fetch_again(self, name: str, version: int) -> None:
        """Delete the files of a version that is damaged on disk, and fetch them from Redis.

        Raises:
            UnavailableError: if Redis is unreachable; a version that was deleted is then fetched later.
        """
        with self.lock(name):
            self.remove_folder(name, version)
        self.pull(name)

    def change_pointer(self, name: str, change: PointerChange, doomed: int | None = None) -> Pointer:
        """Compute with `change` which version is live, write that to Redis and to disk, and return the new pointer.

        Args:
            name: the name.
            change: function that computes the new pointer.
            doomed: version to delete in the same transaction; None for none.
        """

        def change_record(pipe: Pipeline) -> Pointer:
            record = read_record(pipe, self.kind, name) if is_name(name) else VersionRecord(Pointer(), {})
            pointer = change(record.pointer, record.stamps)
            pipe.multi()
            write_pointer(pipe, self.kind, name, pointer)
            if doomed is not None:
                delete_stamp(pipe, self.kind, name, doomed)
                pipe.delete(build_files_key(record.stamps[doomed]))
            return pointer

        pointer = self.record.transaction(change_record, build_key(self.kind, name))
        self.pull_if_reachable(name)
        return pointer

    def check_version(self, name: str, version: int) -> Any:
        """Update the local copy from Redis, check the files of a version as serving would, and return its manifest.

        A version that is damaged on disk is fetched again first.

        Raises:
            UnavailableError: if Redis is unreachable.
            ArtifactError: if its files are damaged in Redis too.
        """
        self.pull(name)
        try:
            return super().check_version(name, version)
        except ArtifactError:
            if version not in self.versions(name):
                raise
            self.fetch_again(name, version)
            return super().check_version(name, version)

    def _apply_pointer(self, name: str, record: VersionRecord) -> None:
        """Make the version live on disk that is live according to Redis, if that version is on disk.

        If it is missing and none is live here, the most recent earlier version becomes live.
        """
        versions = self.versions(name)
        pointer = record.pointer
        earlier = tuple(version for version in pointer.earlier if version in versions)
        if pointer.live is None or pointer.live in versions:
            self._replace_pointer(name, pointer)
        elif self.live(name) not in versions and earlier:
            self._replace_pointer(name, replace(pointer, live=earlier[-1], earlier=earlier[:-1]))

    def _replace_pointer(self, name: str, pointer: Pointer) -> None:
        try:
            same = self.read_pointer(name) == pointer
        except ArtifactError:
            same = False
        if not same or not (self.root / name / "pointer.json").exists():
            self.write_pointer(name, pointer)

    def _has_version(self, name: str, version: int, stamp: VersionStamp) -> bool:
        """Return whether this version is on disk: its manifest there has the digest that the record in Redis says.

        The other files are checked when they are read.
        """
        try:
            manifest = read_file(self.root / name / str(version), MANIFEST, self.links_within)
        except OSError:
            return False
        return compute_digest(manifest) == stamp.manifest

    def _fetch_version(self, name: str, version: int, stamp: VersionStamp) -> None:
        """Copy a version's files from Redis to disk, or refuse the version if the record has other digests.

        A version that is there is replaced. The caller holds the name's lock.
        """
        ref = f"{name}@{version}"
        target = self.root / name / str(version)
        staging = self.root / name / f".{version}.{secrets.token_hex(6)}"
        try:
            make_folder(staging)
            with convert_wrong_type_errors(f"the {self.kind} {ref}"):
                with self.connection.reached() as client:
                    manifest: Any = client.hget(build_files_key(stamp), MANIFEST)
                if (
                    manifest is None
                    or compute_digest(manifest) != stamp.manifest
                    or not self._fetch_files(stamp, manifest, staging)
                ):
                    self._refuse(ref)
                    return
            # The manifest is last: `_has_version` takes it as the sign that the version is here.
            write_synced(staging / MANIFEST, manifest)
            if target.exists():  # of another Redis, or damaged here
                self.remove_folder(name, version)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self.refused.pop(ref, None)
        sync_folder(self.root / name)

    def _fetch_files(self, stamp: VersionStamp, manifest: bytes, folder: Path) -> bool:
        """Write a version's files from Redis to a folder. Return whether the digests are those in the manifest."""
        try:
            files = self.list_files(manifest)
        except ValueError:
            return False
        for path, digest in files.items():
            make_parents(folder, path)
            pieces = self._fetch_pieces(stamp, path)
            if (first := next(pieces, None)) is None and digest is None:
                continue
            if write_pieces(folder / path, chain([first or b""], pieces)) != digest and digest is not None:
                return False
            sync_folder((folder / path).parent)
        return True

    def _fetch_pieces(self, stamp: VersionStamp, path: str) -> Iterator[bytes]:
        with self.connection.reached() as client:
            for number in count():
                piece: Any = client.hget(build_files_key(stamp), f"{path}:{number}")
                if piece is None:
                    return
                yield piece

    def _refuse(self, ref: str) -> None:
        """Note in `refused` that a version was altered in Redis, and count it. Log it the first time."""
        REFUSED.inc()
        # Each pull reads the version again, so only the first refusal is logged.
        if ref not in self.refused:
            log.error("%s was altered in Redis and is refused; the live version stays", ref)
        self.refused[ref] = f"the {self.kind} {ref} was altered in Redis and is refused"


def build_files_key(stamp: VersionStamp) -> str:
    """Return the Redis key under which the files of a version are stored."""
    return f"lathe:files:{stamp.manifest}"


def _read_pieces(path: Path, root: Path | None) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces. With a `root`, no link may lead out of that folder."""
    with path.open("rb") if root is None else open_beneath(root, path.relative_to(root).as_posix()) as file:
        yield from read_pieces(file)
