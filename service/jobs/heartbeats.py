"""Which workers live: each leaves a sign of life in Redis, by Redis's clock.

lathe:workers:<queue>   sorted set: machine/process → when it was heard of last
"""

import os
import secrets
import socket
from typing import Any

from redis import Redis

ALIVE_SECONDS = 15.0
"""A worker gives a sign of life every 2 s."""
FORGOTTEN_SECONDS = 24 * 3600.0
WORKERS = "lathe:workers:"


def server_time(client: Redis) -> float:
    """Return Redis's clock, in seconds."""
    found: Any = client.time()
    return int(found[0]) + int(found[1]) / 1e6


def new_worker_name() -> str:
    """Return a name for a worker of this machine that no other one has."""
    return f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(4)}"


def note_alive(client: Redis, queue: str, worker: str) -> None:
    """Leave a sign of life of a worker, and forget those of workers gone for a day."""
    now = server_time(client)
    with client.pipeline(transaction=False) as pipe:
        pipe.zadd(WORKERS + queue, {worker: now})
        pipe.zremrangebyscore(WORKERS + queue, "-inf", now - FORGOTTEN_SECONDS)
        pipe.execute()


def note_gone(client: Redis, queue: str, worker: str) -> None:
    """Take back a worker's sign of life."""
    client.zrem(WORKERS + queue, worker)


def live_workers(client: Redis, queue: str) -> list[str]:
    """Return the machine that each live worker of a queue runs on.

    Args:
        client: of Redis; its errors are not caught here.
        queue: its name.
    """
    found: Any = client.zrangebyscore(WORKERS + queue, server_time(client) - ALIVE_SECONDS, "+inf")
    return [member.decode(errors="replace").rpartition("/")[0] for member in found]
