"""What one server shares with other replicas through Redis, opened as one object, and its replicator thread.

The replicator keeps the local copy of what Redis holds up to date, and notices when Redis fails and returns.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import exceptions as redis_errors

from lathe.service.chains.names import is_name
from lathe.service.chains.registry import Registry, install_starters
from lathe.service.errors import UnavailableError
from lathe.service.home import Home
from lathe.service.redis.cache import COSINE, SharedCache
from lathe.service.redis.connection import DAMAGED, RedisConnection, as_unavailable, connect
from lathe.service.redis.registry import ROUTES_NAME, SharedRegistry
from lathe.service.redis.shared_versions import GRACE_SECONDS, SharedVersions
from lathe.service.redis.trained import SharedTrainedEncoders
from lathe.service.redis.version_record import CHANGES, IDENTITY
from lathe.transforms.errors import ArtifactError

BLOCK_SECONDS = 1.0
"""Seconds that a read of the change stream blocks; the connection is thus checked at least as often."""
ANSWER_SECONDS = 2.0
"""Seconds beyond those of a blocking read within which Redis must answer. A busy machine can take more than one."""
AGAIN_SECONDS = 0.5
"""Seconds between attempts to reach Redis."""
RETRY_SECONDS = 3.0
"""Default seconds between attempts to copy what could not be copied."""
FIRST_SECONDS = 3.0
"""Maximum seconds that startup waits for the first copy; then the service starts with what it has."""

log = logging.getLogger(__name__)


class Replicator:
    """Thread that copies each change in Redis to the local copies of chains of transforms and trained encoders.

    Everything is copied whenever Redis was unreachable, so that no change is missed; after that each change arrives
    through a stream within milliseconds. What cannot be copied does not stop the others.

    Args:
        connection: connection to Redis, which is marked as usable once the chains are copied.
        registry: registry whose copy is updated.
        trained: trained encoders whose copy is updated.
        retry_seconds: seconds between attempts to copy what could not be copied.

    Attributes:
        failures: what could not be copied, with the reason as a sentence and a function that tries again.
    """

    def __init__(
        self,
        connection: RedisConnection,
        registry: SharedRegistry,
        trained: SharedTrainedEncoders,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.connection = connection
        self.registry = registry
        self.trained = trained
        self.retry_seconds = retry_seconds
        self.failures: dict[str, tuple[str, Callable[[], None]]] = {}
        self.retry_at = 0.0
        self.client = connect(connection.url, BLOCK_SECONDS + ANSWER_SECONDS)
        self.stopping = threading.Event()
        self.tried = threading.Event()
        self.thread = threading.Thread(target=self.run, name="redis", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait up to 3 s for its first attempt to copy all chains of transforms."""
        self.connection.has_replicator = True
        self.thread.start()
        self.tried.wait(FIRST_SECONDS)

    def stop(self) -> None:
        """End the thread, waiting up to 5 s for it, and close the connection to Redis."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)
        self.client.close()

    def run(self) -> None:
        """Copy all chains and trained encoders from Redis to disk, then copy each change, until the thread is stopped.

        Redis is marked as usable once the chains are copied, as models take longer. After any error, or if Redis holds
        another record than before, Redis is marked as unusable and the thread starts over.
        """
        while not self.stopping.is_set():
            try:
                self.client.ping()
                self.connection.silent = False  # requests are sent again, though the copy may still be out of date
                position = self._copy_everything()
                self.connection.mark_up()
                self.tried.set()
                self._copy_trained_encoders()
                # Requests mark the connection as down too; then everything must be copied again.
                while not self.stopping.is_set() and self.connection.up:
                    self.registry.record.require_same_identity(self.client.get(IDENTITY))
                    position = self._copy_changes(position)
            except UnavailableError as error:
                self.connection.mark_down(error.message, error.code)
            except redis_errors.RedisError as error:
                self.connection.mark_down(as_unavailable(error).message)
            except OSError as error:
                self.connection.mark_down(f"this replica's copy of Redis cannot be written: {error.strerror}")
            except Exception:
                log.exception("copying changes from Redis failed; trying again")
                self.connection.mark_down("this replica's copy of Redis cannot be brought up to date; the log says why")
            self.tried.set()
            self.stopping.wait(AGAIN_SECONDS)

    def _copy_everything(self) -> Any:
        """Copy all chains of transforms and size routes from Redis, and check the settings of Redis.

        Returns the position in the change stream from which to read on.
        """
        # The position is read before anything is copied: a change in between is copied twice instead of never.
        newest: Any = self.client.xrevrange(CHANGES, count=1)
        self.bring_up_to_date()
        self.retry_at = time.monotonic() + self.retry_seconds
        self.connection.check_settings()
        return newest[0][0] if newest else "0-0"

    def _copy_changes(self, position: Any) -> Any:
        """Copy what changed in Redis after a position in the change stream, and return the new position.

        Waits up to `BLOCK_SECONDS` for changes. Every `retry_seconds`, what could not be copied is tried again.

        Args:
            position: position in the stream that was read last.
        """
        streams: Any = self.client.xread({CHANGES: position}, block=int(1000 * BLOCK_SECONDS))
        changes = [change for _, stream in streams for change in stream]
        for folder in (self.registry, self.trained):
            kind = folder.kind.encode()
            names = {content[kind].decode(errors="replace") for _, content in changes if kind in content}
            for name in sorted(filter(is_name, names)):
                self._copy_versions(folder, name)
        if changes:
            self._attempt(ROUTES_NAME, "sizes", self.registry.size_routes.pull)
            position = changes[-1][0]

        if time.monotonic() >= self.retry_at:
            self.retry()
            self.retry_at = time.monotonic() + self.retry_seconds
        return position

    def bring_up_to_date(self) -> None:
        """Write chains of transforms and size routes to Redis that it lacks, then copy all of them from Redis to disk.

        Failures are noted in `failures`.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
            OSError: if the local folder cannot be written.
        """
        self.failures.clear()
        self.registry.join_record()
        self.trained.record.join(grace_seconds=0)  # changes may come before its models are copied
        for name in self.registry.list_all_names():
            self._copy_versions(self.registry, name)
        self._attempt(ROUTES_NAME, "sizes", self.registry.size_routes.push)
        self._attempt(ROUTES_NAME, "sizes", self.registry.size_routes.pull)

    def _copy_trained_encoders(self) -> None:
        """Write trained encoders to Redis that it lacks, then copy all of them from Redis to disk.

        Failures are noted in `failures`.
        """
        self.trained.join_record()
        for name in self.trained.list_all_names():
            self._copy_versions(self.trained, name)

    def _copy_versions(self, folder: SharedVersions, name: str) -> None:
        self._attempt(f"the {folder.kind} {name}", folder.kind, partial(folder.pull, name))

    def retry(self) -> None:
        """Try again to copy everything in `failures`, as the disk may have space by now."""
        for _, again in list(self.failures.values()):
            again()

    def _attempt(self, what: str, kind: str, pull: Callable[[], None]) -> None:
        """Call `pull`, which copies what `what` names, and note a failure in `failures` until it succeeds.

        A failure is logged if it is new, and damage is counted by kind.
        """
        try:
            pull()
        except (ArtifactError, OSError) as error:
            if isinstance(error, ArtifactError):
                DAMAGED.labels(kind).inc()
            if what not in self.failures:
                log.error("%s cannot be copied: %s; the live version stays", what, error)
            why = getattr(error, "strerror", None) or str(error)  # without the path, which callers need not know
            sentence = f"{what} cannot be copied from Redis: {why}; the live version stays"
            self.failures[what] = sentence, partial(self._attempt, what, kind, pull)
        else:
            if self.failures.pop(what, None) is not None:
                log.info("%s is copied now", what)

    def warnings(self) -> list[str]:
        """Return a sentence for each chain, trained encoder or set of size routes that could not be copied."""
        return [sentence for sentence, _ in list(self.failures.values())]


@dataclass(frozen=True)
class Replica:
    """What one server shares through Redis: chains, trained encoders, a cache, and the thread that copies changes."""

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
        """Return this server's copy of what replicas share, with the starter chains installed.

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
        """Copy chains of transforms and size routes from Redis once, for a command that does not serve.

        Raises:
            UnavailableError: if Redis is unreachable.
        """
        self.replicator.bring_up_to_date()

    def describe(self) -> dict[str, Any]:
        """Return for `/info` whether Redis is up, its problem or None, and dtype and accuracy of the shared cache."""
        cache = {"dtype": "float16", "cosine": COSINE} if self.cache is not None else None
        return {"up": self.connection.up, "problem": self.connection.problem, "cache": cache}

    def warnings(self) -> list[str]:
        """Return a sentence for each current problem with Redis or with the local copy."""
        problem = self.connection.problem
        outage = [f"{problem}; fits, jobs and administration wait for it"] if problem else []
        danger = [self.connection.danger] if self.connection.danger else []
        unexpected = [self.cache.unexpected.message] if self.cache and self.cache.unexpected.message else []
        refused = [*self.registry.refused.values(), *self.trained.refused.values()]
        return [*outage, *danger, *unexpected, *self.replicator.warnings(), *refused]
