"""The shared registry: chains whose record is in Redis, served from a copy on disk.

Changes are made in Redis first. A replica copies missing versions, checks them, and only then moves its own pointer, so
that it never serves a partial version; altered versions are refused, and the live version stays live. While Redis is
unreachable, the replica serves from the copy.
"""

import logging
import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client import Counter
from redis.client import Pipeline

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.names import is_name, require_name
from lathe.service.chains.pointer import Pointer
from lathe.service.chains.registry import Registry
from lathe.service.chains.version_folder import PointerChange
from lathe.service.errors import UnavailableError
from lathe.service.redis.chain_record import (
    CHAIN,
    IDENTITY,
    VERSION,
    ChainRecord,
    VersionFiles,
    VersionStamp,
    build_artifact_key,
    compute_digest,
    read_record,
    serialize_version,
    write_pointer,
    write_version,
)
from lathe.service.redis.connection import RedisConnection
from lathe.service.redis.damage import convert_wrong_type_errors
from lathe.service.redis.shared_record import SharedRecord
from lathe.service.redis.size_routes import SharedSizeRoutes
from lathe.transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitStatistics, Manifest, read_file
from lathe.transforms.chain import Chain
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, sync_folder, write_synced

GRACE_SECONDS = 2.0
"""Seconds that a new, empty replica waits before it starts a record in an empty Redis, so that replicas with chains go
first."""

REFUSED = Counter("lathe_registry_refused", "Versions in Redis that were altered or cut off, each time one was read")

log = logging.getLogger(__name__)


