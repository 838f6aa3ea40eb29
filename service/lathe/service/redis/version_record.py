"""The records in Redis of versioned names, such as chains, and the identity of all of them together.

lathe:registry         identity of what this Redis holds, JSON
lathe:changes          stream of the names that changed
lathe:<kind>:<name>    hash, where the kind is "chain" or "encoder":
    pointer            which version is live, JSON
    version:<V>        digest of the version's manifest and the job that published it, JSON

Every change of the versions that a Redis holds is one transaction: a version exists in Redis with all its files or not
at all.
"""

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from redis.client import Pipeline

from lathe.service.chains.pointer import Pointer
from lathe.service.errors import UnavailableError
from lathe.service.redis.connection import RedisConnection
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_root, parse_json, read_plain_file, replace_synced

SCHEMA = 1
IDENTITY = "lathe:registry"
CHANGES = "lathe:changes"
CHANGES_KEPT = 1000
"""Maximum length of the change stream."""
POINTER, VERSION = b"pointer", b"version:"


@dataclass(frozen=True)
class VersionStamp:
    """SHA-256 of a version's manifest, and the job that published the version, as recorded in Redis.

    Attributes:
        manifest: SHA-256 of the manifest, which has the digests of all other files.
        job: id of the job that published the version; None without a job.
    """

    manifest: str
    job: str | None = None


@dataclass(frozen=True)
class VersionRecord:
    """The record of a chain or trained encoder in Redis: the live version, and digest and job of each version."""

    pointer: Pointer
    stamps: dict[int, VersionStamp]

    @classmethod
    def parse(cls, kind: str, name: str, content: dict[bytes, bytes]) -> "VersionRecord":
        """Parse the Redis hash of a chain of transforms or trained encoder, and return its record.

        An empty hash means that the name was never used.

        Raises:
            ArtifactError: if the hash is damaged.
        """
        if content and POINTER not in content:
            raise ArtifactError(f"the record of the {kind} {name} in Redis has no live pointer")
        pointer = Pointer.parse(name, content[POINTER], kind) if content else Pointer()
        numbers = {key: key.removeprefix(VERSION).decode(errors="replace") for key in content if key != POINTER}
        try:
            stamps = {int(number): VersionStamp(**parse_json(content[key])) for key, number in numbers.items()}
        except (ValueError, TypeError) as error:
            raise ArtifactError(f"the record of the {kind} {name} in Redis cannot be read: {error!r}") from error
        return cls(pointer, stamps)

    def find_published(self, job: str | None) -> int | None:
        """Return the version that a job published, or None if there is none or `job` is None."""
        return next((version for version, stamp in self.stamps.items() if job and stamp.job == job), None)

    @property
    def next_version(self) -> int:
        """Number of the next version: one that was never used, also not by a version that was deleted."""
        return max([self.pointer.last, *self.stamps]) + 1


def build_key(kind: str, name: str) -> str:
    """Return the Redis key of the record of a chain of transforms or trained encoder.

    Args:
        kind: "chain" or "encoder".
        name: name of the chain or encoder.
    """
    return f"lathe:{kind}:{name}"


def read_record(client: Redis, kind: str, name: str) -> VersionRecord:
    """Read the record of a chain or trained encoder from Redis. `client` may be a transaction's pipeline."""
    content: Any = client.hgetall(build_key(kind, name))
    return VersionRecord.parse(kind, name, content)


def write_stamp(pipe: Pipeline, kind: str, name: str, version: int, stamp: VersionStamp) -> None:
    """Queue a Redis command on `pipe` that writes a version's digest and job to the record of a name."""
    pipe.hset(build_key(kind, name), f"version:{version}", json.dumps(asdict(stamp)))


def delete_stamp(pipe: Pipeline, kind: str, name: str, version: int) -> None:
    """Queue a Redis command on `pipe` that removes a version from the record of a name."""
    pipe.hdel(build_key(kind, name), f"version:{version}")


def write_pointer(pipe: Pipeline, kind: str, name: str, pointer: Pointer) -> None:
    """Queue Redis commands that write which version is live, and announce the change to replicas."""
    pipe.hset(build_key(kind, name), "pointer", pointer.serialize())
    pipe.xadd(CHANGES, {kind: name}, maxlen=CHANGES_KEPT)


def compute_digest(content: bytes) -> str:
    """Return the SHA-256 of the content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


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
    if schema > SCHEMA:
        raise UnavailableError(
            f"Redis is used by a newer Lathe (schema {schema}, this one reads {SCHEMA}): upgrade this one",
            code="redis_foreign",
        )
    return identity


IDENTITY_FILE = ".identity"
TOKEN_SECONDS = 60
"""Seconds for which a transaction's token is kept, by which a repeated transaction is recognized."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class SharedRecord:
    """The set of all versions in a Redis, of which a folder is the local copy.

    A random id tells the set from the set in another Redis.

    Args:
        root: folder of the local copy, which stores the id of its record.
    """

    def __init__(self, connection: RedisConnection, root: Path) -> None:
        self.connection = connection
        self.root = root

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

    def transaction(self, change: Callable[[Pipeline], T], *keys: str) -> T:
        """Run `change` as one atomic Redis transaction that is committed at most once, and return its result.

        Redis must hold this record. The transaction leaves a token in Redis for `TOKEN_SECONDS`, by which a repetition
        after a lost reply is recognized.

        Args:
            change: reads, calls `multi`, and queues the writes; may be called several times.
            keys: keys that it reads, which are watched.

        Raises:
            UnavailableError: if Redis is unreachable, or holds no record or another record. The replicator copies
                another record within a second, so the caller may try again.
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

    def join(self, grace_seconds: float) -> None:
        """Make the local folder a copy of the set of versions in Redis, which is started if there is none.

        The id of the set is stored in the folder. A Redis without a record is new, or has lost its data. If the folder
        is a copy of another record, it is renamed, because its versions may be nowhere else.

        Args:
            grace_seconds: seconds that a new folder waits before it starts a record, so that folders with versions go
                first.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
        """
        local_id = self.identity
        if local_id is None:
            with self.connection.reached() as client:
                # Replicas that have versions start the record at once, and then keep them; this one has none to keep.
                if not client.exists(IDENTITY):
                    time.sleep(grace_seconds)

        def change(pipe: Pipeline) -> str:
            content: Any = pipe.get(IDENTITY)
            pipe.multi()
            if content is not None:
                return _parse_identity(content)
            new_id = local_id or secrets.token_hex(16)
            pipe.set(IDENTITY, json.dumps({"id": new_id, "schema": SCHEMA}))
            return new_id

        redis_id = self.connection.transaction(change, IDENTITY)
        if local_id not in (None, redis_id):
            self._set_aside_folder(str(local_id))
        if local_id != redis_id:
            make_root(self.root)
            replace_synced(self.root / IDENTITY_FILE, redis_id.encode())

    def _set_aside_folder(self, identity: str) -> None:
        """Rename the local copy of another Redis, so that its versions are kept and not served. Log the new name."""
        renamed = self.root.with_name(f"{self.root.name}-{identity[:8]}-{secrets.token_hex(4)}")
        self.root.rename(renamed)
        log.error(
            "this Redis holds other versions than before: the copy of the earlier ones was kept in %s", renamed.name
        )
