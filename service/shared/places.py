"""Size routes of all replicas: stored in Redis and, like the chains, read from a copy on disk."""

import json
from pathlib import Path
from typing import Any

from redis.client import Pipeline

from service.places import Places, parse_places
from service.shared.damage import note_damage, wrong_types_are_damage
from service.shared.link import RedisLink
from service.shared.record import CHANGES, CHANGES_KEPT, IDENTITY
from service.shared.registry import SharedRegistry
from transforms.errors import ArtifactError
from transforms.files import replace_synced

PLACES = "lathe:places"
SIZES = "which chain answers which size"
"""Name of the size routes in error messages."""


class SharedPlaces(Places):
    """The size routes of all encoders, in Redis.

    Args:
        path: file of the local copy.
        registry: registry of the chains.
        link: connection to Redis.
    """

    def __init__(self, path: Path, registry: SharedRegistry, link: RedisLink) -> None:
        super().__init__(path, registry)
        self.registry: SharedRegistry = registry
        self.link = link

    def assign(self, encoder_fingerprint: str, place: str, ref: str, replace: bool) -> str:
        """Route a size (`place`) to a chain in Redis and update the local copy; see `Places.assign`.

        Raises:
            UnavailableError: if Redis is unreachable.
        """

        def change(pipe: Pipeline) -> str:
            """Queue the new route, unless it is taken and may not be replaced; return the route's chain."""
            found: Any = pipe.hget(PLACES, encoder_fingerprint)
            mine = parsed(found)
            taken = not replace and self.occupant(mine, place) is not None
            pipe.multi()
            if taken:
                return mine[place]
            write(pipe, encoder_fingerprint, mine | {place: ref})
            return ref

        occupant = self.registry.transaction(change, PLACES)
        self.pull()
        return occupant

    def pull(self) -> None:
        """Replace the local copy by the size routes in Redis, if they differ.

        Raises:
            UnavailableError: if Redis is unreachable.
            ArtifactError: if the record cannot be read; the copy stays unchanged.
        """
        with self.locked(), self.link.reached() as client:
            with wrong_types_are_damage(SIZES), client.pipeline(transaction=False) as pipe:
                pipe.hgetall(PLACES)
                pipe.get(IDENTITY)
                content, identity = pipe.execute()
            self.registry.require_mine(identity)
            found = {name: places for item in content.items() for name, places in self.readable(*item).items()}
            written = json.dumps(found, indent=1).encode()
            if not self.path.exists() or self.path.read_bytes() != written:
                replace_synced(self.path, written)

    def readable(self, fingerprint: bytes, content: bytes) -> dict[str, dict[str, str]]:
        """Return an encoder's size routes by its fingerprint, from the local copy if those in Redis are damaged."""
        name = fingerprint.decode(errors="replace")
        try:
            return {name: parsed(content)}
        except ArtifactError as error:
            note_damage("sizes", repr(name[:80]), str(error))
        mine = self.read_or_nothing().get(name)
        return {} if mine is None else {name: mine}

    def read_or_nothing(self) -> dict[str, dict[str, str]]:
        """Return the size routes in the local copy; empty if it is damaged."""
        try:
            return self.read()
        except ArtifactError:
            return {}

    def push(self) -> None:
        """Write the local size routes of encoders that Redis has none of to Redis, except those of missing chains."""
        names = set(self.registry.names())
        for fingerprint, given in self.read_or_nothing().items():  # if damaged here, Redis has them
            places = {place: ref for place, ref in given.items() if ref.partition("@")[0] in names}
            if not places:
                continue

            def change(pipe: Pipeline, fingerprint: str = fingerprint, places: dict[str, str] = places) -> None:
                """Queue the encoder's size routes unless Redis has some."""
                with wrong_types_are_damage(SIZES):
                    known = pipe.hexists(PLACES, fingerprint)
                pipe.multi()
                if not known:
                    write(pipe, fingerprint, places)

            self.link.transaction(change, PLACES)


def write(pipe: Pipeline, fingerprint: str, places: dict[str, str]) -> None:
    """Queue an encoder's size routes for writing, and a notification in the change stream."""
    pipe.hset(PLACES, fingerprint, json.dumps(places))
    pipe.xadd(CHANGES, {"places": fingerprint}, maxlen=CHANGES_KEPT)


def parsed(content: bytes | None) -> dict[str, str]:
    """Parse an encoder's size routes; None gives an empty mapping.

    Raises:
        ArtifactError: if the content is damaged.
    """
    try:
        return parse_places(json.loads(content or b"{}"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"the places in Redis cannot be read: {error!r}") from error
