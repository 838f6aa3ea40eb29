"""Checks by `lathe doctor` of the Redis that replicas share."""

from contextlib import closing
from importlib.metadata import version
from typing import Any

from redis import Redis
from redis import exceptions as redis_errors

from lathe.service.jobs.redis.heartbeats import build_queue_name, list_live_workers
from lathe.service.jobs.redis.queue import JobRecords
from lathe.service.redis.connection import RedisConnection, decode_text

UNKNOWN = "unknown: this user may not read it; docs/replicas.md lists the settings Redis needs"


def check_redis(url: str) -> list[tuple[str, str]]:
    """Connect to Redis, and describe its persistence, memory limit and jobs, each as a subject and a sentence.

    Raises:
        UnavailableError: if Redis cannot be used.
    """
    with closing(RedisConnection(url)) as connection, connection.reached() as client:
        client.ping()
        queue = build_queue_name()
        waiting, workers = JobRecords(client).count_waiting(queue), list_live_workers(client, queue)
        max_memory, policy = _read_setting(client, "maxmemory"), _read_setting(client, "maxmemory-policy")
        return [
            ("Redis", "answers"),
            ("Redis's disk", describe_persistence(_is_aof_enabled(client), _read_setting(client, "save"))),
            ("Redis's memory", describe_memory(max_memory, policy)),
            ("jobs", describe_jobs(waiting, len(workers))),
        ]


def _read_setting(client: Redis, name: str) -> str | None:
    """Return a setting of Redis; None if this user may not read it."""
    try:
        found: Any = client.config_get(name)
    except redis_errors.ResponseError:
        return None
    return next((decode_text(value) for value in found.values()), None)


def _is_aof_enabled(client: Redis) -> bool | None:
    """Return whether Redis appends every change to a file (AOF); None if this user may not read that."""
    try:
        found: Any = client.info("persistence")
    except redis_errors.ResponseError:
        return None
    return bool(found.get("aof_enabled"))


def describe_persistence(aof: bool | None, save: str | None) -> str:
    """Describe what is lost when Redis crashes or restarts, by its append-only file and its setting `save`."""
    match aof, save:
        case True, _:
            return "every change is in its append-only file: a crash costs the last second"
        case False, "":
            return (
                "nothing is stored on disk: a restart loses all jobs, and chains that no replica has a copy of; "
                "start it with --appendonly yes"
            )
        case False, _:
            return (
                "snapshots at most: a crash loses chains and jobs of the last minutes; start it with --appendonly yes"
            )
        case _:
            return UNKNOWN


def describe_memory(max_memory: str | None, policy: str | None) -> str:
    """Describe what Redis does when its memory is full, by its settings `maxmemory` and `maxmemory-policy`."""
    if max_memory is None or policy is None:
        return UNKNOWN
    if max_memory == "0":
        return "no maxmemory: it may use all memory of the machine"
    limit = f"{int(max_memory) / 1e6:,.0f} MB, {policy}"
    if policy.startswith("allkeys"):
        return f"{limit}: it may evict CHAINS when it is full; set its maxmemory-policy to volatile-lru"
    if policy == "noeviction":
        return f"{limit}: it refuses fits and promotions when it is full; volatile-lru would make room from the cache"
    return f"{limit}: it evicts vectors of texts when it is full, and never chains"


def describe_jobs(waiting: int, workers: int) -> str:
    """Describe how many jobs wait, and how many workers there are to run them."""
    counts = f"waiting: {waiting}; live workers of Lathe {version('lathe-service')}: {workers}"
    return counts if workers else f"{counts}, `lathe worker` starts one"
