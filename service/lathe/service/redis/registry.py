"""The chains, size routes and trained encoders of all replicas, in Redis, served from a copy on disk."""

import json
from pathlib import Path
from typing import Any

from redis.client import Pipeline

from lathe.service.chains.loaded_chain import LoadedChain, load_chain
from lathe.service.chains.registry import Registry, SizeRoutes, parse_size_routes
from lathe.service.encoder_settings import MODEL
from lathe.service.encoders.trained import TrainedEncoders, parse_manifest
from lathe.service.errors import BadValueError
from lathe.service.redis.connection import RedisConnection, convert_wrong_type_errors, note_damage
from lathe.service.redis.shared_versions import GRACE_SECONDS, IDENTITY, SharedVersions, Upload
from lathe.service.redis.version_record import CHANGES, MAX_CHANGES
from lathe.transforms.artifact import DISTRIBUTION, TENSORS
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import parse_json, parse_json_object, replace_synced


class SharedRegistry(SharedVersions, Registry):
    """The registry of chains of transforms that all replicas share in Redis, with a copy of it in a folder.

    The arguments are those of `SharedVersions`.
    """

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        super().__init__(root, connection, grace_seconds)
        self.size_routes: _SharedSizeRoutes = _SharedSizeRoutes(self.size_routes.path, self)

    def load(self, ref: str) -> LoadedChain:
        """Load the chain of transforms that a reference such as `name@2` names from memory or disk, and return it.

        A version that is damaged on disk is deleted and fetched from Redis.

        Raises:
            UnknownNameError: if there is no such chain or version, or none is live.
            ArtifactError: if the version is damaged on disk and Redis is down.
        """
        try:
            return super().load(ref)
        except ArtifactError:
            if not self.connection.up:
                raise
            self.fetch_again(*self.resolve(ref))
            return super().load(ref)

    def import_chain(self, name: str, source: Registry) -> bool:
        """Copy a chain of transforms from another registry to Redis and disk, unless its name was ever used.

        Returns whether it was copied.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        imported = self.push(name, source)
        self.pull(name)
        return imported

    def upload_version(self, folder: Path, root: Path | None, job: str | None = None) -> Upload:
        """Write a version's files to Redis as `SharedVersions` does, once its chain was loaded from them."""
        load_chain(folder, root)
        return super().upload_version(folder, root, job)

    def list_files(self, manifest: bytes) -> dict[str, str | None]:
        """Return the files of a version of a chain of transforms as `{relative path: SHA-256}`.

        They are the tensors, and the fit distribution with None.

        Raises:
            ValueError: if the manifest is damaged.
        """
        return {TENSORS: str(parse_json_object(manifest).get("tensors_sha256")), DISTRIBUTION: None}


class SharedTrainedEncoders(SharedVersions, TrainedEncoders):
    """The trained encoders that all replicas share in Redis, with a copy of them in a folder."""

    def list_files(self, manifest: bytes) -> dict[str, str | None]:
        """Return the files of a version's model as `{relative path: SHA-256}`.

        Raises:
            ValueError: if the manifest is damaged.
        """
        try:
            return {f"{MODEL}/{path}": digest for path, digest in parse_manifest(manifest)["files"].items()}
        except BadValueError as error:
            raise ValueError(str(error)) from error


SIZE_ROUTES = "lathe:size_routes"
ROUTES_NAME = "which chain answers which size"
"""Name of the size routes in error messages."""


class _SharedSizeRoutes(SizeRoutes):
    """The size routes of all encoders, in Redis: which chain answers requests for a number of dimensions."""

    def __init__(self, path: Path, registry: SharedRegistry) -> None:
        super().__init__(path, registry)
        self.registry = registry

    def assign(self, encoder_fingerprint: str, route: str, ref: str, replace: bool) -> str:
        """Set the chain that answers an encoder's requests for a number of dimensions, in Redis and in the local copy.

        Returns the chain that answers them now: an earlier one if `replace` is false and that chain still exists.

        Raises:
            UnavailableError: if Redis is unreachable.
        """

        def change(pipe: Pipeline) -> str:
            # All reads come before `multi`: after it, redis-py only queues commands.
            content: Any = pipe.hget(SIZE_ROUTES, encoder_fingerprint)
            routes = _parse_routes(content)
            is_routed = not replace and self.find_chain(routes, route) is not None
            pipe.multi()
            if is_routed:
                return routes[route]
            _queue_routes(pipe, encoder_fingerprint, routes | {route: ref})
            return ref

        chain = self.registry.transaction(change, SIZE_ROUTES)
        self.pull()
        return chain

    def pull(self) -> None:
        """Write the size routes that are in Redis to the local file, if they differ from it.

        Local size routes whose record in Redis is damaged are kept.

        Raises:
            UnavailableError: if Redis is unreachable, or holds another record than before.
            ArtifactError: if the record cannot be read; the copy stays unchanged.
        """
        with self.lock(), self.registry.connection.reached() as client:
            with convert_wrong_type_errors(ROUTES_NAME), client.pipeline(transaction=False) as pipe:
                pipe.hgetall(SIZE_ROUTES)
                pipe.get(IDENTITY)
                content, identity = pipe.execute()
            self.registry.require_same_identity(identity)
            routes_by_encoder = {}
            for fingerprint, routes in content.items():
                encoder = fingerprint.decode(errors="replace")
                try:
                    routes_by_encoder[encoder] = _parse_routes(routes)
                except ArtifactError as error:
                    note_damage("sizes", repr(encoder[:80]), str(error))
                    if (local_routes := self._read_local().get(encoder)) is not None:
                        routes_by_encoder[encoder] = local_routes
            written = json.dumps(routes_by_encoder, indent=1).encode()
            if not self.path.exists() or self.path.read_bytes() != written:
                replace_synced(self.path, written)

    def _read_local(self) -> dict[str, dict[str, str]]:
        try:
            return self.read()
        except ArtifactError:
            return {}

    def push(self) -> None:
        """Write the local size routes, without those to missing chains, of each encoder for which Redis has none."""
        names = set(self.chains.names())
        for fingerprint, routes in self._read_local().items():
            size_routes = {route: ref for route, ref in routes.items() if ref.partition("@")[0] in names}
            if not size_routes:
                continue

            def change(
                pipe: Pipeline, fingerprint: str = fingerprint, size_routes: dict[str, str] = size_routes
            ) -> None:
                with convert_wrong_type_errors(ROUTES_NAME):
                    known = pipe.hexists(SIZE_ROUTES, fingerprint)
                pipe.multi()
                if not known:
                    _queue_routes(pipe, fingerprint, size_routes)

            self.registry.connection.transaction(change, SIZE_ROUTES)


def _queue_routes(pipe: Pipeline, fingerprint: str, size_routes: dict[str, str]) -> None:
    pipe.hset(SIZE_ROUTES, fingerprint, json.dumps(size_routes))
    pipe.xadd(CHANGES, {"size_routes": fingerprint}, maxlen=MAX_CHANGES)


def _parse_routes(content: bytes | None) -> dict[str, str]:
    """Return an encoder's size routes, `{dimensions: chain}`, from JSON. Damage raises `ArtifactError`."""
    try:
        return parse_size_routes(parse_json(content or b"{}"))
    except (ValueError, AttributeError) as error:
        raise ArtifactError(f"the size routes in Redis cannot be read: {error!r}") from error
