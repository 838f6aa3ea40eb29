"""Size routes of all replicas: stored in Redis and, like the chains, read from a copy on disk."""

import json
from pathlib import Path
from typing import Any

from redis.client import Pipeline

from lathe.service.chains.size_routes import SizeRoutes, parse_size_routes
from lathe.service.redis.chain_record import CHANGES, CHANGES_KEPT, IDENTITY
from lathe.service.redis.connection import RedisConnection
from lathe.service.redis.damage import convert_wrong_type_errors, note_damage
from lathe.service.redis.registry import SharedRegistry
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import replace_synced

SIZE_ROUTES = "lathe:places"
ROUTES_NAME = "which chain answers which size"
"""Name of the size routes in error messages."""


class SharedSizeRoutes(SizeRoutes):
    """The size routes of all encoders, in Redis.

    Args:
        path: file of the local copy.
        registry: registry of the chains.
        connection: connection to Redis.
    """

    def __init__(self, path: Path, registry: SharedRegistry, connection: RedisConnection) -> None:
        super().__init__(path, registry)
        self.registry: SharedRegistry = registry
        self.connection = connection

    def assign(self, encoder_fingerprint: str, route: str, ref: str, replace: bool) -> str:
        """Route an encoder's requests for a size to a chain, in Redis and in the local copy; return the size's chain.

        Args:
            encoder_fingerprint: encoder whose vectors the chain takes.
            route: number of dimensions, or `nested` for all that a nested chain can be cut to.
            ref: chain, as `name` or `name@version`.
            replace: whether to replace a chain that the route leads to already; else that chain keeps the route.

        Raises:
            UnavailableError: if Redis is unreachable.
        """

        def change(pipe: Pipeline) -> str:
            """Queue the new route, unless it is taken and may not be replaced; return the route's chain."""
            found: Any = pipe.hget(SIZE_ROUTES, encoder_fingerprint)
            mine = _parse_routes(found)
            taken = not replace and self.find_chain(mine, route) is not None
            pipe.multi()
            if taken:
                return mine[route]
            _queue_routes(pipe, encoder_fingerprint, mine | {route: ref})
            return ref

        chain = self.registry.record.transaction(change, SIZE_ROUTES)
        self.pull()
        return chain

    def pull(self) -> None:
        """Replace the local copy by the size routes in Redis, if they differ; keep those that are damaged in Redis.

        Raises:
            UnavailableError: if Redis is unreachable, or holds another record than before.
            ArtifactError: if the record cannot be read; the copy stays unchanged.
        """
        with self.lock(), self.connection.reached() as client:
            with convert_wrong_type_errors(ROUTES_NAME), client.pipeline(transaction=False) as pipe:
                pipe.hgetall(SIZE_ROUTES)
                pipe.get(IDENTITY)
                content, identity = pipe.execute()
            self.registry.record.require_same_identity(identity)
            found = {
                name: size_routes
                for item in content.items()
                for name, size_routes in self._parse_or_read_local(*item).items()
            }
            written = json.dumps(found, indent=1).encode()
            if not self.path.exists() or self.path.read_bytes() != written:
                replace_synced(self.path, written)

    def _parse_or_read_local(self, fingerprint: bytes, content: bytes) -> dict[str, dict[str, str]]:
        """Return `{fingerprint: size routes}` of one encoder from their content in Redis.

        If that is damaged, note it and return those of the local copy; empty if it has none.
        """
        name = fingerprint.decode(errors="replace")
        try:
            return {name: _parse_routes(content)}
        except ArtifactError as error:
            note_damage("sizes", repr(name[:80]), str(error))
        mine = self._read_local().get(name)
        return {} if mine is None else {name: mine}

    def _read_local(self) -> dict[str, dict[str, str]]:
        """Return the size routes in the local copy; empty if it is damaged."""
        try:
            return self.read()
        except ArtifactError:
            return {}

    def push(self) -> None:
        """Write the local size routes to Redis for each encoder that has none there; skip routes to missing chains."""
        names = set(self.registry.names())
        for fingerprint, routes in self._read_local().items():
            size_routes = {route: ref for route, ref in routes.items() if ref.partition("@")[0] in names}
            if not size_routes:
                continue

            def change(
                pipe: Pipeline, fingerprint: str = fingerprint, size_routes: dict[str, str] = size_routes
            ) -> None:
                """Queue the encoder's size routes unless Redis has some."""
                with convert_wrong_type_errors(ROUTES_NAME):
                    known = pipe.hexists(SIZE_ROUTES, fingerprint)
                pipe.multi()
                if not known:
                    _queue_routes(pipe, fingerprint, size_routes)

            self.connection.transaction(change, SIZE_ROUTES)


def _queue_routes(pipe: Pipeline, fingerprint: str, size_routes: dict[str, str]) -> None:
    """Queue an encoder's size routes for writing, and a notification in the change stream."""
    pipe.hset(SIZE_ROUTES, fingerprint, json.dumps(size_routes))
    pipe.xadd(CHANGES, {"size_routes": fingerprint}, maxlen=CHANGES_KEPT)


def _parse_routes(content: bytes | None) -> dict[str, str]:
    """Parse an encoder's size routes; None gives an empty mapping.

    Raises:
        ArtifactError: if the content is damaged.
    """
    try:
        return parse_size_routes(json.loads(content or b"{}"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"the size routes in Redis cannot be read: {error!r}") from error
