"""How a chain is written in Redis: its record, its versions' files, and the identity of all records together."""

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from redis.client import Pipeline

from service.errors import UnavailableError
from service.registry import Pointer
from transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitStatistics, read_file
from transforms.chain import Chain
from transforms.errors import ArtifactError

SCHEMA = 1
IDENTITY = "lathe:registry"
CHANGES = "lathe:changes"
CHANGES_KEPT = 1000
CHAIN = "lathe:chain:"
POINTER, VERSION = b"pointer", b"version:"


class Files(NamedTuple):
    """The files of a version; `reference` is None where it has none."""

    manifest: bytes
    tensors: bytes
    reference: bytes | None = None

    @classmethod
    def read(cls, folder: Path, root: Path | None = None) -> "Files":
        """Those of an artifact folder; `root` as in `transforms.artifact.read_file`."""
        try:
            reference = read_file(folder, DISTRIBUTION, root)
        except FileNotFoundError:
            reference = None
        return cls(read_file(folder, MANIFEST, root), read_file(folder, TENSORS, root), reference)


@dataclass(frozen=True)
class Stamp:
    """What the record says of a version: the SHA-256 of its files, and the job that published it.

    That of a reference is in the manifest, and is checked when it is read.
    """

    manifest: str
    tensors: str
    job: str | None = None

    def fits(self, manifest: bytes, tensors: bytes) -> bool:
        """Whether these are the files."""
        return (digest(manifest), digest(tensors)) == (self.manifest, self.tensors)


@dataclass(frozen=True)
class Record:
    """A chain as Redis has it."""

    pointer: Pointer
    stamps: dict[int, Stamp]

    @classmethod
    def parse(cls, name: str, content: dict[bytes, bytes]) -> "Record":
        """Read a chain's hash; an empty one is of a name never used.

        Raises:
            ArtifactError: if it was damaged.
        """
        if content and POINTER not in content:
            raise ArtifactError(f"the record of the chain {name} in Redis has no live pointer")
        pointer = Pointer.parse(name, content[POINTER]) if content else Pointer()
        numbers = {key: key.removeprefix(VERSION).decode(errors="replace") for key in content if key != POINTER}
        try:
            stamps = {int(number): Stamp(**json.loads(content[key])) for key, number in numbers.items()}
        except (ValueError, TypeError, RecursionError) as error:
            raise ArtifactError(f"the record of the chain {name} in Redis cannot be read: {error!r}") from error
        return cls(pointer, stamps)


def read(pipe: Pipeline, name: str) -> Record:
    """A chain's record, within a transaction that watches it."""
    content: Any = pipe.hgetall(CHAIN + name)
    return Record.parse(name, content)


def write_version(pipe: Pipeline, name: str, version: int, files: Files, job: str | None) -> None:
    """Queue a version, whole."""
    stamp = json.dumps(asdict(Stamp(digest(files.manifest), digest(files.tensors), job)))
    there: Any = {field: content for field, content in files._asdict().items() if content is not None}
    pipe.hset(artifact_key(name, version), mapping=there)
    pipe.hset(CHAIN + name, f"version:{version}", stamp)


def write_pointer(pipe: Pipeline, name: str, pointer: Pointer) -> None:
    """Queue a chain's pointer, and word of it for all replicas."""
    pipe.hset(CHAIN + name, "pointer", pointer.dump())
    pipe.xadd(CHANGES, {"chain": name}, maxlen=CHANGES_KEPT)


def saved(chain: Chain, name: str, version: int, statistics: FitStatistics | None = None) -> Files:
    """The files of a version."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / str(version)
        chain.save(path, {"name": name, "version": version}, statistics)
        return Files.read(path)


def artifact_key(name: str, version: int) -> str:
    """Where a version's files are."""
    return f"lathe:artifact:{name}:{version}"


def digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def identity_of(content: bytes) -> str:
    """The id of a record.

    Raises:
        UnavailableError: if another version of Lathe keeps it in another form.
    """
    try:
        found = json.loads(content)
        schema, identity = int(found["schema"]), str(found["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnavailableError(f"Redis holds something else under {IDENTITY}", code="redis_foreign") from None
    if schema > SCHEMA:
        raise UnavailableError(
            f"Redis is used by a newer Lathe (schema {schema}, this one reads {SCHEMA}): upgrade this one",
            code="redis_foreign",
        )
    return identity
