"""Heartbeats of workers in Redis, by Redis's clock.

lathe:workers:<queue>   sorted set: machine/process → time of its last heartbeat
"""

import os
import secrets
import socket
from importlib.metadata import version
from typing import Any

from redis import Redis

ALIVE_SECONDS = 15.0
"""Seconds after its last heartbeat for which a worker counts as alive; it sends one every 2 s."""
FORGOTTEN_SECONDS = 24 * 3600.0
"""Seconds after which the heartbeat of a worker that has ended is removed."""
WORKERS = "lathe:workers:"


def build_queue_name(home_id: str | None = None) -> str:
    """Return the name of the queue of this version of Lathe, which cannot run the jobs of other versions.

    Args:
        home_id: id of the state folder whose jobs it holds; None for jobs that any worker can run.
    """
    return version("lathe-service") + (f":{home_id}" if home_id else "")


def read_server_time(client: Redis) -> float:
    """Return the time of Redis's clock in seconds since 1970."""
    found: Any = client.time()
    return int(found[0]) + int(found[1]) / 1e6


def generate_worker_name() -> str:
    """Return a unique worker name: `host/pid-random`."""
    return f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(4)}"


def record_heartbeat(client: Redis, queue: str, worker: str) -> None:
    """Record a worker's heartbeat, and remove those of workers that have sent none for a day."""
    now = read_server_time(client)
    with client.pipeline(transaction=False) as pipe:
        pipe.zadd(WORKERS + queue, {worker: now})
        pipe.zremrangebyscore(WORKERS + queue, "-inf", now - FORGOTTEN_SECONDS)
        pipe.execute()


def remove_heartbeat(client: Redis, queue: str, worker: str) -> None:
    """Remove a worker's heartbeat."""
    client.zrem(WORKERS + queue, worker)


def list_live_workers(client: Redis, queue: str) -> list[str]:
    """Return the machine name of each live worker of a queue, once per worker.

    Args:
        client: Redis client; its errors are not caught here.
        queue: name of the queue.
    """
    found: Any = client.zrangebyscore(WORKERS + queue, read_server_time(client) - ALIVE_SECONDS, "+inf")
    return [member.decode(errors="replace").rpartition("/")[0] for member in found]
