"""Which chain answers which size, for all replicas; read from a copy on disk like the chains."""

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
"""What errors call them."""


class SharedPlaces(Places):
    """The places of all encoders, in Redis.

    Args:
        path: of this replica's copy.
        registry: whose chains take the places.
        link: to Redis.
    """

    def __init__(self, path: Path, registry: SharedRegistry, link: RedisLink) -> None:
        super().__init__(path, registry)
        self.registry: SharedRegistry = registry
        self.link = link

    def assign(self, encoder_fingerprint: str, place: str, ref: str, replace: bool) -> str:
        """Give a place to a chain; see `Places.assign`.

        Raises:
            UnavailableError: without Redis.
        """

        def change(pipe: Pipeline) -> str:
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
        """Bring this replica's copy up to date.

        Raises:
            UnavailableError: without Redis.
            ArtifactError: if the record cannot be read; the copy stays as it was.
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
        """Return an encoder's places by its fingerprint; those of this replica's copy if Redis's are damaged."""
        name = fingerprint.decode(errors="replace")
        try:
            return {name: parsed(content)}
        except ArtifactError as error:
            note_damage("sizes", repr(name[:80]), str(error))
        mine = self.read_or_nothing().get(name)
        return {} if mine is None else {name: mine}

    def read_or_nothing(self) -> dict[str, dict[str, str]]:
        """Return the places of this replica's copy; none if that is damaged."""
        try:
            return self.read()
        except ArtifactError:
            return {}

    def push(self) -> None:
        """Give Redis the places of encoders it has never heard of, but for those of chains it has not."""
        names = set(self.registry.names())
        for fingerprint, given in self.read_or_nothing().items():  # if damaged here, Redis has them
            places = {place: ref for place, ref in given.items() if ref.partition("@")[0] in names}
            if not places:
                continue

            def change(pipe: Pipeline, fingerprint: str = fingerprint, places: dict[str, str] = places) -> None:
                with wrong_types_are_damage(SIZES):
                    known = pipe.hexists(PLACES, fingerprint)
                pipe.multi()
                if not known:
                    write(pipe, fingerprint, places)

            self.link.transaction(change, PLACES)


def write(pipe: Pipeline, fingerprint: str, places: dict[str, str]) -> None:
    """Queue an encoder's places, and word of it for all replicas."""
    pipe.hset(PLACES, fingerprint, json.dumps(places))
    pipe.xadd(CHANGES, {"places": fingerprint}, maxlen=CHANGES_KEPT)


def parsed(content: bytes | None) -> dict[str, str]:
    """An encoder's places.

    Raises:
        ArtifactError: if they were damaged.
    """
    try:
        return parse_places(json.loads(content or b"{}"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"the places in Redis cannot be read: {error!r}") from error
