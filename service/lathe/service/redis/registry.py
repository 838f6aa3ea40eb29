"""The shared registry: chains whose record and files are in Redis, served from a copy on disk.

lathe:artifact:<name>:<version>   hash: the files of a chain's version

Size routes of all replicas, stored in Redis and, like the chains, read from a copy on disk.
"""

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from redis.client import Pipeline

from lathe.service.chains.chain_folder import ChainFolder, SizeRoutes, parse_size_routes
from lathe.service.chains.loaded_chain import LoadedChain, load_chain
from lathe.service.chains.names import require_name
from lathe.service.chains.registry import Registry
from lathe.service.chains.version_folder import VersionFolder
from lathe.service.redis.connection import RedisConnection, convert_wrong_type_errors, note_damage
from lathe.service.redis.shared_versions import GRACE_SECONDS, SharedVersions, StagedFiles
from lathe.service.redis.version_record import (
    CHANGES,
    CHANGES_KEPT,
    IDENTITY,
    SharedRecord,
    VersionStamp,
    build_key,
    compute_digest,
    read_record,
)
from lathe.transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitDistribution, read_file
from lathe.transforms.chain import Chain
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import parse_json, replace_synced, write_synced


class ChainFiles(NamedTuple):
    """The files of a chain's version, by their names in Redis.

    `reference` is the fit distribution; None if there is none.
    """

    manifest: bytes
    tensors: bytes
    reference: bytes | None = None

    @classmethod
    def read(cls, folder: Path, root: Path | None = None) -> "ChainFiles":
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


class SharedRegistry(SharedVersions, Registry):
    """The registry of all replicas, with a copy of its chains and size routes in a folder.

    Args:
        root: folder of the copy; processes may share it.
        connection: connection to Redis.
        grace_seconds: see `SharedVersions.connect`.
    """

    def __init__(self, root: Path, connection: RedisConnection, grace_seconds: float = GRACE_SECONDS) -> None:
        Registry.__init__(self, root)
        self.connect(connection, grace_seconds)
        self.size_routes: SharedSizeRoutes = SharedSizeRoutes(self.size_routes.path, self, self.record)

    def load(self, ref: str) -> LoadedChain:
        """Load the chain that a reference such as `name@2` names. A version damaged on disk is fetched again.

        The chain comes from memory or disk. The damaged version is deleted and fetched from Redis.

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
        """Add a fitted chain as its next version, in Redis and on disk. Return the version, and whether it is live.

        A job that runs twice publishes once. The arguments are those of `Registry.publish`.

        Returns:
            The version, and whether it is live.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        require_name(name)

        def change(pipe: Pipeline) -> tuple[int, bool]:
            record = read_record(pipe, self.kind, name)
            # A job whose worker was lost runs again, perhaps after it has published.
            if (published := record.find_published(job)) is not None:
                pipe.multi()
                return published, record.pointer.live == published
            version = record.next_version
            staged = stage_files(name, version, serialize_version(chain, name, version, distribution), job)
            return self.add_version(pipe, record, name, promote, staged)

        outcome = self.record.transaction(change, build_key(self.kind, name))
        self.pull_if_reachable(name)
        return outcome

    def import_chain(self, name: str, source: Registry) -> bool:
        """Copy a chain from another registry, unless its name was ever used. Return whether it was copied.

        It is copied to Redis and to disk.

        Returns:
            Whether the chain was copied.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        imported = self.push(name, source)
        self.pull(name)
        return imported

    def stage_files(self, source: VersionFolder, name: str, version: int) -> StagedFiles:
        """Read a version's files from a folder, and return them as a transaction writes them.

        Raises:
            ArtifactError: if they are damaged.
        """
        folder = source.root / name / str(version)
        load_chain(folder, source.links_within)  # raises before a stamp says that the version is intact
        files = ChainFiles.read(folder, source.links_within)
        return stage_files(name, version, files)

    def fetch_manifest(self, name: str, version: int, stamp: VersionStamp) -> bytes | None:
        """Read a version's manifest from Redis. None if there is none."""
        with self.connection.reached() as client:
            content: Any = client.hget(build_files_key(name, version), "manifest")
        manifest: bytes | None = content
        return manifest

    def fetch_files(self, name: str, version: int, stamp: VersionStamp, manifest: bytes, folder: Path) -> bool:
        """Write tensors and fit distribution from Redis to a folder. Return whether the tensors' digest is right.

        The digest of the fit distribution is checked when that is read.
        """
        with self.connection.reached() as client:
            files: Any = client.hmget(build_files_key(name, version), "tensors", "reference")
        tensors, distribution = files
        if tensors is None or compute_digest(tensors) != parse_json(manifest).get("tensors_sha256"):
            return False
        write_synced(folder / TENSORS, tensors)
        if distribution is not None:
            write_synced(folder / DISTRIBUTION, distribution)
        return True

    def delete_files(self, pipe: Pipeline, name: str, version: int, stamp: VersionStamp) -> None:
        """Queue a Redis command on `pipe` that deletes a version's files."""
        pipe.delete(build_files_key(name, version))


def stage_files(name: str, version: int, files: ChainFiles, job: str | None = None) -> StagedFiles:
    """Return the files of a chain's version as a transaction writes them.

    Args:
        name: name of the chain.
        version: number of the version.
        files: the files.
        job: id of the job that publishes the version; None without a job.
    """
    fields: Any = {field: content for field, content in files._asdict().items() if content is not None}
    key = build_files_key(name, version)
    return StagedFiles(VersionStamp(compute_digest(files.manifest), job), lambda pipe: pipe.hset(key, mapping=fields))


def serialize_version(chain: Chain, name: str, version: int, distribution: FitDistribution | None = None) -> ChainFiles:
    """Return the contents of the files in which a chain is saved as a version, by way of a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / str(version)
        chain.save(path, {"name": name, "version": version}, distribution)
        return ChainFiles.read(path)


def build_files_key(name: str, version: int) -> str:
    """Return the Redis key of the files of a chain's version."""
    return f"lathe:artifact:{name}:{version}"


SIZE_ROUTES = "lathe:size_routes"
ROUTES_NAME = "which chain answers which size"
"""Name of the size routes in error messages."""


class SharedSizeRoutes(SizeRoutes):
    """The size routes of all encoders, in Redis."""

    def __init__(self, path: Path, chains: ChainFolder, record: SharedRecord) -> None:
        super().__init__(path, chains)
        self.record = record

    def assign(self, encoder_fingerprint: str, route: str, ref: str, replace: bool) -> str:
        """Set the chain that answers an encoder's requests for a number of dimensions. Return the chain now set.

        It is written to Redis and to the local copy.

        Returns:
            The chain that the size is routed to; an earlier one if `replace` is false and its chain still exists.

        Raises:
            UnavailableError: if Redis is unreachable.
        """

        def change(pipe: Pipeline) -> str:
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
        """Parse one encoder's size routes from Redis to `{fingerprint: {dimensions: chain}}`.

        If they are damaged, that is noted and those of the local copy are returned. The result is empty if it has none.
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
        """Write the local size routes of each encoder to Redis if it has none there. Skips routes to missing chains."""
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
    try:
        return parse_size_routes(parse_json(content or b"{}"))
    except (ValueError, AttributeError) as error:
        raise ArtifactError(f"the size routes in Redis cannot be read: {error!r}") from error
