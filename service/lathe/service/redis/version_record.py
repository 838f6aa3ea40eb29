"""The record of a chain or trained encoder in Redis, and the files of its versions there, in pieces.

lathe:<kind>:<name>    hash, where the kind is "chain" or "encoder":
    pointer            which version is live, JSON
    version:<V>        digest of the version's manifest and the job that published it, JSON
lathe:files:<digest>   hash: a version's manifest, and the pieces of its other files as <path>:<number>
lathe:changes          stream of the names that changed

The digest in the key of files is the manifest's. Files may be large, so they are written before the transaction in
which a record names them. Until then they expire.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from redis import Redis
from redis import exceptions as redis_errors
from redis.client import Pipeline

from lathe.service.chains.pointer import Pointer
from lathe.transforms.artifact import MANIFEST
from lathe.transforms.beneath import open_beneath
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, parse_json, read_pieces, sync_folder, write_pieces, write_synced

CHANGES = "lathe:changes"
MAX_CHANGES = 1000
"""Maximum length of the change stream."""
UPLOAD_SECONDS = 3600
"""Seconds after which files expire that no record came to name."""
POINTER, VERSION = b"pointer", b"version:"

FileLister = Callable[[bytes], Mapping[str, str | None]]
"""Function that returns the files of a version besides its manifest, as `{relative path: SHA-256}`, by the manifest.

A file whose digest is None may be missing, and is checked when it is read. Raises `ValueError` for a damaged manifest.
"""


@dataclass(frozen=True)
class RecordedVersion:
    """A version as recorded in Redis.

    Attributes:
        manifest: SHA-256 of the manifest, which has the digests of all other files.
        job: id of the job that published the version; None without a job.
    """

    manifest: str
    job: str | None = None

    @property
    def files_key(self) -> str:
        """Redis key of the version's files."""
        return f"lathe:files:{self.manifest}"

    def serialize(self) -> str:
        """Return the version as the JSON that its record in Redis has."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class VersionRecord:
    """The record of a chain or trained encoder in Redis: the live version, and digest and job of each version."""

    pointer: Pointer
    versions: dict[int, RecordedVersion]

    @classmethod
    def read(cls, client: Redis, kind: str, name: str) -> "VersionRecord":
        """Read the record of a chain or trained encoder from Redis. `client` may be a transaction's pipeline."""
        content: Any = client.hgetall(build_key(kind, name))
        return cls.parse(kind, name, content)

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
            versions = {int(number): RecordedVersion(**parse_json(content[key])) for key, number in numbers.items()}
        except (ValueError, TypeError) as error:
            raise ArtifactError(f"the record of the {kind} {name} in Redis cannot be read: {error!r}") from error
        return cls(pointer, versions)

    def find_published(self, job: str | None) -> int | None:
        """Return the version that a job published, or None if there is none or `job` is None."""
        return next((number for number, version in self.versions.items() if job and version.job == job), None)

    @property
    def next_version(self) -> int:
        """Number of the next version: one that was never used, also not by a version that was deleted."""
        return max([self.pointer.last, *self.versions]) + 1


def build_key(kind: str, name: str) -> str:
    """Return the Redis key of the record of a chain of transforms or trained encoder.

    Args:
        kind: "chain" or "encoder".
        name: name of the chain or encoder.
    """
    return f"lathe:{kind}:{name}"


def write_pointer(pipe: Pipeline, kind: str, name: str, pointer: Pointer) -> None:
    """Queue Redis commands that write which version is live, and announce the change to replicas."""
    pipe.hset(build_key(kind, name), "pointer", pointer.serialize())
    pipe.xadd(CHANGES, {kind: name}, maxlen=MAX_CHANGES)


def upload_files(client: Redis, manifest: bytes, folder: Path, root: Path | None, list_files: FileLister) -> str:
    """Write a version's files to Redis, where they expire unless a transaction keeps them. Return their key there.

    Args:
        client: client of Redis.
        manifest: the version's manifest.
        folder: folder of the version.
        root: folder out of which no link may lead; None follows links anywhere.
        list_files: lists the version's files.

    Raises:
        ArtifactError: if a file does not have the digest in the manifest.
        OSError: if a file cannot be read.
        RedisError: if Redis is unreachable, or full. What was written is removed after any of these errors.
    """
    # A random key, as another replica may be writing the same files: two writers must not share pieces.
    key = f"{RecordedVersion(hashlib.sha256(manifest).hexdigest()).files_key}:{secrets.token_hex(8)}"
    try:
        client.hset(key, MANIFEST, manifest)
        client.expire(key, UPLOAD_SECONDS)
        for path, digest in list_files(manifest).items():
            if digest is None and not (folder / path).exists():
                continue
            hashed = hashlib.sha256()
            for number, piece in enumerate(_read_pieces(folder / path, root)):
                hashed.update(piece)
                client.hset(key, f"{path}:{number}", piece)
            if digest not in (None, hashed.hexdigest()):
                raise ArtifactError(f"the file {path} of a version is not the one that was published")
    except (redis_errors.ResponseError, ArtifactError, OSError):
        client.delete(key)
        raise
    return key


def _read_pieces(path: Path, root: Path | None) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces. With a `root`, no link may lead out of that folder."""
    with path.open("rb") if root is None else open_beneath(root, path.relative_to(root).as_posix()) as file:
        yield from read_pieces(file)


def fetch_files(client: Redis, version: RecordedVersion, folder: Path, list_files: FileLister) -> None:
    """Write a version's files from Redis to a new folder.

    Raises:
        ValueError: if the files in Redis were altered, or are missing.
    """
    make_folder(folder)
    manifest: Any = client.hget(version.files_key, MANIFEST)
    if manifest is None or hashlib.sha256(manifest).hexdigest() != version.manifest:
        raise ValueError("the manifest is not the one that was published")
    for path, digest in list_files(manifest).items():
        pieces = _fetch_pieces(client, version.files_key, path)
        if (first := next(pieces, None)) is None and digest is None:
            continue
        make_folder((folder / path).parent)
        if write_pieces(folder / path, chain([first or b""], pieces)) != digest and digest is not None:
            raise ValueError(f"the file {path} is not the one that was published")
        sync_folder((folder / path).parent)
    # The manifest is last: its digest on disk is the sign that the version is there.
    write_synced(folder / MANIFEST, manifest)


def _fetch_pieces(client: Redis, key: str, path: str) -> Iterator[bytes]:
    for number in count():
        piece: Any = client.hget(key, f"{path}:{number}")
        if piece is None:
            return
        yield piece
