"""What one server shares with other replicas through Redis, opened as one object, with its replicator thread.

The replicator keeps the local copy of what Redis holds up to date, and notices when Redis fails and returns.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from redis import exceptions as redis_errors

from lathe.service.chains.names import is_name
from lathe.service.chains.registry import Registry, install_starters
from lathe.service.errors import UnavailableError
from lathe.service.home import Home
from lathe.service.redis.cache import COSINE, SharedCache
from lathe.service.redis.connection import DAMAGED, RedisConnection, as_unavailable, connect
from lathe.service.redis.registry import ROUTES_NAME, SharedRegistry, SharedTrainedEncoders
from lathe.service.redis.shared_versions import GRACE_SECONDS, IDENTITY, SharedVersions
from lathe.service.redis.version_record import CHANGES
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


class Replica:
    """What one server shares through Redis: chains, trained encoders, a cache, and the thread that copies changes.

    Everything is copied whenever Redis was unreachable, so that no change is missed; after that each change arrives
    through a stream within milliseconds. What cannot be copied does not stop the others.

    The starter chains are installed in the local copy. Nothing is requested from Redis before `start`.

    Args:
        home: the state folder.
        url: URL of Redis.
        cache_bytes: bytes for vectors of texts in Redis; 0 for no shared cache.
        cache_seconds: maximum time that vectors are kept.
        retry_seconds: seconds between attempts to copy what could not be copied.
        grace_seconds: seconds that a new replica waits for others to start the record in an empty Redis.

    Attributes:
        connection: connection to Redis, which is marked as usable once the chains are copied.
        failures: what could not be copied, with the reason as a sentence and a function that tries again.

    Raises:
        OSError: if the local copy cannot be written.
    """

    def __init__(
        self,
        home: Home,
        url: str,
        cache_bytes: int = 0,
        cache_seconds: int = 0,
        retry_seconds: float = RETRY_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        install_starters(Registry(home.shared_chains))  # a new Redis gets them from this copy
        self.connection = RedisConnection(url)
        self.registry = SharedRegistry(home.shared_chains, self.connection, grace_seconds)
        self.trained = SharedTrainedEncoders(home.shared_trained, self.connection, grace_seconds)
        self.cache = SharedCache(self.connection, cache_bytes, cache_seconds) if cache_bytes else None
        self.retry_seconds = retry_seconds
        self.failures: dict[str, tuple[str, Callable[[], None]]] = {}
        self.retry_at = 0.0
        self.client = connect(url, BLOCK_SECONDS + ANSWER_SECONDS)
        self.stopping = threading.Event()
        self.tried = threading.Event()
        self.thread = threading.Thread(target=self.run, name="redis", daemon=True)

    def start(self) -> None:
        """Start the threads that copy changes from Redis and fill the cache.

        Waits up to 3 s for the first attempt to copy all chains of transforms.
        """
        self.connection.has_replicator = True
        self.thread.start()
        self.tried.wait(FIRST_SECONDS)
        if self.cache is not None:
            self.cache.start()

    def stop(self) -> None:
        """End the threads, waiting up to 5 s for the replicator, and close the connections to Redis."""
        self.stop_replicator()
        if self.cache is not None:
            self.cache.stop()
        self.connection.close()

    def stop_replicator(self) -> None:
        """End the thread that copies changes from Redis, waiting up to 5 s for it, and close its connection."""
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
                self.trained.join_and_push()
                for name in self.trained.list_all_names():
                    self._copy_versions(self.trained, name)
                # Requests mark the connection as down too; then everything must be copied again.
                while not self.stopping.is_set() and self.connection.up:
                    self.registry.require_same_identity(self.client.get(IDENTITY))
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
            for _, copy_again in list(self.failures.values()):  # the disk may have space by now
                copy_again()
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
        self.registry.join_and_push()
        self.trained.join(grace_seconds=0)  # changes may come before its models are copied
        for name in self.registry.list_all_names():
            self._copy_versions(self.registry, name)
        self._attempt(ROUTES_NAME, "sizes", self.registry.size_routes.push)
        self._attempt(ROUTES_NAME, "sizes", self.registry.size_routes.pull)

    def _copy_versions(self, folder: SharedVersions, name: str) -> None:
        self._attempt(f"the {folder.kind} {name}", folder.kind, partial(folder.pull, name))

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
        failures = [sentence for sentence, _ in list(self.failures.values())]
        refused = [*self.registry.refused.values(), *self.trained.refused.values()]
        return [*outage, *danger, *unexpected, *failures, *refused]
