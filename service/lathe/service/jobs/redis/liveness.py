"""The health check of a worker's machine, which imports no torch: it runs every minute."""

import socket
from contextlib import closing

from redis import exceptions as redis_errors

from lathe.service.errors import UnavailableError
from lathe.service.jobs.redis.heartbeats import ALIVE_SECONDS, build_queue_name, list_live_workers
from lathe.service.redis.connection import as_unavailable, connect
from lathe.service.settings import Settings

CHECK_SECONDS = 5.0
"""Timeout of the request to Redis."""


def require_live_worker(settings: Settings) -> str:
    """Check that this machine has a worker that sent a heartbeat to Redis lately; return a sentence for health checks.

    The sentence states how many there are or, if Redis is unreachable, that this is unknown. That is no error, because
    workers wait for Redis and a running job goes on meanwhile.

    Raises:
        ValueError: if no Redis is set.
        UnavailableError: if no worker is alive.
    """
    require_redis(settings)
    machine = socket.gethostname()
    with closing(connect(settings.redis_url, CHECK_SECONDS)) as client:
        try:
            count = list_live_workers(client, build_queue_name()).count(machine)
        except redis_errors.RedisError as error:
            return f"{as_unavailable(error).message}; whether a worker is alive is unknown"
    if not count:
        raise UnavailableError(f"no worker of {machine} has sent a heartbeat for {ALIVE_SECONDS:.0f} s")
    return f"{machine} has workers: {count}"


def require_redis(settings: Settings) -> None:
    """Raise `ValueError` if no Redis is set."""
    if not settings.redis_url:
        raise ValueError("a worker takes its jobs from Redis: set LATHE_REDIS_URL (without it, the server runs them)")
