"""The trained encoders of all replicas, whose record and files are in Redis, served from a copy on disk.

lathe:model:<digest>   hash: a version's manifest, and the pieces of its model's files as <path>:<number>

The digest in the key is that of the manifest. Models are large, so a version's files are written before the transaction
in which its record names them. Until then they expire.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from redis import exceptions as redis_errors
from redis.client import Pipeline

from lathe.service.chains.names import require_name
from lathe.service.chains.version_folder import VersionFolder
from lathe.service.encoder_settings import MANIFEST, MODEL
from lathe.service.encoders.trained import (
    PIECE_BYTES,
    TrainedEncoders,
    complete_manifest,
    digest_files,
    make_parents,
    parse_manifest,
)
from lathe.service.errors import BadValueError
from lathe.service.redis.connection import RedisConnection
from lathe.service.redis.shared_versions import GRACE_SECONDS, SharedVersions, StagedFiles
from lathe.service.redis.version_record import VersionRecord, VersionStamp, build_key, compute_digest, read_record
from lathe.transforms.artifact import read_file
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import create_file, make_folder, sync_folder

UPLOAD_SECONDS = 3600
"""Seconds after which files expire that no record came to name."""


class SharedTrainedEncoders(SharedVersions, TrainedEncoders):
    """The trained encoders of all replicas, with a copy in a folder.

    Args:
        root: folder of the copy; processes may share it.
        connection: connection to Redis.
        grace_seconds: see `SharedVersions.connect`.
    """

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        TrainedEncoders.__init__(self, root)
        self.connect(connection, grace_seconds)

    def bring_up_to_date(self, names: Iterable[str] | None = None) -> None:
        """Copy trained encoders from Redis, after writing those to it that it lacks.

        Args:
            names: names of the encoders to copy, as models are large; None for all.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
            ArtifactError: if a record cannot be read.
            OSError: if the copy cannot be written.
        """
        self.join_record()
        for name in self.list_all_names() if names is None else names:
            self.pull(name)

    def find_published(self, name: str, job: str | None) -> int | None:
        """Return the version of a name that a job has published, on any machine, or None.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        if job is None:
            return None
        self.pull(name)
        return super().find_published(name, job)

    def publish(
        self,
        name: str,
        model: Path,
        manifest: Mapping[str, Any],
        promote: bool | None,
        job: str | None = None,
    ) -> tuple[int, bool]:
        """Add a trained model as the next version of a name, in Redis and on disk.

        The arguments are those of `TrainedEncoders.publish`.

        Returns:
            The version, and whether it is live.

        Raises:
            BadValueError: if the name is not valid, or the model has files that no version may have.
            UnavailableError: if Redis is unreachable, or has no room for the model. A job may then publish again: if
                its version is in Redis already, that one is copied and returned.
        """
        require_name(name, "an encoder")
        digests = digest_files(model)
        outcome = None
        while outcome is None:  # another version may take the number while this one is written
            with self.connection.reached() as client:
                content: Any = client.hgetall(build_key(self.kind, name))
            record = VersionRecord.parse(self.kind, name, content)
            if (published := record.find_published(job)) is not None:
                outcome = published, record.pointer.live == published
            else:
                version = record.next_version
                complete = complete_manifest(manifest, name, version, digests, job)
                serialized = orjson.dumps(complete, option=orjson.OPT_INDENT_2)
                staged = self._upload(serialized, model, digests, job)
                outcome = self._commit(name, version, promote, staged)
        self.pull(name)
        return outcome

    def _commit(self, name: str, version: int, promote: bool | None, staged: StagedFiles) -> tuple[int, bool] | None:
        """Write an uploaded version to the record. Return it and whether it is live, or None if its number is taken."""

        def change(pipe: Pipeline) -> tuple[int, bool] | None:
            record = read_record(pipe, self.kind, name)
            if record.next_version != version:
                pipe.multi()
                return None
            return self.add_version(pipe, record, name, promote, staged)

        return self.record.transaction(change, build_key(self.kind, name))

    def _upload(self, manifest: bytes, model: Path, paths: Iterable[str], job: str | None) -> StagedFiles:
        """Write a version's files to Redis, where they expire unless a transaction keeps them.

        They get a key of their own until then: another replica may have committed the same files, if a job ran twice.

        Raises:
            UnavailableError: if Redis is unreachable, or full; what was written is then removed.
        """
        stamp = VersionStamp(compute_digest(manifest), job)
        key = build_model_key(stamp)
        uploaded = f"{key}:{secrets.token_hex(8)}"
        with self.connection.reached() as client:
            try:
                client.hset(uploaded, MANIFEST, manifest)
                client.expire(uploaded, UPLOAD_SECONDS)
                for path in paths:
                    for number, piece in enumerate(_read_pieces(model / path)):
                        client.hset(uploaded, f"{path}:{number}", piece)
            except redis_errors.ResponseError:
                client.delete(uploaded)
                raise

        def keep(pipe: Pipeline) -> None:
            pipe.rename(uploaded, key)
            pipe.persist(key)

        return StagedFiles(stamp, keep, uploaded=uploaded)

    def stage_files(self, source: VersionFolder, name: str, version: int) -> StagedFiles:
        """Write a version's files from a folder to Redis, and return them as a transaction keeps them.

        Raises:
            ArtifactError: if they are damaged.
            UnavailableError: if Redis is unreachable, or full.
        """
        folder = source.root / name / str(version)
        serialized = read_file(folder, MANIFEST, source.links_within)
        manifest = parse_manifest(serialized)
        if digest_files(folder / MODEL) != manifest["files"]:
            raise ArtifactError(f"the files of the encoder {name}@{version} are not those that were published")
        return self._upload(serialized, folder / MODEL, manifest["files"], manifest.get("job"))

    def fetch_manifest(self, name: str, version: int, stamp: VersionStamp) -> bytes | None:
        """Read a version's manifest from Redis. None if there is none."""
        with self.connection.reached() as client:
            content: Any = client.hget(build_model_key(stamp), MANIFEST)
        manifest: bytes | None = content
        return manifest

    def fetch_files(self, name: str, version: int, stamp: VersionStamp, manifest: bytes, folder: Path) -> bool:
        """Write the model's files from Redis to a folder, piece by piece. Return whether their digests are right."""
        try:
            digests = parse_manifest(manifest)["files"]
        except (ValueError, BadValueError):
            return False
        model = folder / MODEL
        make_folder(model)
        for path, digest in digests.items():
            make_parents(model, path)
            hashed = hashlib.sha256()
            with create_file(model / path) as file:
                for piece in self._fetch_pieces(stamp, path):
                    hashed.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            if hashed.hexdigest() != digest:
                return False
        sync_folder(model)
        return True

    def _fetch_pieces(self, stamp: VersionStamp, path: str) -> Iterator[bytes]:
        number, key = 0, build_model_key(stamp)
        with self.connection.reached() as client:
            while True:
                piece: Any = client.hget(key, f"{path}:{number}")
                if piece is None:
                    return
                yield piece
                number += 1

    def delete_files(self, pipe: Pipeline, name: str, version: int, stamp: VersionStamp) -> None:
        """Queue a Redis command on `pipe` that deletes a version's files."""
        pipe.delete(build_model_key(stamp))


def build_model_key(stamp: VersionStamp) -> str:
    """Return the Redis key of the files of a trained encoder's version."""
    return f"lathe:model:{stamp.manifest}"


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
