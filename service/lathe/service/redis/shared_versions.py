"""Versions whose record is in Redis, served from a copy in a folder: what chains and trained encoders share.

Changes are made in Redis first. Each is one transaction: a version exists in Redis with all its files or not at all. A
replica copies missing versions, checks them, and only then moves its own pointer, so that it never serves a partial
version; altered versions are refused, and the live version stays live. While Redis is unreachable, the replica serves
from the copy.

lathe:registry         identity of the set of all versions in this Redis, JSON
<copy>/.identity       identity of the set that the folder is a copy of
"""

import hashlib
import json
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from prometheus_client import Counter
from redis.client import Pipeline

from lathe.service.chains.names import is_name
from lathe.service.chains.pointer import Pointer
from lathe.service.chains.version_folder import PointerChange, VersionFolder, VersionWriter
from lathe.service.errors import UnavailableError
from lathe.service.redis.connection import RedisConnection, convert_wrong_type_errors
from lathe.service.redis.version_record import (
    RecordedVersion,
    VersionRecord,
    build_key,
    fetch_files,
    upload_files,
    write_pointer,
)
from lathe.transforms.artifact import MANIFEST, read_file
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, make_root, parse_json, read_plain_file, replace_synced

REDIS_SCHEMA = 1
IDENTITY = "lathe:registry"
IDENTITY_FILE = ".identity"
GRACE_SECONDS = 2.0
"""Seconds that a new, empty replica waits before it starts a record in an empty Redis, so that replicas with versions
go first."""
TOKEN_SECONDS = 60
"""Seconds for which a transaction's token is kept, by which a repeated transaction is recognized."""

REFUSED = Counter("lathe_registry_refused", "Versions in Redis that were altered or cut off, each time one was read")

log = logging.getLogger(__name__)
T = TypeVar("T")

Upload = tuple[RecordedVersion, str]
"""A version to record, and the key of its files in Redis, which expire unless a transaction keeps them.

The key is random: another replica may have committed the same files, if a job ran twice.
"""


