"""What in Redis cannot be read: counted each time, said once."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter
from redis import exceptions as redis_errors

from transforms.errors import ArtifactError

MAX_REMEMBERED = 1000
"""Records that were said to be damaged; beyond that more are only counted."""

DAMAGED = Counter("lathe_redis_damaged", "Records in Redis that cannot be read, each time one is met", ["what"])

log = logging.getLogger(__name__)
_said: set[tuple[str, str]] = set()
_guard = threading.Lock()


def is_wrong_type(error: redis_errors.RedisError) -> bool:
    """Return whether Redis refused because a key holds another type of value than ours."""
    return "WRONGTYPE" in str(error)


@contextmanager
def wrong_types_are_damage(what: str) -> Iterator[None]:
    """Raise `ArtifactError` where a key holds another type of value than ours."""
    try:
        yield
    except redis_errors.ResponseError as error:
        if not is_wrong_type(error):
            raise
        raise ArtifactError(f"{what} in Redis cannot be read: another type of value is in its place") from error


def note_damage(what: str, name: str, why: str) -> None:
    """Count a record that is skipped; log it the first time.

    Args:
        what: kind of record, a label of the metric.
        name: which one.
        why: what is wrong, without its content, which may be a caller's text.
    """
    DAMAGED.labels(what).inc()
    with _guard:
        new = (what, name) not in _said and len(_said) < MAX_REMEMBERED
        if new:
            _said.add((what, name))
    if new:
        log.error("the %s %s in Redis is damaged and skipped: %s", what, name, why)
