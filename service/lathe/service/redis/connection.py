"""The connection to Redis that a process's threads share, whether Redis is usable, and records that cannot be read.

Each damaged record is counted whenever it is met, and logged once.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from prometheus_client import Counter, Gauge
from redis import Redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.retry import Retry

from lathe.service.errors import UnavailableError
from lathe.transforms.errors import ArtifactError

PATIENCE_SECONDS = 5.0
"""Timeout of a request to Redis."""
GONE = (redis_errors.ConnectionError, redis_errors.TimeoutError)
"""Exceptions that mean that Redis is unreachable."""

DISK_ERROR = "MISCONF"
"""Word in the errors with which Redis refuses writes while it cannot write to its own disk."""

UP = Gauge("lathe_redis_up", "Whether Redis can be reached")

log = logging.getLogger(__name__)
T = TypeVar("T")


class RedisConnection:
    """A connection to the Redis at a URL, and whether Redis is usable.

    Attributes:
        problem: why Redis cannot be used; None if it can. Any thread that fails sets it; only the replicator clears it.
        has_replicator: whether a replicator runs; other threads then do not wait for a Redis that was found silent.
        danger: settings of Redis that may lose data; None if there are none.
    """

    def __init__(self, url: str, seconds: float = PATIENCE_SECONDS) -> None:
        self.url = url
        self.client = connect(url, seconds)
        self.problem: str | None = "Redis has not been reached yet"
        self.danger: str | None = None
        self.has_replicator = False
        self.silent = False
        self.code = "redis_unreachable"
        self.guard = threading.Lock()
        UP.set(0)

    def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        self.client.close()

    @property
    def up(self) -> bool:
        """Whether Redis can be used."""
        return self.problem is None

    def mark_up(self) -> None:
        """Mark Redis as usable, log that if Redis was not usable before, and set the metric."""
        with self.guard:
            if self.problem is not None:
                log.info("Redis is reached")
            self.problem = None
        UP.set(1)

    def mark_down(self, problem: str, code: str = "redis_unreachable") -> None:
        """Mark Redis as unusable because of `problem`, log that if Redis was usable before, and set the metric.

        While a replicator (the thread that copies Redis to disk) runs, requests then fail at once until it reaches
        Redis again.
        """
        with self.guard:
            self.code = code
            # Only a replicator notices that Redis is back; without one each request must try again.
            self.silent = self.has_replicator
            if self.problem is None:
                log.warning("%s; serving continues from memory and disk", problem)
            self.problem = problem
        UP.set(0)

    def check_settings(self) -> None:
        """Set `danger` to a warning if Redis's memory settings allow it to evict chains of transforms, else to None.

        It is None, too, if Redis does not permit reading its settings.
        """
        self.danger = None
        with suppress(redis_errors.ResponseError):  # Redis may forbid CONFIG
            answer: Any = self.client.config_get("maxmemory*")
            settings = {_decode_text(key): _decode_text(value) for key, value in answer.items()}
            if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy", "").startswith("allkeys"):
                self.danger = "Redis may evict chains when it is full: set its maxmemory-policy to volatile-lru"

    @contextmanager
    def reached(self) -> Iterator[Redis]:
        """Yield the Redis client to a block, and convert Redis's errors in it to `UnavailableError`.

        A lost connection also marks Redis as down.

        Raises:
            UnavailableError: if Redis is unreachable, out of memory, or refuses; at once while a replicator runs that
                has found Redis down and not reached it again.
        """
        if self.silent:
            raise UnavailableError(self.problem or "Redis does not answer", code=self.code)
        try:
            yield self.client
        except redis_errors.RedisError as error:
            unavailable = as_unavailable(error)
            if isinstance(error, GONE):
                self.mark_down(unavailable.message)
            raise unavailable from error

    def transaction(self, change: Callable[[Pipeline], T], *keys: str) -> T:
        """Run `change` as one atomic Redis transaction, and return its result.

        It is run again if a watched key changes meanwhile.

        Args:
            change: reads, calls `multi`, and queues the writes; may be called several times.
            keys: keys that it reads, which are watched.

        Raises:
            UnavailableError: as in `reached`.
        """
        with self.reached() as client:
            changed: Any = client.transaction(change, *keys, value_from_callable=True)  # type: ignore[arg-type]
        result: T = changed
        return result


def connect(url: str, seconds: float, retries: int = 1) -> Redis:
    """Return a new Redis client with timeouts and retries. It connects when it is first used.

    Args:
        url: URL of Redis.
        seconds: timeout of a request.
        retries: number of retries on lost connections.
    """
    return Redis.from_url(
        url,
        socket_timeout=seconds,
        socket_connect_timeout=min(seconds, 2.0),
        health_check_interval=30,
        protocol=2,
        retry=Retry(NoBackoff(), retries),  # reconnect once after a restart of Redis
    )


def as_unavailable(error: redis_errors.RedisError) -> UnavailableError:
    """Return the `UnavailableError` that says what an error of Redis means, with a code for programs."""
    match error:
        case redis_errors.AuthenticationError() | redis_errors.AuthorizationError():
            return UnavailableError("Redis rejects the password of LATHE_REDIS_URL", code="redis_unreachable")
        case redis_errors.BusyLoadingError():
            return UnavailableError("Redis is still loading its data", code="redis_unreachable")
        case redis_errors.ConnectionError() | redis_errors.TimeoutError():
            return UnavailableError(f"Redis cannot be reached: {_get_first_line(error)}", code="redis_unreachable")
        case redis_errors.ReadOnlyError():
            return UnavailableError("Redis is a read-only replica; nothing was written", code="redis_read_only")
        case redis_errors.OutOfMemoryError():
            return UnavailableError("Redis is full (maxmemory); nothing was written", code="redis_full")
        case _ if DISK_ERROR in str(error):
            return UnavailableError("Redis cannot write to its disk; nothing was written", code="redis_full")
        case _:
            return UnavailableError(f"Redis refuses: {_get_first_line(error)}", code="redis_error")


def _decode_text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _get_first_line(error: Exception) -> str:
    # redis-py quotes a command of a pipeline, with parts of what it would have written.
    """Return the first line of an error's message, at most 200 characters, without a command that redis-py quotes."""
    message = re.sub(r"(?s)^Command # \d+ \(.*\) of pipeline caused error: ", "", str(error))
    return (message.splitlines() or [type(error).__name__])[0][:200].rstrip(".")


