"""The shared registry: chains whose record is in Redis, served from a copy on disk.

Every change is one transaction on the chain's record: a version exists with all its files or not at all. A replica
copies missing versions, checks them, and only then moves its own pointer, so that it never serves a partial version;
altered versions are refused, and what was live stays live. While Redis is unreachable, serving goes on from the copy.
"""

import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import Counter
from redis.client import Pipeline

from service.errors import UnavailableError, UnknownNameError
from service.names import is_name, require_name
from service.registry import (
    Gate,
    LoadedChain,
    Pointer,
    Registry,
    made_live,
    no_gate,
    rolled_back,
    with_version,
    without,
)
from service.shared.damage import wrong_types_are_damage
from service.shared.link import RedisLink
from service.shared.record import (
    CHAIN,
    IDENTITY,
    SCHEMA,
    VERSION,
    Files,
    Record,
    Stamp,
    artifact_key,
    digest,
    identity_of,
    read,
    saved,
    write_pointer,
    write_version,
)
from transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitStatistics, read_file
from transforms.chain import Chain
from transforms.errors import ArtifactError
from transforms.files import make_folder, make_root, replace_synced, sync_folder, write_synced

IDENTITY_FILE = ".identity"
TOKEN_SECONDS = 60
"""Seconds for which a transaction's token is kept, by which a repeated transaction is recognized."""
GRACE_SECONDS = 2.0
"""Seconds that a new, empty replica waits before it starts a record in an empty Redis, so that replicas with chains go
first."""

REFUSED = Counter("lathe_registry_refused", "Versions in Redis that were altered or cut off, each time one was read")

log = logging.getLogger(__name__)
T = TypeVar("T")


