"""Which workers live, by the signs of life that they leave in Redis."""

from typing import Any

from redis import Redis
from rq.utils import utcparse
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from service.jobs.clock import server_time

ALIVE_SECONDS = 15.0
"""A worker without a job gives a sign of life every 5 s, and its clock may be 2 s off."""


def live_workers(client: Redis, queue: str) -> list[str]:
    """The machine that each live worker of a queue runs on.

    Args:
        client: of Redis; its errors are not caught here.
        queue: its name.
    """
    keys: Any = client.smembers(WORKERS_BY_QUEUE_KEY % queue)
    if not keys:
        return []
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hmget(key, "last_heartbeat", "hostname")
        found = pipe.execute()
    now = server_time(client)
    return [
        (machine or b"").decode()
        for heard, machine in found
        if heard is not None and now - utcparse(heard.decode()).timestamp() < ALIVE_SECONDS
    ]
