"""A server's share in what replicas have in common, opened as one object."""

from dataclasses import dataclass
from typing import Any

from service.home import Home
from service.places import Places
from service.registry import Registry
from service.shared.cache import COSINE, SharedCache
from service.shared.copy import Copy
from service.shared.follower import RETRY_SECONDS, Follower
from service.shared.link import RedisLink
from service.shared.places import SharedPlaces
from service.shared.registry import GRACE_SECONDS, SharedRegistry
from service.starters import install_starters


@dataclass(frozen=True)
class Replica:
    """The chains, size routes and cache that replicas share, and the thread that keeps the local copy up to date."""

    link: RedisLink
    registry: SharedRegistry
    places: SharedPlaces
    copy: Copy
    follower: Follower
    cache: SharedCache | None

    @classmethod
    def open(
        cls,
        home: Home,
        url: str,
        cache_bytes: int = 0,
        cache_seconds: int = 0,
        retry_seconds: float = RETRY_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> "Replica":
        """Open the local copy in a state folder and install the starter chains; nothing is requested from Redis yet.

        Args:
            home: the state folder.
            url: URL of Redis.
            cache_bytes: bytes for vectors of texts in Redis; 0 for no shared cache.
            cache_seconds: maximum time that vectors are kept.
            retry_seconds: seconds between attempts to copy what could not be copied.
            grace_seconds: seconds that a new replica waits for others to start the record in an empty Redis.

        Raises:
            OSError: if the local copy cannot be written.
        """
        chains, places_file = home.shared / "chains", home.shared / "places.json"
        on_disk = Registry(chains)
        install_starters(on_disk, Places(places_file, on_disk))  # a new Redis is given them from here
        link = RedisLink(url)
        registry = SharedRegistry(chains, link, grace_seconds)
        places = SharedPlaces(places_file, registry, link)
        cache = SharedCache(link, cache_bytes, cache_seconds) if cache_bytes else None
        copy = Copy(registry, places)
        return cls(link, registry, places, copy, Follower(link, copy, retry_seconds), cache)

    def start(self) -> None:
        """Start the replicator, waiting a few seconds for the first copy, and the shared cache."""
        self.follower.start()
        if self.cache is not None:
            self.cache.start()

    def stop(self) -> None:
        """Stop the replicator and the shared cache, and close the connections."""
        self.follower.stop()
        if self.cache is not None:
            self.cache.stop()
        self.link.close()

    def bring_up_to_date(self) -> None:
        """Copy everything from Redis once, for a command that does not serve.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        self.copy.bring_up_to_date()

    def describe(self) -> dict[str, Any]:
        """Return the state of Redis and the shared cache as JSON for `/info`."""
        cache = {"dtype": "float16", "cosine": COSINE} if self.cache is not None else None
        return {"up": self.link.up, "problem": self.link.problem, "cache": cache}

    def warnings(self) -> list[str]:
        """Return all current problems with Redis and the local copy, as sentences for `/health`."""
        problem = self.link.problem
        gone = [f"{problem}; fits, jobs and administration wait for it"] if problem else []
        danger = [self.link.danger] if self.link.danger else []
        return [*gone, *danger, *self.copy.warnings(), *self.registry.refused.values()]
