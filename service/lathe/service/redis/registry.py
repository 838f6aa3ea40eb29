"""The shared registry: chains whose record and files are in Redis, served from a copy on disk.

Size routes of all replicas, stored in Redis and, like the chains, read from a copy on disk.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from redis.client import Pipeline

from lathe.service.chains.chain_folder import ChainFolder, SizeRoutes, parse_size_routes
from lathe.service.chains.loaded_chain import LoadedChain, load_chain
from lathe.service.chains.names import require_name
from lathe.service.chains.registry import Registry
from lathe.service.chains.version_folder import VersionFolder
from lathe.service.redis.connection import RedisConnection, convert_wrong_type_errors, note_damage
from lathe.service.redis.shared_versions import GRACE_SECONDS, SharedVersions, Upload
from lathe.service.redis.version_record import (
    CHANGES,
    CHANGES_KEPT,
    IDENTITY,
    SharedRecord,
)
from lathe.transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitDistribution, read_file
from lathe.transforms.chain import Chain
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import parse_json, parse_json_object, replace_synced


class SharedRegistry(SharedVersions, Registry):
    """The registry of chains of transforms that all replicas share in Redis, with a copy of it in a folder.

    Args:
        root: folder of the copy; processes may share it.
        connection: connection to Redis.
        grace_seconds: see `SharedVersions.connect`.
    """

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        Registry.__init__(self, root)
        self.connect(connection, grace_seconds)
        self.size_routes: _SharedSizeRoutes = _SharedSizeRoutes(self.size_routes.path, self, self.record)

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

    def publish(
        self,
        chain: Chain,
        name: str,
        promote: bool | None,
        job: str | None = None,
        distribution: FitDistribution | None = None,
    ) -> tuple[int, bool]:
        """Add a fitted chain of transforms as the next version of its name, in Redis and on disk.

        Returns the version, and whether it is live. A job that runs twice publishes once. The arguments are those of
        `Registry.publish`.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        require_name(name)
        with tempfile.TemporaryDirectory() as scratch:

            def prepare(version: int) -> tuple[bytes, dict[str, Path]]:
                # Called again with the next number if another replica takes this one meanwhile.
                folder = Path(scratch) / str(version)
                chain.save(folder, {"name": name, "version": version}, distribution)
                return read_file(folder, MANIFEST), {path: folder / path for path in (TENSORS, DISTRIBUTION)}

            outcome = self.publish_files(name, promote, job, prepare)
        self.pull_if_reachable(name)
        return outcome

    def import_chain(self, name: str, source: Registry) -> bool:
        """Copy a chain of transforms from another registry to Redis and disk, unless its name was ever used.

        Returns whether it was copied.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        imported = self.push(name, source)
        self.pull(name)
        return imported

    def upload_version(self, source: VersionFolder, name: str, version: int) -> Upload:
        """Write a version's files from a folder to Redis, once its chain of transforms was loaded from them.

        Raises:
            ArtifactError: if they are damaged.
            UnavailableError: if Redis is unreachable, or full.
        """
        load_chain(source.root / name / str(version), source.links_within)
        return super().upload_version(source, name, version)

    def list_files(self, manifest: bytes) -> dict[str, str | None]:
        """Return the files of a version of a chain of transforms as `{relative path: SHA-256}`.

        They are the tensors, and the fit distribution with None.

        Raises:
            ValueError: if the manifest is damaged.
        """
        return {TENSORS: str(parse_json_object(manifest).get("tensors_sha256")), DISTRIBUTION: None}


SIZE_ROUTES = "lathe:size_routes"
ROUTES_NAME = "which chain answers which size"
"""Name of the size routes in error messages."""


class _SharedSizeRoutes(SizeRoutes):
    """The size routes of all encoders, in Redis: which chain answers requests for a number of dimensions."""

    def __init__(self, path: Path, chains: ChainFolder, record: SharedRecord) -> None:
        super().__init__(path, chains)
        self.record = record

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

        chain = self.record.transaction(change, SIZE_ROUTES)
        self.pull()
        return chain

    def pull(self) -> None:
        """Write the size routes that are in Redis to the local file, if they differ from it.

        Local size routes whose record in Redis is damaged are kept.

        Raises:
            UnavailableError: if Redis is unreachable, or holds another record than before.
            ArtifactError: if the record cannot be read; the copy stays unchanged.
        """
        with self.lock(), self.record.connection.reached() as client:
            with convert_wrong_type_errors(ROUTES_NAME), client.pipeline(transaction=False) as pipe:
                pipe.hgetall(SIZE_ROUTES)
                pipe.get(IDENTITY)
                content, identity = pipe.execute()
            self.record.require_same_identity(identity)
            routes_by_encoder = {
                name: size_routes
                for item in content.items()
                for name, size_routes in self._parse_or_read_local(*item).items()
            }
            written = json.dumps(routes_by_encoder, indent=1).encode()
            if not self.path.exists() or self.path.read_bytes() != written:
                replace_synced(self.path, written)

    def _parse_or_read_local(self, fingerprint: bytes, content: bytes) -> dict[str, dict[str, str]]:
        """Return one encoder's size routes, as `{fingerprint: {dimensions: chain}}`, from Redis or else the local copy.

        The local copy is read if the routes in Redis are damaged. The damage is counted. The result is empty if the
        local copy has none either.
        """
        name = fingerprint.decode(errors="replace")
        try:
            return {name: _parse_routes(content)}
        except ArtifactError as error:
            note_damage("sizes", repr(name[:80]), str(error))
        local_routes = self._read_local().get(name)
        return {} if local_routes is None else {name: local_routes}

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

            self.record.connection.transaction(change, SIZE_ROUTES)


def _queue_routes(pipe: Pipeline, fingerprint: str, size_routes: dict[str, str]) -> None:
    pipe.hset(SIZE_ROUTES, fingerprint, json.dumps(size_routes))
    pipe.xadd(CHANGES, {"size_routes": fingerprint}, maxlen=CHANGES_KEPT)


def _parse_routes(content: bytes | None) -> dict[str, str]:
    """Return an encoder's size routes, `{dimensions: chain}`, from JSON. Damage raises `ArtifactError`."""
    try:
        return parse_size_routes(parse_json(content or b"{}"))
    except (ValueError, AttributeError) as error:
        raise ArtifactError(f"the size routes in Redis cannot be read: {error!r}") from error
