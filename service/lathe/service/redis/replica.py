"""What one server shares with other replicas through Redis, opened as one object."""

from dataclasses import dataclass
from typing import Any

from lathe.service.chains.registry import Registry, install_starters
from lathe.service.home import Home
from lathe.service.redis.cache import COSINE, SharedCache
from lathe.service.redis.connection import RedisConnection
from lathe.service.redis.registry import SharedRegistry
from lathe.service.redis.replicator import RETRY_SECONDS, Replicator
from lathe.service.redis.shared_versions import GRACE_SECONDS
from lathe.service.redis.trained import SharedTrainedEncoders


@dataclass(frozen=True)
class Replica:
    """What replicas share, chains, trained encoders and a cache, and the thread that keeps the copies up to date."""

    connection: RedisConnection
    registry: SharedRegistry
    trained: SharedTrainedEncoders
    replicator: Replicator
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
        """Open this server's copy of the shared chains, install the starter chains, and return the replica.

        Nothing is requested from Redis yet.

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
        chains = home.shared_chains
        install_starters(Registry(chains))  # a new Redis gets them from this copy
        connection = RedisConnection(url)
        registry = SharedRegistry(chains, connection, grace_seconds)
        trained = SharedTrainedEncoders(home.shared_trained, connection, grace_seconds)
        cache = SharedCache(connection, cache_bytes, cache_seconds) if cache_bytes else None
        return cls(connection, registry, trained, Replicator(connection, registry, trained, retry_seconds), cache)

    def start(self) -> None:
        """Start the threads that copy changes from Redis and fill the cache. Waits a few seconds for the first copy."""
        self.replicator.start()
        if self.cache is not None:
            self.cache.start()

    def stop(self) -> None:
        """Stop the threads that copy changes from Redis and fill the cache, and close the connections."""
        self.replicator.stop()
        if self.cache is not None:
            self.cache.stop()
        self.connection.close()

    def bring_up_to_date(self) -> None:
        """Copy chains and size routes from Redis once, for a command that does not serve.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        self.replicator.bring_up_to_date()

    def describe(self) -> dict[str, Any]:
        """Return the state of Redis and the shared cache as JSON for `/info`."""
        cache = {"dtype": "float16", "cosine": COSINE} if self.cache is not None else None
        return {"up": self.connection.up, "problem": self.connection.problem, "cache": cache}

    def warnings(self) -> list[str]:
        """Return a sentence for each current problem with Redis or the local copy, for `/health`."""
        problem = self.connection.problem
        outage = [f"{problem}; fits, jobs and administration wait for it"] if problem else []
        danger = [self.connection.danger] if self.connection.danger else []
        unexpected = [self.cache.unexpected.message] if self.cache and self.cache.unexpected.message else []
        refused = [*self.registry.refused.values(), *self.trained.refused.values()]
        return [*outage, *danger, *unexpected, *self.replicator.warnings(), *refused]