class SharedRegistry(Registry):
    """The registry of all replicas, with a copy of its chains and size routes in a folder.

    Args:
        root: folder of the copy; processes may share it.
        grace_seconds: seconds that a new replica waits for others to start the record in an empty Redis.

    Attributes:
        refused: versions that were altered in Redis, with what is wrong.
    """

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        super().__init__(root)
        self.connection = connection
        self.grace_seconds = grace_seconds
        self.record = SharedRecord(connection, root)
        self.size_routes: SharedSizeRoutes = SharedSizeRoutes(self.size_routes.path, self, self.record)
        self.refused: dict[str, str] = {}

    def join_record(self) -> None:
        """Use the set of chains in Redis, starting it if there is none, and write chains to it that it lacks.

        The chains written are those that only this server's copy has. A chain that is damaged in this copy is logged
        and skipped.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
        """
        self.record.join(self.grace_seconds)
        for name in self.names():
            try:
                self.record.push(name, self)
            except (ArtifactError, OSError) as error:
                log.error("this replica's copy of the chain %s is damaged: %s", name, error)

    def list_all_names(self) -> list[str]:
        """List the names of chains that Redis or this copy has, sorted.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        return sorted({*self.record.list_names(), *self.names()})

    def load(self, ref: str) -> LoadedChain:
        """Load the chain that a reference such as `name@2` names. A version damaged on disk is fetched again.

        The chain comes from memory or disk. The damaged version is deleted and fetched from Redis.

        Raises:
            UnknownNameError: if there is no such chain or version, or none is live.
            ArtifactError: if the version is damaged on disk and Redis is down.
        """
        try:
            return super().load(ref)
        except ArtifactError:
            name, version = self.resolve(ref)
            if not self.connection.up:
                raise
            with self.lock(name):
                self.remove_folder(name, version)
            self.pull(name)
            return super().load(ref)

    def _pull_if_reachable(self, name: str) -> None:
        """Update the copy of a chain from Redis. If Redis is unreachable, leave that to the replicator."""
        with suppress(UnavailableError):
            self.pull(name)

    def pull(self, name: str) -> None:
        """Update the copy of a chain on disk from Redis: fetch new versions, move the pointer, delete old ones.

        Versions that are gone in Redis are deleted. If the chain's record is missing in Redis, the versions here are
        written back to it.

        Raises:
            UnavailableError: if Redis is unreachable, or holds another record than before.
            ArtifactError: if the record cannot be read; the copy stays unchanged.
        """
        with self.lock(name), self.connection.reached() as client:
            with (
                convert_wrong_type_errors(f"the record of the chain {name}"),
                client.pipeline(transaction=False) as pipe,  # a full Redis refuses even to read in a transaction
            ):
                pipe.hgetall(CHAIN + name)
                pipe.get(IDENTITY)
                content, identity = pipe.execute()
            self.record.require_same_identity(identity)  # an emptied Redis is no reason to empty this copy
            if not content and self.versions(name):  # deleted chains keep their record: this one was lost
                self.record.push(name, self)
                return

            record = ChainRecord.parse(name, content)
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

    def publish(
        self,
        chain: Chain,
        name: str,
        promote: bool | None,
        job: str | None = None,
        statistics: FitStatistics | None = None,
    ) -> tuple[int, bool]:
        """Add a fitted chain as its next version, in Redis and on disk. Return the version, and whether it is live.

        A job that runs twice publishes once. The arguments are those of `Registry.publish`.

        Returns:
            The version, and whether it is live.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        require_name(name)

        def change(pipe: Pipeline) -> tuple[int, bool]:
            record = read_record(pipe, name)
            # A job whose worker was lost runs again, perhaps after it has published.
            published = next((version for version, stamp in record.stamps.items() if job and stamp.job == job), None)
            if published is not None:
                pipe.multi()
                return published, record.pointer.live == published
            version = max([record.pointer.last, *record.stamps]) + 1
            files = serialize_version(chain, name, version, statistics)
            pointer = record.pointer.add_version(version, promote)
            pipe.multi()
            write_version(pipe, name, version, files, job)
            write_pointer(pipe, name, pointer)
            return version, pointer.live == version

        outcome = self.record.transaction(change, CHAIN + name)
        self._pull_if_reachable(name)
        return outcome

    def import_chain(self, name: str, source: Registry) -> bool:
        """Copy a chain from another registry, unless its name was ever used. Return whether it was copied.

        It is copied to Redis and to disk.

        Returns:
            Whether the chain was copied.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        imported = self.record.push(name, source)
        self.pull(name)
        return imported

    def change_pointer(self, name: str, change: PointerChange, doomed: int | None = None) -> Pointer:
        """Compute a chain's new pointer with `change`, write it to Redis and to disk, and return it.

        Args:
            name: name of the chain.
            change: function that computes the new pointer.
            doomed: version to delete in the same transaction; None for none.
        """

        def change_record(pipe: Pipeline) -> Pointer:
            record = read_record(pipe, name) if is_name(name) else ChainRecord(Pointer(), {})
            pointer = change(record.pointer, record.stamps)
            pipe.multi()
            write_pointer(pipe, name, pointer)
            if doomed is not None:
                pipe.hdel(CHAIN + name, VERSION + str(doomed).encode())
                pipe.delete(build_artifact_key(name, doomed))
            return pointer

        pointer = self.record.transaction(change_record, CHAIN + name)
        self._pull_if_reachable(name)
        return pointer

    def check_version(self, name: str, version: int) -> Manifest:
        """Update the copy of a chain from Redis, then load one of its versions from disk, and return its manifest."""
        self.pull(name)
        return super().check_version(name, version)

    def _apply_pointer(self, name: str, record: ChainRecord) -> None:
        """Write the pointer of a chain's Redis record to disk, if the version that it makes live is on disk.

        If that version is missing and none is live here, the most recent earlier version becomes live.
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
        """Return whether this version is on disk, by comparing its manifest's digest with the stamp's.

        The tensors are checked when they are read.
        """
        try:
            manifest = read_file(self.root / name / str(version), MANIFEST, self.links_within)
        except OSError:
            return False
        return compute_digest(manifest) == stamp.manifest

    def _fetch_version(self, name: str, version: int, stamp: VersionStamp) -> None:
        """Copy a version's files from Redis to disk, or refuse them if they do not match the digests in `stamp`.

        A version that is there is replaced. The caller holds the chain's lock. A version that is refused is logged,
        counted and noted in `refused`.
        """
        ref = f"{name}@{version}"
        with self.connection.reached() as client, convert_wrong_type_errors(f"the chain {ref}"):
            files: Any = client.hmget(build_artifact_key(name, version), VersionFiles._fields)
        manifest, tensors, distribution = files
        if manifest is None or tensors is None or not stamp.matches(manifest, tensors):
            REFUSED.inc()
            # Each pull reads the version again, so only the first refusal is logged.
            if ref not in self.refused:
                log.error("%s was altered in Redis and is refused; the live version stays", ref)
            self.refused[ref] = f"the chain {ref} was altered in Redis and is refused"
            return

        self.refused.pop(ref, None)
        target = self.root / name / str(version)
        staging = self.root / name / f".{version}.{secrets.token_hex(6)}"
        try:
            make_folder(staging)
            write_synced(staging / TENSORS, tensors)
            if distribution is not None:
                write_synced(staging / DISTRIBUTION, distribution)
            # The manifest is last: `_has_version` takes it as the sign that the version is here.
            write_synced(staging / MANIFEST, manifest)
            if target.exists():  # of another Redis, or damaged here
                self.remove_folder(name, version)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(self.root / name)
