"""The trained encoders of all replicas, whose record and files are in Redis, served from a copy on disk."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from lathe.service.chains.names import require_name
from lathe.service.encoder_settings import MODEL
from lathe.service.encoders.trained import (
    TrainedEncoders,
    complete_manifest,
    digest_files,
    parse_manifest,
)
from lathe.service.errors import BadValueError
from lathe.service.redis.connection import RedisConnection
from lathe.service.redis.shared_versions import GRACE_SECONDS, SharedVersions


class SharedTrainedEncoders(SharedVersions, TrainedEncoders):
    """The registry of trained encoders that all replicas share in Redis, with a copy of it in a folder.

    Args:
        root: folder of the copy; processes may share it.
        connection: connection to Redis.
        grace_seconds: see `SharedVersions.connect`.
    """

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        TrainedEncoders.__init__(self, root)
        self.connect(connection, grace_seconds)

    def bring_up_to_date(self, names: Iterable[str] | None = None) -> None:
        """Write trained encoders to Redis that it lacks, then copy trained encoders from Redis to disk.

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
        """Update the copy of a trained encoder, and return the version that a job published on any machine, or None.

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
        """Add a trained model as the next version of an encoder, in Redis and on disk.

        Returns the version, and whether it is live. `TrainedEncoders.publish` explains the arguments.

        Raises:
            BadValueError: if the name is not valid, or the model has files that no version may have.
            UnavailableError: if Redis is unreachable, or has no room for the model. A job may then publish again: if
                its version is in Redis already, that one is copied and returned.
        """
        require_name(name, "an encoder")
        digests = digest_files(model)

        def prepare(version: int) -> tuple[bytes, dict[str, Path]]:
            complete = complete_manifest(manifest, name, version, digests, job)
            return orjson.dumps(complete, option=orjson.OPT_INDENT_2), {
                f"{MODEL}/{path}": model / path for path in digests
            }

        outcome = self.publish_files(name, promote, job, prepare)
        self.pull(name)
        return outcome

    def list_files(self, manifest: bytes) -> dict[str, str | None]:
        """Return the files of a version's model as `{relative path: SHA-256}`.

        Raises:
            ValueError: if the manifest is damaged.
        """
        try:
            return {f"{MODEL}/{path}": digest for path, digest in parse_manifest(manifest)["files"].items()}
        except BadValueError as error:
            raise ValueError(str(error)) from error