class SharedVersions(VersionFolder, ABC):
    """Versions of chains of transforms, or of trained encoders, that replicas share in Redis, with a copy in a folder.

    A random id tells the set of versions in a Redis from the set in another one. A subclass says which files a version
    has, and names this class before that of the folder.

    Args:
        root: folder of the copy; processes may share it.
        connection: connection to Redis. Nothing is requested from it yet.
        grace_seconds: seconds that a new replica waits for others to start the record in an empty Redis.

    Attributes:
        refused: versions that were altered in Redis, with what is wrong.
    """

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        super().__init__(root)
        self.connection = connection
        self.grace_seconds = grace_seconds
        self.refused: dict[str, str] = {}

    @abstractmethod
    def list_files(self, manifest: bytes) -> Mapping[str, str | None]:
        """Return the files of a version besides its manifest, as `{relative path: SHA-256}`.

        A file whose digest is None may be missing, and is checked when it is read.

        Raises:
            ValueError: if the manifest is damaged.
        """

    @property
    def identity(self) -> str | None:
        """Id of the set of versions in Redis that the local folder is a copy of, or None before the first copy."""
        try:
            return read_plain_file(self.root / IDENTITY_FILE).decode()
        except FileNotFoundError:
            return None

    def require_same_identity(self, content: Any) -> None:
        """Raise `UnavailableError` unless Redis holds the set of versions that the local folder is a copy of.

        Args:
            content: bytes of the record `lathe:registry` in Redis; None if there is none.
        """
        if content is None or _parse_identity(content) != self.identity:
            raise UnavailableError("Redis holds other versions than before: try again", code="redis_unreachable")

    def join(self, grace_seconds: float) -> None:
        """Make the local folder a copy of the set of versions in Redis, which is started if there is none.

        The id of the set is stored in the folder. A Redis without a set is new, or has lost its data. If the folder is
        a copy of another set, it is renamed, because its versions may be nowhere else.

        Args:
            grace_seconds: seconds that a new folder waits before it starts a set, so that folders with versions go
                first.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
        """
        local_id = self.identity
        if local_id is None:
            with self.connection.reached() as client:
                # Replicas that have versions start the set at once, and then keep them; this one has none to keep.
                if not client.exists(IDENTITY):
                    time.sleep(grace_seconds)

        def change(pipe: Pipeline) -> str:
            content: Any = pipe.get(IDENTITY)
            pipe.multi()
            if content is not None:
                return _parse_identity(content)
            new_id = local_id or secrets.token_hex(16)
            pipe.set(IDENTITY, json.dumps({"id": new_id, "schema": REDIS_SCHEMA}))
            return new_id

        redis_id = self.connection.transaction(change, IDENTITY)
        if local_id is not None and local_id != redis_id:
            renamed = self.root.with_name(f"{self.root.name}-{local_id[:8]}-{secrets.token_hex(4)}")
            self.root.rename(renamed)
            log.error(
                "this Redis holds other versions than before: the copy of the earlier ones was kept in %s", renamed.name
            )
        if local_id != redis_id:
            make_root(self.root)
            replace_synced(self.root / IDENTITY_FILE, redis_id.encode())

    def join_and_push(self) -> None:
        """Use the set of versions in Redis, or start one, then write to Redis the names that only this copy has.

        A name that is damaged in this copy is logged and skipped.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
        """
        self.join(self.grace_seconds)
        for name in self.names():
            try:
                self.push(name, self)
            except (ArtifactError, OSError) as error:
                log.error("this replica's copy of the %s %s is damaged: %s", self.kind, name, error)

    def transaction(self, change: Callable[[Pipeline], T], *keys: str) -> T:
        """Run `change` as one atomic Redis transaction that is committed at most once, and return its result.

        Redis must hold the set of versions that the folder is a copy of. The transaction leaves a token in Redis for
        `TOKEN_SECONDS`, by which a repetition after a lost reply is recognized.

        Args:
            change: reads, calls `multi`, and queues the writes; may be called several times.
            keys: keys that it reads, which are watched.

        Raises:
            UnavailableError: if Redis is unreachable, or holds no set or another set. The replicator copies another
                set within a second, so the caller may try again.
        """
        # redis-py sends a transaction again after a lost reply, and it may have been committed the first time.
        token, outcomes = f"lathe:change:{secrets.token_hex(8)}", list[T]()

        def check_and_change(pipe: Pipeline) -> T:
            if pipe.exists(token):  # an earlier attempt was committed, and only its reply was lost
                pipe.multi()
                return outcomes[-1]
            self.require_same_identity(pipe.get(IDENTITY))
            outcomes.append(change(pipe))
            pipe.set(token, 1, ex=TOKEN_SECONDS)
            return outcomes[-1]

        return self.connection.transaction(check_and_change, IDENTITY, *keys)

    def list_all_names(self) -> list[str]:
        """Return the names of the chains, or trained encoders, that Redis or this copy has, sorted.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        prefix = build_key(self.kind, "")
        with self.connection.reached() as client:
            keys = [key.decode(errors="replace") for key in client.scan_iter(f"{prefix}*", count=1000)]
        return sorted({*filter(is_name, (key.removeprefix(prefix) for key in keys)), *self.names()})

    def find_published(self, name: str, job: str | None) -> int | None:
        """Update the copy of a name, and return the version that a job published on any machine, or None.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        if job is None:
            return None
        self.pull(name)
        return super().find_published(name, job)

    def add_version(self, name: str, promote: bool | None, job: str | None, write: VersionWriter) -> tuple[int, bool]:
        """Add the next version of a name in Redis, then update the copy. Return `(version number, whether it is live)`.

        `VersionFolder.add_version` explains the arguments. If Redis fails once the version is there, the replicator
        updates the copy, or a job tries again: its version is then found and copied.

        Raises:
            UnavailableError: if Redis is unreachable, or has no room for the files.
        """
        make_folder(self.root / name)
        while True:  # another replica may take the number while this version is written
            with self.connection.reached() as client:
                record = VersionRecord.read(client, self.kind, name)
            # A job whose worker was lost runs again, perhaps after it has published.
            if (version := record.find_published(job)) is not None:
                pointer = record.pointer
                break
            version = record.next_version
            # Beside the versions, because a model may have no room in /tmp.
            with TemporaryDirectory(dir=self.root / name, prefix=f".{version}.") as scratch:
                folder = Path(scratch) / str(version)
                write(folder, version)
                upload = self.upload_version(folder, folder, job)
            if (added := self._commit(name, version, promote, upload)) is not None:
                pointer = added
                break
        if job is None:
            self.pull_if_reachable(name)  # a second attempt would add a second version
        else:
            self.pull(name)
        return version, pointer.live == version

    def _commit(self, name: str, version: int, promote: bool | None, upload: Upload) -> Pointer | None:
        """Write an uploaded version to the record of its name. Return the new pointer, None if the number is taken."""

        def change(pipe: Pipeline) -> Pointer | None:
            record = VersionRecord.read(pipe, self.kind, name)
            if record.next_version != version:
                pipe.multi()
                return None
            pointer = record.pointer.add_version(version, promote)
            self._write_versions(pipe, name, {version: upload}, pointer)
            return pointer

        return self.transaction(change, build_key(self.kind, name))

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
        uploads = {
            version: self.upload_version(source.root / name / str(version), source.links_within)
            for version in source.versions(name)
        }

        def change(pipe: Pipeline) -> bool:
            if pipe.exists(key):
                pipe.multi()
                return False
            self._write_versions(pipe, name, uploads, pointer)
            return True

        return self.transaction(change, key)

    def upload_version(self, folder: Path, root: Path | None, job: str | None = None) -> Upload:
        """Write a version's files from a folder to Redis, where they expire unless a transaction keeps them.

        Args:
            folder: folder of the version.
            root: folder out of which no link may lead; None follows links anywhere.
            job: id of the job that publishes it; None for the one that its manifest names, if any.

        Raises:
            ArtifactError: if they are damaged.
            UnavailableError: if Redis is unreachable, or full.
        """
        manifest = read_file(folder, MANIFEST, root)
        try:
            self.list_files(manifest)
            job = job or parse_json(manifest).get("job")
        except ValueError as error:
            ref = "@".join(folder.parts[-2:])
            raise ArtifactError(f"the manifest of the {self.kind} {ref} cannot be read: {error}") from error
        with self.connection.reached() as client:
            key = upload_files(client, manifest, folder, root, self.list_files)
        return RecordedVersion(hashlib.sha256(manifest).hexdigest(), job), key

    def _write_versions(self, pipe: Pipeline, name: str, uploads: Mapping[int, Upload], pointer: Pointer) -> None:
        """Begin the writes of a Redis transaction, and queue the writes of a name's uploaded versions and pointer.

        Raises:
            UnavailableError: if uploaded files are gone, which a Redis that is full may remove.
        """
        if not all(pipe.exists(key) for _, key in uploads.values()):
            raise UnavailableError("Redis is full (maxmemory); nothing was written", code="redis_full")
        pipe.multi()
        for number, (version, key) in uploads.items():
            pipe.rename(key, version.files_key)
            pipe.persist(version.files_key)
            pipe.hset(build_key(self.kind, name), f"version:{number}", version.serialize())
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
            self.require_same_identity(identity)  # an emptied Redis is not a reason to empty this copy
            if not content and self.versions(name):  # deleted names keep their record: this one was lost
                self.push(name, self)
                return

            record = VersionRecord.parse(self.kind, name, content)
            for number, version in record.versions.items():
                if not self._has_version(name, number, version):
                    self._fetch_version(name, number, version)

            # The pointer moves before versions are deleted, so that the live version is never one that is gone.
            self._apply_pointer(name, record)
            for number in set(self.versions(name)) - set(record.versions) - {self.live(name)}:
                self.remove_folder(name, number)
            known = {f"{name}@{number}" for number in record.versions}
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
            record = VersionRecord.read(pipe, self.kind, name) if is_name(name) else VersionRecord(Pointer(), {})
            pointer = change(record.pointer, record.versions)
            pipe.multi()
            write_pointer(pipe, self.kind, name, pointer)
            if doomed is not None:
                pipe.hdel(build_key(self.kind, name), f"version:{doomed}")
                pipe.delete(record.versions[doomed].files_key)
            return pointer

        pointer = self.transaction(change_record, build_key(self.kind, name))
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

    def _has_version(self, name: str, number: int, version: RecordedVersion) -> bool:
        """Return whether this version is on disk: its manifest there has the digest that the record in Redis says.

        The other files are checked when they are read.
        """
        try:
            manifest = read_file(self.root / name / str(number), MANIFEST, self.links_within)
        except OSError:
            return False
        return hashlib.sha256(manifest).hexdigest() == version.manifest

    def _fetch_version(self, name: str, number: int, version: RecordedVersion) -> None:
        """Copy a version's files from Redis to disk, or refuse the version if they were altered there.

        A version that is there, of another Redis or damaged, is replaced. The caller holds the name's lock.
        """
        ref = f"{name}@{number}"
        try:
            with (
                self.stage_version(name, number) as folder,
                convert_wrong_type_errors(f"the {self.kind} {ref}"),
                self.connection.reached() as client,
            ):
                fetch_files(client, version, folder, self.list_files)
        except ValueError:
            REFUSED.inc()
            # Each pull reads the version again, so only the first refusal is logged.
            if ref not in self.refused:
                log.error("%s was altered in Redis and is refused; the live version stays", ref)
            self.refused[ref] = f"the {self.kind} {ref} was altered in Redis and is refused"
        else:
            self.refused.pop(ref, None)


def _parse_identity(content: bytes) -> str:
    """Return the id of the set of versions that a Redis holds, from the record of the set.

    Raises:
        UnavailableError: if the record cannot be read, or is of a newer version of Lathe.
    """
    try:
        identity_record = parse_json(content)
        schema, identity = int(identity_record["schema"]), str(identity_record["id"])
    except (ValueError, KeyError, TypeError):
        raise UnavailableError(f"Redis holds something else under {IDENTITY}", code="redis_foreign") from None
    if schema > REDIS_SCHEMA:
        raise UnavailableError(
            f"Redis is used by a newer Lathe (schema {schema}, this one reads {REDIS_SCHEMA}): upgrade this one",
            code="redis_foreign",
        )
    return identity
