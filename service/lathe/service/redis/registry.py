"""The shared registry: chains whose record is in Redis, served from a copy on disk; changes are made in Redis first."""

from collections.abc import Callable
from pathlib import Path

from redis.client import Pipeline

from lathe.service.chains.names import is_name, require_name
from lathe.service.chains.pointer import Pointer
from lathe.service.chains.registry import Gate, Registry, accept_any
from lathe.service.errors import UnknownNameError
from lathe.service.redis.chain_record import (
    CHAIN,
    VERSION,
    ChainRecord,
    build_artifact_key,
    read_record,
    serialize_version,
    write_pointer,
    write_version,
)
from lathe.service.redis.connection import RedisConnection
from lathe.service.redis.registry_copy import RegistryCopy
from lathe.transforms.artifact import FitStatistics
from lathe.transforms.chain import Chain

GRACE_SECONDS = 2.0
"""Seconds that a new, empty replica waits before it starts a record in an empty Redis, so that replicas with chains go
first."""


class SharedRegistry(RegistryCopy):
    """The registry of all replicas; arguments and attributes as in `RegistryCopy`."""

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        super().__init__(root, connection, grace_seconds)

    def publish(
        self,
        chain: Chain,
        name: str,
        promote: bool | None,
        job: str | None = None,
        statistics: FitStatistics | None = None,
    ) -> tuple[int, bool]:
        """Add a fitted chain as the next version, in Redis and on disk; return the version and whether it is live.

        A job that runs twice publishes once.

        Args:
            chain: fitted chain.
            name: name of the chain.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that fitted it, if one did.
            statistics: statistics of the rows it was fitted on, stored with the version.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        require_name(name)

        def change(pipe: Pipeline) -> tuple[int, bool]:
            """Queue the new version and pointer, unless the job has published already; return version and liveness."""
            record = read_record(pipe, name)
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
        self.pull_if_reachable(name)
        return outcome

    def promote(self, name: str, version: int, gate: Gate = accept_any) -> Pointer:
        """Make a version live for all replicas and return the new pointer.

        The version is first copied and loaded here, and `gate` is called with its manifest; if one raises, nothing
        changes.
        """

        def change(pipe: Pipeline) -> Pointer:
            """Copy and load the version, check the gate, and queue the new pointer."""
            record = _require_version(pipe, name, version)
            self.pull(name)
            chain = self.read(name, version)  # never make live what cannot be served
            return _queue_pointer(pipe, name, record.pointer.promote(version, gate(chain.metadata)))

        return self._change_pointer(name, change)

    def rollback(self, name: str) -> Pointer:
        """Make the most recent earlier live version that exists live for all replicas, and return the new pointer.

        Raises:
            UnknownNameError: if there is no such chain.
            ConflictError: if no earlier version exists.
        """

        def change(pipe: Pipeline) -> Pointer:
            """Queue the pointer to the earlier version and return it."""
            record = read_record(pipe, name)
            if not record.stamps:
                raise UnknownNameError(f"there is no chain {name!r}", param="name")
            return _queue_pointer(pipe, name, record.pointer.roll_back(name, record.stamps))

        return self._change_pointer(name, change)

    def delete(self, name: str, version: int) -> None:
        """Delete a version permanently for all replicas.

        Raises:
            UnknownNameError: if there is no such version.
            ConflictError: if the version is live and there are others.
        """

        def change(pipe: Pipeline) -> Pointer:
            """Queue the new pointer and the deletion of the version's stamp and files."""
            record = _require_version(pipe, name, version)
            pointer = _queue_pointer(pipe, name, record.pointer.remove_version(name, version, record.stamps))
            pipe.hdel(CHAIN + name, VERSION + str(version).encode())
            pipe.delete(build_artifact_key(name, version))
            return pointer

        self._change_pointer(name, change)

    def import_chain(self, name: str, source: Registry) -> bool:
        """Copy a chain of another registry to Redis and to disk; return False if its name was ever used in Redis.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        imported = self.record.push(name, source)
        self.pull(name)
        return imported

    def _change_pointer(self, name: str, change: Callable[[Pipeline], Pointer]) -> Pointer:
        """Run a transaction on a chain's record, update the local copy of the chain, and return the new pointer."""
        if not is_name(name):
            raise UnknownNameError(f"there is no chain {name!r}", param="name")
        pointer = self.record.transaction(change, CHAIN + name)
        self.pull_if_reachable(name)
        return pointer


def _require_version(pipe: Pipeline, name: str, version: int) -> ChainRecord:
    """Read a chain's record; raise `UnknownNameError` unless it has the version."""
    record = read_record(pipe, name)
    if not record.stamps:
        raise UnknownNameError(f"there is no chain {name!r}", param="name")
    if version not in record.stamps:
        has = ", ".join(map(str, sorted(record.stamps)))
        raise UnknownNameError(f"the chain {name} has no version {version}; it has {has}", param="chain")
    return record


def _queue_pointer(pipe: Pipeline, name: str, pointer: Pointer) -> Pointer:
    """Call `multi`, which ends a transaction's reads, queue a new pointer for writing, and return the pointer."""
    pipe.multi()
    write_pointer(pipe, name, pointer)
    return pointer
