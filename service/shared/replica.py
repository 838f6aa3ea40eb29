"""A replica's part in what is shared, opened as one."""

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
    """Chains and places of all replicas, and what keeps this one's copy up to date."""

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
        """Open the copy in a state folder; Redis is not asked for anything yet.

        Args:
            home: the state folder.
            url: of Redis.
            cache_bytes: for vectors of texts seen before; 0 for no such cache.
            cache_seconds: that they are kept.
            retry_seconds: between tries to copy what could not be copied.
            grace_seconds: that a new copy lets others go first where Redis has no record.

        Raises:
            OSError: if the copy cannot be written.
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
        """Follow what others change; waits a moment for the first copy."""
        self.follower.start()
        if self.cache is not None:
            self.cache.start()

    def stop(self) -> None:
        """Follow no longer, and let go of Redis."""
        self.follower.stop()
        if self.cache is not None:
            self.cache.stop()
        self.link.close()

    def bring_up_to_date(self) -> None:
        """Copy everything once, for a command that does not serve.

        Raises:
            UnavailableError: without Redis.
        """
        self.copy.bring_up_to_date()

    def describe(self) -> dict[str, Any]:
        """What `/info` says of it."""
        cache = {"dtype": "float16", "cosine": COSINE} if self.cache is not None else None
        return {"up": self.link.up, "problem": self.link.problem, "cache": cache}

    def warnings(self) -> list[str]:
        """What is wrong, for `/health`."""
        problem = self.link.problem
        gone = [f"{problem}; fits, jobs and administration wait for it"] if problem else []
        danger = [self.link.danger] if self.link.danger else []
        return [*gone, *danger, *self.copy.warnings(), *self.registry.refused.values()]
