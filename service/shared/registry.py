"""Chains whose record is in Redis, served from a copy on disk.

Every change is one transaction on the chain's record: a version is there with all its files or not at all. A replica
copies what its disk lacks, checks it, and only then moves its own pointer, so that it never serves half a version;
what was altered is refused, and what was live stays so. With Redis gone the copy goes on serving.
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
GRACE_SECONDS = 2.0
"""How long a replica that has nothing yet waits before it begins a record in an empty Redis."""

REFUSED = Counter("lathe_registry_refused", "Versions in Redis that were altered or cut off, each time one was read")

log = logging.getLogger(__name__)
T = TypeVar("T")


class SharedRegistry(Registry):
    """The chains of all replicas.

    Args:
        root: folder of this replica's copy; processes may share it.
        link: to Redis.
        grace_seconds: that a new copy lets others go first where Redis has no record.

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
        """Add a fitted chain as the next version; see `Registry.publish`.

        Raises:
            UnavailableError: without Redis.
        """
        require_name(name)

        def change(pipe: Pipeline) -> tuple[int, bool]:
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
        """Make a version live; see `Registry.promote`."""

        def change(pipe: Pipeline) -> Pointer:
            record = read(pipe, name)
            if version not in record.stamps:
                raise unknown(name, record, version)
            self.pull(name)
            chain = self.read(name, version)  # never make live what cannot be served
            return self.pointed(pipe, name, made_live(record.pointer, version, gate(chain.metadata)))

        return self.changed(name, change)

    def rollback(self, name: str) -> Pointer:
        """Make the version live that was live before; see `Registry.rollback`."""

        def change(pipe: Pipeline) -> Pointer:
            record = read(pipe, name)
            if not record.stamps:
                raise unknown(name, record)
            return self.pointed(pipe, name, rolled_back(name, record.pointer, record.stamps))

        return self.changed(name, change)

    def delete(self, name: str, version: int) -> None:
        """Remove a version for good; see `Registry.delete`."""

        def change(pipe: Pipeline) -> Pointer:
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
        """Change a chain's record, then this replica's copy."""
        if not is_name(name):
            raise UnknownNameError(f"there is no chain {name!r}", param="name")
        pointer = self.transaction(change, CHAIN + name)
        self.pull_if_there(name)
        return pointer

    def transaction(self, change: Callable[[Pipeline], T], *keys: str) -> T:
        """A change of the record, as `RedisLink.transaction`; refused unless it is the one this is a copy of.

        Raises:
            UnavailableError: also while Redis holds another record, or none: it is taken up within a second.
        """
        token, outcomes = f"lathe:change:{secrets.token_hex(8)}", list[T]()

        def checked(pipe: Pipeline) -> T:
            if pipe.exists(token):  # it was made, and only the answer was lost: not a second time
                pipe.multi()
                return outcomes[-1]
            self.require_mine(pipe.get(IDENTITY))
            outcomes.append(change(pipe))
            pipe.set(token, 1, ex=TOKEN_SECONDS)
            return outcomes[-1]

        return self.link.transaction(checked, IDENTITY, *keys)

    def require_mine(self, found: Any) -> None:
        """Raise `UnavailableError` unless this is a copy of the record that Redis holds."""
        if found is None or identity_of(found) != self.identity:
            raise UnavailableError("Redis holds other chains than before: try again", code="redis_unreachable")

    def pointed(self, pipe: Pipeline, name: str, pointer: Pointer) -> Pointer:
        """Queue a new pointer."""
        pipe.multi()
        write_pointer(pipe, name, pointer)
        return pointer

    def pull_if_there(self, name: str) -> None:
        """Bring the copy up to date after a change; if Redis has gone since, the follower does."""
        with suppress(UnavailableError):
            self.pull(name)

    def pull(self, name: str) -> None:
        """Bring this replica's copy of a chain up to date; the pointer comes last.

        Raises:
            UnavailableError: without Redis.
            ArtifactError: if the record cannot be read; the copy stays as it was.
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
        """Replace the copy's pointer where it differs."""
        try:
            same = self.pointer(name) == pointer
        except ArtifactError:
            same = False
        if not same or not (self.root / name / "pointer.json").exists():
            self.point(name, pointer)

    def load(self, ref: str) -> LoadedChain:
        """A chain ready to apply; see `Registry.load`. One that was damaged on this disk is copied again."""
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
        """Whether the copy has this very version; its tensors are checked when they are read."""
        try:
            return digest(read_file(self.root / name / str(version), MANIFEST, self.links_within)) == stamp.manifest
        except OSError:
            return False

    def fetch(self, name: str, version: int, stamp: Stamp) -> None:
        """Copy a version, unless it was altered; under the chain's lock."""
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
        """Chains that Redis or this copy knows.

        Raises:
            UnavailableError: without Redis.
        """
        with self.link.reached() as client:
            keys = (key.decode(errors="replace") for key in client.scan_iter(f"{CHAIN}*", count=1000))
            names = {key.removeprefix(CHAIN) for key in keys}
        return sorted(filter(is_name, names | set(self.names())))

    def begin_record(self) -> None:
        """Give Redis the chains of this copy that it has never heard of, if it is new or this copy is its own.

        A Redis without a record is new, or has lost its data. A copy of another record is put aside: its chains may be
        nowhere else.

        Raises:
            UnavailableError: without Redis, or if its record is of a newer Lathe.
        """
        mine = self.identity
        if mine is None:
            with self.link.reached() as client:
                if not client.exists(IDENTITY):  # if it has just lost its data, those who have a copy go first
                    time.sleep(self.grace_seconds)

        def change(pipe: Pipeline) -> str:
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
        """Take over a chain of another registry, unless the name was ever used; see `Registry.adopt`.

        Raises:
            UnavailableError: without Redis.
        """
        given = self.push(name, source)
        self.pull(name)
        return given

    @property
    def identity(self) -> str | None:
        """Which record this is a copy of; None before it was any."""
        try:
            return (self.root / IDENTITY_FILE).read_text()
        except FileNotFoundError:
            return None

    def put_aside(self, identity: str) -> None:
        """Keep the copy of another record where nobody takes it for this one's."""
        kept = self.root.with_name(f"{self.root.name}-{identity[:8]}-{secrets.token_hex(4)}")
        self.root.rename(kept)
        log.error("this Redis holds other chains than before: the copy of the earlier ones was kept in %s", kept.name)

    def push(self, name: str, source: Registry) -> bool:
        """Give Redis a chain with all its versions, if it has never heard of the name; whether it was given.

        Raises:
            ArtifactError: if a version was damaged.
        """
        pointer, versions = source.pointer(name), source.versions(name)

        def change(pipe: Pipeline) -> bool:
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
    """There is no such chain, or no such version."""
    if version is None or not record.stamps:
        return UnknownNameError(f"there is no chain {name!r}", param="name")
    has = ", ".join(map(str, sorted(record.stamps)))
    return UnknownNameError(f"the chain {name} has no version {version}; it has {has}", param="chain")
