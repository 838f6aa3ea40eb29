"""Redis's clock, by which all workers are judged."""

import time
from typing import Any

from redis import Redis

SKEW_SECONDS = 2.0
"""Between a worker's clock and Redis's, at most: RQ tells dead workers from living by the clock."""


def server_time(client: Redis) -> float:
    """Redis's clock, in seconds."""
    found: Any = client.time()
    return int(found[0]) + int(found[1]) / 1e6


def clock_skew(client: Redis) -> float:
    """How far this machine's clock is ahead of Redis's, in seconds."""
    before = time.time()
    there = server_time(client)
    return (before + time.time()) / 2 - there
