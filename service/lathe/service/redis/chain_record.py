"""The format of chains in Redis: a chain's record, its versions' files, and the identity of the whole registry."""

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from redis.client import Pipeline

from lathe.service.chains.pointer import Pointer
from lathe.service.errors import UnavailableError
from lathe.transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitStatistics, read_file
from lathe.transforms.chain import Chain
from lathe.transforms.errors import ArtifactError
from lathe.transforms.json_files import parse_json

SCHEMA = 1
IDENTITY = "lathe:registry"
CHANGES = "lathe:changes"
CHANGES_KEPT = 1000
"""Maximum length of the change stream."""
CHAIN = "lathe:chain:"
POINTER, VERSION = b"pointer", b"version:"


class VersionFiles(NamedTuple):
    """The files of a version, by their names in Redis.

    `reference` is the fit distribution; None if there is none.
    """

    manifest: bytes
    tensors: bytes
    reference: bytes | None = None

    @classmethod
    def read(cls, folder: Path, root: Path | None = None) -> "VersionFiles":
        """Read the files of a chain's version (manifest, tensors, fit distribution if any) from its folder.

        Args:
            folder: folder of the artifact.
            root: folder out of which no link may lead; None follows links anywhere.
        """
        try:
            reference = read_file(folder, DISTRIBUTION, root)
        except FileNotFoundError:
            reference = None
        return cls(read_file(folder, MANIFEST, root), read_file(folder, TENSORS, root), reference)


@dataclass(frozen=True)
class VersionStamp:
    """Digests that the record has of a version's files (SHA-256), and the job that published the version.

    The digest of the fit distribution is in the manifest, and is checked when that is read.
    """

    manifest: str
    tensors: str
    job: str | None = None

    def matches(self, manifest: bytes, tensors: bytes) -> bool:
        """Return whether the files have the recorded digests."""
        return (compute_digest(manifest), compute_digest(tensors)) == (self.manifest, self.tensors)


@dataclass(frozen=True)
class ChainRecord:
    """A chain's record in Redis: the pointer, and the stamp of each version."""

    pointer: Pointer
    stamps: dict[int, VersionStamp]

    @classmethod
    def parse(cls, name: str, content: dict[bytes, bytes]) -> "ChainRecord":
        """Parse the Redis hash of a chain to its live pointer and the digests of its versions.

        An empty hash means that the name was never used.

        Raises:
            ArtifactError: if the hash is damaged.
        """
        if content and POINTER not in content:
            raise ArtifactError(f"the record of the chain {name} in Redis has no live pointer")
        pointer = Pointer.parse(name, content[POINTER]) if content else Pointer()
        numbers = {key: key.removeprefix(VERSION).decode(errors="replace") for key in content if key != POINTER}
        try:
            stamps = {int(number): VersionStamp(**parse_json(content[key])) for key, number in numbers.items()}
        except (ValueError, TypeError) as error:
            raise ArtifactError(f"the record of the chain {name} in Redis cannot be read: {error!r}") from error
        return cls(pointer, stamps)


def read_record(pipe: Pipeline, name: str) -> ChainRecord:
    """Read a chain's record (pointer and versions) within a Redis transaction that watches its key."""
    content: Any = pipe.hgetall(CHAIN + name)
    return ChainRecord.parse(name, content)


def write_version(pipe: Pipeline, name: str, version: int, files: VersionFiles, job: str | None) -> None:
    """Queue Redis commands on `pipe` that write a version's files, with their digests and the job that made it."""
    stamp = json.dumps(asdict(VersionStamp(compute_digest(files.manifest), compute_digest(files.tensors), job)))
    fields: Any = {field: content for field, content in files._asdict().items() if content is not None}
    pipe.hset(build_artifact_key(name, version), mapping=fields)
    pipe.hset(CHAIN + name, f"version:{version}", stamp)


def write_pointer(pipe: Pipeline, name: str, pointer: Pointer) -> None:
    """Queue Redis commands on `pipe` that write a chain's pointer and announce the change to replicas."""
    pipe.hset(CHAIN + name, "pointer", pointer.serialize())
    pipe.xadd(CHANGES, {"chain": name}, maxlen=CHANGES_KEPT)


def serialize_version(chain: Chain, name: str, version: int, statistics: FitStatistics | None = None) -> VersionFiles:
    """Return the contents of the files in which a chain is saved as a version, by way of a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / str(version)
        chain.save(path, {"name": name, "version": version}, statistics)
        return VersionFiles.read(path)


def build_artifact_key(name: str, version: int) -> str:
    """Return the Redis key of a version's files."""
    return f"lathe:artifact:{name}:{version}"


def compute_digest(content: bytes) -> str:
    """Return the SHA-256 digest of the content as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def parse_identity(content: bytes) -> str:
    """Return the id in the record that names the set of all chains in this Redis.

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