class SharedRegistry(Registry):
    """The registry of all replicas.

    Args:
        root: folder of the local replica; processes may share it.
        link: connection to Redis.
        grace_seconds: seconds that a new replica waits for others to start the record in an empty Redis.

    Attributes:
        refused: versions that were altered in Redis, with what is wrong.
    """

    def __init__(self, root: Path, link: RedisLink, grace_seconds: float = GRACE_SECONDS) -> None:
        super().__init__(root)
        self.link = link
        self.grace_seconds = grace_seconds
        self.refused: dict[str, str] = {}

    def publish(
        self,
        chain: Chain,
        name: str,
        promote: bool | None,
        job: str | None = None,
        statistics: FitStatistics | None = None,
    ) -> tuple[int, bool]:
        """Add a fitted chain as the next version, in Redis and on disk; return the version and whether it is live.

        A job that runs twice publishes once. See `Registry.publish`.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        require_name(name)

        def change(pipe: Pipeline) -> tuple[int, bool]:
            """Queue the new version and pointer, unless the job has published already; return version and liveness."""
            record = read(pipe, name)
            made = next((version for version, stamp in record.stamps.items() if job and stamp.job == job), None)
            if made is not None:  # by this very job, before it was lost
                pipe.multi()
                return made, record.pointer.live == made
            version = max([record.pointer.last, *record.stamps]) + 1
            files = saved(chain, name, version, statistics)
            pointer = with_version(record.pointer, version, promote)
            pipe.multi()
            write_version(pipe, name, version, files, job)
            write_pointer(pipe, name, pointer)
            return version, pointer.live == version

        published = self.transaction(change, CHAIN + name)
        self.pull_if_there(name)
        return published

    def promote(self, name: str, version: int, gate: Gate = no_gate) -> Pointer:
        """Make a version live for all replicas and return the new pointer; see `Registry.promote`."""

        def change(pipe: Pipeline) -> Pointer:
            """Copy and load the version, ask the gate, and queue the new pointer."""
            record = read(pipe, name)
            if version not in record.stamps:
                raise unknown(name, record, version)
            self.pull(name)
            chain = self.read(name, version)  # never make live what cannot be served
            return self.pointed(pipe, name, made_live(record.pointer, version, gate(chain.metadata)))

        return self.changed(name, change)

    def rollback(self, name: str) -> Pointer:
        """Make the most recent earlier live version live for all replicas; see `Registry.rollback`."""

        def change(pipe: Pipeline) -> Pointer:
            """Queue the pointer to the earlier version and return it."""
            record = read(pipe, name)
            if not record.stamps:
                raise unknown(name, record)
            return self.pointed(pipe, name, rolled_back(name, record.pointer, record.stamps))

        return self.changed(name, change)

    def delete(self, name: str, version: int) -> None:
        """Delete a version permanently for all replicas; see `Registry.delete`."""

        def change(pipe: Pipeline) -> Pointer:
            """Queue the new pointer and the deletion of the version's stamp and files."""
            record = read(pipe, name)
            if version not in record.stamps:
                raise unknown(name, record, version)
            pointer = without(name, record.pointer, version, record.stamps)
            self.pointed(pipe, name, pointer)
            pipe.hdel(CHAIN + name, VERSION + str(version).encode())
            pipe.delete(artifact_key(name, version))
            return pointer

        self.changed(name, change)

    def changed(self, name: str, change: Callable[[Pipeline], Pointer]) -> Pointer:
        """Run a transaction on a chain's record, update the local copy of the chain, and return the new pointer."""
        if not is_name(name):
            raise UnknownNameError(f"there is no chain {name!r}", param="name")
        pointer = self.transaction(change, CHAIN + name)
        self.pull_if_there(name)
        return pointer

    def transaction(self, change: Callable[[Pipeline], T], *keys: str) -> T:
        """Commit `change` at most once, as `RedisLink.transaction` does, if Redis holds the record that this copies.

        Raises:
            UnavailableError: if Redis is unreachable, or holds no record or another one, which the replicator copies
                within a second.
        """
        token, outcomes = f"lathe:change:{secrets.token_hex(8)}", list[T]()

        def checked(pipe: Pipeline) -> T:
            """Call `change`, unless an earlier attempt succeeded and only its reply was lost; return its result."""
            if pipe.exists(token):  # it was made, and only the answer was lost: not a second time
                pipe.multi()
                return outcomes[-1]
            self.require_mine(pipe.get(IDENTITY))
            outcomes.append(change(pipe))
            pipe.set(token, 1, ex=TOKEN_SECONDS)
            return outcomes[-1]

        return self.link.transaction(checked, IDENTITY, *keys)

    def require_mine(self, found: Any) -> None:
        """Raise `UnavailableError` unless the identity found in Redis is that of the local replica."""
        if found is None or identity_of(found) != self.identity:
            raise UnavailableError("Redis holds other chains than before: try again", code="redis_unreachable")

    def pointed(self, pipe: Pipeline, name: str, pointer: Pointer) -> Pointer:
        """Queue a new pointer in the transaction and return it."""
        pipe.multi()
        write_pointer(pipe, name, pointer)
        return pointer

    def pull_if_there(self, name: str) -> None:
        """Update the local copy of a chain after a change, or leave it to the replicator if Redis is gone."""
        with suppress(UnavailableError):
            self.pull(name)

    def pull(self, name: str) -> None:
        """Update the local copy of a chain: fetch missing versions, move the pointer, delete versions that are gone.

        If the chain's record is missing in Redis, the local versions are written back to it.

        Raises:
            UnavailableError: if Redis is unreachable.
            ArtifactError: if the record cannot be read; the copy stays unchanged.
        """
        with self.lock(name), self.link.reached() as client:
            with (
                wrong_types_are_damage(f"the record of the chain {name}"),
                client.pipeline(transaction=False) as pipe,  # a full Redis refuses even to read in a transaction
            ):
                pipe.hgetall(CHAIN + name)
                pipe.get(IDENTITY)
                content, identity = pipe.execute()
            self.require_mine(identity)  # an emptied Redis is no reason to empty this copy
            if not content and self.versions(name):  # deleted chains keep their record: this one was lost
                self.push(name, self)
                return
            record = Record.parse(name, content)
            for version, stamp in record.stamps.items():
                if not self.holds(name, version, stamp):
                    self.fetch(name, version, stamp)
            there = self.versions(name)
            earlier = tuple(version for version in record.pointer.earlier if version in there)
            if record.pointer.live is None or record.pointer.live in there:
                self.point_anew(name, record.pointer)
            elif self.live(name) not in there and earlier:  # nothing was live here before
                self.point_anew(name, replace(record.pointer, live=earlier[-1], earlier=earlier[:-1]))
            for version in set(there) - set(record.stamps) - {self.live(name)}:
                self.remove(name, version)
            known = {f"{name}@{version}" for version in record.stamps}
            for ref in [ref for ref in self.refused if ref.startswith(f"{name}@") and ref not in known]:
                del self.refused[ref]

    def point_anew(self, name: str, pointer: Pointer) -> None:
        """Replace the local pointer if it is missing, damaged or different."""
        try:
            same = self.pointer(name) == pointer
        except ArtifactError:
            same = False
        if not same or not (self.root / name / "pointer.json").exists():
            self.point(name, pointer)

    def load(self, ref: str) -> LoadedChain:
        """Return a chain ready to apply, as `Registry.load` does; a version damaged on this disk is fetched again."""
        try:
            return super().load(ref)
        except ArtifactError:
            name, version = self.resolve(ref)
            if not self.link.up:
                raise
            with self.lock(name):
                self.remove(name, version)
            self.pull(name)
            return super().load(ref)

    def holds(self, name: str, version: int, stamp: Stamp) -> bool:
        """Return whether the disk has this version, by its manifest's digest; tensors are checked when read."""
        try:
            return digest(read_file(self.root / name / str(version), MANIFEST, self.links_within)) == stamp.manifest
        except OSError:
            return False

    def fetch(self, name: str, version: int, stamp: Stamp) -> None:
        """Copy a version from Redis to disk; if it was altered, log and note it in `refused` instead.

        The caller holds the chain's lock.
        """
        with self.link.reached() as client, wrong_types_are_damage(f"the chain {name}@{version}"):
            files: Any = client.hmget(artifact_key(name, version), Files._fields)
        manifest, tensors, reference = files
        ref = f"{name}@{version}"
        if manifest is None or tensors is None or not stamp.fits(manifest, tensors):
            REFUSED.inc()
            if ref not in self.refused:
                log.error("%s was altered in Redis and is refused; what was live stays", ref)
            self.refused[ref] = f"the chain {ref} was altered in Redis and is refused"
            return
        self.refused.pop(ref, None)
        staging = self.root / name / f".{version}.{secrets.token_hex(6)}"
        try:
            make_folder(staging)
            write_synced(staging / TENSORS, tensors)
            if reference is not None:
                write_synced(staging / DISTRIBUTION, reference)
            write_synced(staging / MANIFEST, manifest)
            if (self.root / name / str(version)).exists():  # of another Redis, or damaged here
                self.remove(name, version)
            staging.rename(self.root / name / str(version))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(self.root / name)

    def names_anywhere(self) -> list[str]:
        """List the names of chains that Redis or the local replica has.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        with self.link.reached() as client:
            keys = (key.decode(errors="replace") for key in client.scan_iter(f"{CHAIN}*", count=1000))
            names = {key.removeprefix(CHAIN) for key in keys}
        return sorted(filter(is_name, names | set(self.names())))

    def begin_record(self) -> None:
        """Start the record in a new Redis, or join the one that is there; write chains to it that only this copy has.

        A Redis without a record is new, or has lost its data. If the local folder is a copy of another record, it is
        renamed: its chains may be nowhere else.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
        """
        mine = self.identity
        if mine is None:
            with self.link.reached() as client:
                if not client.exists(IDENTITY):  # if it has just lost its data, those who have a copy go first
                    time.sleep(self.grace_seconds)

        def change(pipe: Pipeline) -> str:
            """Queue a new identity unless Redis has one, and return the identity."""
            found: Any = pipe.get(IDENTITY)
            pipe.multi()
            if found is not None:
                return identity_of(found)
            begun = mine or secrets.token_hex(16)
            pipe.set(IDENTITY, json.dumps({"id": begun, "schema": SCHEMA}))
            return begun

        theirs = self.link.transaction(change, IDENTITY)
        if mine not in (None, theirs):
            self.put_aside(str(mine))
        if mine != theirs:
            make_root(self.root)
            replace_synced(self.root / IDENTITY_FILE, theirs.encode())
        for name in self.names():
            try:
                self.push(name, self)
            except (ArtifactError, OSError) as error:  # damaged here; Redis may have it whole
                log.error("this replica's copy of the chain %s is damaged: %s", name, error)

    def adopt(self, name: str, source: Registry) -> bool:
        """Copy a chain of another registry to Redis and to disk, unless its name was ever used; see `Registry.adopt`.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        given = self.push(name, source)
        self.pull(name)
        return given

    @property
    def identity(self) -> str | None:
        """Id of the record that the local folder is a copy of; None before its first copy."""
        try:
            return (self.root / IDENTITY_FILE).read_text()
        except FileNotFoundError:
            return None

    def put_aside(self, identity: str) -> None:
        """Rename the folder with the copy of another record, so that its chains are kept and not served."""
        kept = self.root.with_name(f"{self.root.name}-{identity[:8]}-{secrets.token_hex(4)}")
        self.root.rename(kept)
        log.error("this Redis holds other chains than before: the copy of the earlier ones was kept in %s", kept.name)

    def push(self, name: str, source: Registry) -> bool:
        """Write a chain with all its versions to Redis, unless Redis knows the name; return whether it was written.

        Raises:
            ArtifactError: if a version is damaged.
        """
        pointer, versions = source.pointer(name), source.versions(name)

        def change(pipe: Pipeline) -> bool:
            """Check all versions, then queue their files and the pointer; return whether the chain was new."""
            known = bool(pipe.exists(CHAIN + name))
            for version in [] if known else versions:
                source.read(name, version)  # its stamp will say that it is whole
            pipe.multi()
            if known:
                return False
            for version in versions:
                files = Files.read(source.root / name / str(version), source.links_within)
                write_version(pipe, name, version, files, job=None)
            write_pointer(pipe, name, pointer)
            return True

        return self.link.transaction(change, CHAIN + name)


def unknown(name: str, record: Record, version: int | None = None) -> UnknownNameError:
    """Build the error that there is no such chain, or no such version of it."""
    if version is None or not record.stamps:
        return UnknownNameError(f"there is no chain {name!r}", param="name")
    has = ", ".join(map(str, sorted(record.stamps)))
    return UnknownNameError(f"the chain {name} has no version {version}; it has {has}", param="chain")
