"""Counting and logging of records in Redis that cannot be read.

Each is counted whenever it is met, and logged once.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter
from redis import exceptions as redis_errors

from lathe.transforms.errors import ArtifactError

MAX_REMEMBERED = 1000
"""Maximum number of damaged records that are remembered as logged; beyond that, further ones are only counted."""

DAMAGED = Counter("lathe_redis_damaged", "Records in Redis that cannot be read, each time one is met", ["what"])

log = logging.getLogger(__name__)
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
