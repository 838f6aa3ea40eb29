"""Heartbeats of workers in Redis, by Redis's clock.

lathe:workers:<queue>   sorted set: machine/process → time of its last heartbeat
"""

import os
import secrets
import socket
from contextlib import closing
from importlib.metadata import version
from typing import Any

from redis import Redis
from redis import exceptions as redis_errors

from lathe.service.errors import UnavailableError
from lathe.service.jobs.worker_class import COMMANDS, WorkerClass
from lathe.service.redis.connection import as_unavailable, connect
from lathe.service.settings import Settings

ALIVE_SECONDS = 15.0
"""Seconds after its last heartbeat for which a worker counts as alive; it sends one every 2 s."""
FORGOTTEN_SECONDS = 24 * 3600.0
"""Seconds after which the heartbeat of a worker that has ended is removed."""
WORKERS = "lathe:workers:"

CHECK_SECONDS = 5.0
"""Timeout of the request to Redis."""


def build_queue_name(worker_class: WorkerClass = "jobs", home_id: str | None = None) -> str:
    """Return the name of a queue of this version of Lathe, which cannot run the jobs of other versions.

    Args:
        worker_class: class of the workers that take its jobs.
        home_id: id of the state folder whose jobs it holds; None for jobs that any worker of the class can run.
    """
    if home_id:
        return f"{version('lathe-service')}:{home_id}"
    return version("lathe-service") + ("/trainings" if worker_class == "trainings" else "")


def describe_missing_worker(queue: str) -> str:
    """Say that a queue has no worker, and how one is started."""
    number, _, trainings = queue.partition("/")
    command = COMMANDS["trainings" if trainings else "jobs"]
    return f"no worker of Lathe {number} is there: start `{command}`"


def read_server_time(client: Redis) -> float:
    """Return the time of Redis's clock in seconds since 1970."""
    answer: Any = client.time()
    return int(answer[0]) + int(answer[1]) / 1e6


def generate_worker_name() -> str:
    """Return a unique worker name: `host/pid-random`."""
    return f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(4)}"


def record_heartbeat(client: Redis, queue: str, worker: str) -> None:
    """Record in Redis that a worker of a queue is alive now, and forget workers silent for a day."""
    now = read_server_time(client)
    with client.pipeline(transaction=False) as pipe:
        pipe.zadd(WORKERS + queue, {worker: now})
        pipe.zremrangebyscore(WORKERS + queue, "-inf", now - FORGOTTEN_SECONDS)
        pipe.execute()


def remove_heartbeat(client: Redis, queue: str, worker: str) -> None:
    """Remove a worker's heartbeat."""
    client.zrem(WORKERS + queue, worker)


def list_live_workers(client: Redis, queue: str) -> list[str]:
    """Return the machine name of each live worker of a queue, once per worker."""
    members: Any = client.zrangebyscore(WORKERS + queue, read_server_time(client) - ALIVE_SECONDS, "+inf")
    return [member.decode(errors="replace").rpartition("/")[0] for member in members]


def require_live_worker(settings: Settings, worker_class: WorkerClass) -> str:
    """Raise if this machine has no live worker of a class. Return a sentence that says how many it has.

    A worker is alive if it sent a heartbeat to Redis lately.

    Returns:
        A sentence for health checks. It states how many workers there are or, if Redis is unreachable, that this is
        unknown. That is no error, because workers wait for Redis and a running job goes on meanwhile.

    Raises:
        ValueError: if no Redis is set.
        UnavailableError: if no worker is alive.
    """
    require_redis(settings)
    machine = socket.gethostname()
    with closing(connect(settings.redis_url, CHECK_SECONDS)) as client:
        try:
            count = list_live_workers(client, build_queue_name(worker_class)).count(machine)
        except redis_errors.RedisError as error:
            return f"{as_unavailable(error).message}; whether a worker is alive is unknown"
    if not count:
        raise UnavailableError(f"no worker of {machine} has sent a heartbeat for {ALIVE_SECONDS:.0f} s")
    return f"{machine} has workers: {count}"


def require_redis(settings: Settings) -> None:
    """Raise `ValueError` if no Redis is set."""
    if not settings.redis_url:
        raise ValueError("a worker takes its jobs from Redis: set LATHE_REDIS_URL (without it, the server runs them)")