MAX_REMEMBERED = 1000
"""Maximum number of damaged records that are remembered as logged; beyond that, further ones are only counted."""

DAMAGED = Counter("lathe_redis_damaged", "Records in Redis that cannot be read, each time one is met", ["what"])


_logged: set[tuple[str, str]] = set()
_guard = threading.Lock()


def is_wrong_type(error: redis_errors.RedisError) -> bool:
    """Return whether the error says that a key holds another type of Redis value than expected."""
    return "WRONGTYPE" in str(error)


@contextmanager
def convert_wrong_type_errors(what: str) -> Iterator[None]:
    """Run a block, and raise `ArtifactError` if it reads a Redis key that holds another type of value.

    Args:
        what: what is read, for the message.
    """
    try:
        yield
    except redis_errors.ResponseError as error:
        if not is_wrong_type(error):
            raise
        raise ArtifactError(f"{what} in Redis cannot be read: its key holds another type of value") from error


def note_damage(what: str, name: str, why: str) -> None:
    """Count a damaged record in Redis that is skipped, and log it the first time.

    Args:
        what: kind of record, a label of the metric.
        name: which record.
        why: what is wrong, without the content, which may be a caller's text.
    """
    DAMAGED.labels(what).inc()
    with _guard:
        new = (what, name) not in _logged and len(_logged) < MAX_REMEMBERED
        if new:
            _logged.add((what, name))
    if new:
        log.error("the %s %s in Redis is damaged and skipped: %s", what, name, why)
