"""The records in Redis of versioned names, such as chains, and the identity of all of them together.

lathe:registry         identity of what this Redis holds, JSON
lathe:changes          stream of the names that changed
lathe:<kind>:<name>    hash, where the kind is "chain" or "encoder":
    pointer            which version is live, JSON
    version:<V>        digest of the version's manifest and the job that published it, JSON
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from redis.client import Pipeline

from lathe.service.chains.pointer import Pointer
from lathe.service.errors import UnavailableError
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import parse_json

SCHEMA = 1
IDENTITY = "lathe:registry"
CHANGES = "lathe:changes"
CHANGES_KEPT = 1000
"""Maximum length of the change stream."""
POINTER, VERSION = b"pointer", b"version:"


@dataclass(frozen=True)
class VersionStamp:
    """What the record says of a version.

    Attributes:
        manifest: SHA-256 of the manifest, which has the digests of all other files.
        job: id of the job that published the version; None without a job.
    """

    manifest: str
    job: str | None = None


@dataclass(frozen=True)
class VersionRecord:
    """The record of a name in Redis: the pointer, and the stamp of each version."""

    pointer: Pointer
    stamps: dict[int, VersionStamp]

    @classmethod
    def parse(cls, kind: str, name: str, content: dict[bytes, bytes]) -> "VersionRecord":
        """Parse the Redis hash of a name to its live pointer and the stamps of its versions.

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
        """Return the version that a job published, or None."""
        return next((version for version, stamp in self.stamps.items() if job and stamp.job == job), None)

    @property
    def next_version(self) -> int:
        """Number of the next version: one that was never used, also not by a version that was deleted."""
        return max([self.pointer.last, *self.stamps]) + 1


def build_key(kind: str, name: str) -> str:
    """Return the Redis key of a name's record."""
    return f"lathe:{kind}:{name}"


def read_record(pipe: Pipeline, kind: str, name: str) -> VersionRecord:
    """Read the record of a name (pointer and versions) within a Redis transaction that watches its key."""
    content: Any = pipe.hgetall(build_key(kind, name))
    return VersionRecord.parse(kind, name, content)


def write_stamp(pipe: Pipeline, kind: str, name: str, version: int, stamp: VersionStamp) -> None:
    """Queue a Redis command on `pipe` that writes what the record says of a version."""
    pipe.hset(build_key(kind, name), f"version:{version}", json.dumps(asdict(stamp)))


def delete_stamp(pipe: Pipeline, kind: str, name: str, version: int) -> None:
    """Queue a Redis command on `pipe` that removes a version from the record."""
    pipe.hdel(build_key(kind, name), f"version:{version}")


def write_pointer(pipe: Pipeline, kind: str, name: str, pointer: Pointer) -> None:
    """Queue Redis commands on `pipe` that write a name's pointer and announce the change to replicas."""
    pipe.hset(build_key(kind, name), "pointer", pointer.serialize())
    pipe.xadd(CHANGES, {kind: name}, maxlen=CHANGES_KEPT)


def compute_digest(content: bytes) -> str:
    """Return the SHA-256 digest of the content as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def parse_identity(content: bytes) -> str:
    """Return the id of the set of all versions that this Redis holds.

    Each Redis has one such record. Its schema must be one that this version of Lathe reads.

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
