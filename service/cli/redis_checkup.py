"""What `lathe doctor` says of the Redis that replicas share."""

from contextlib import closing
from importlib.metadata import version
from typing import Any

from redis import Redis
from redis import exceptions as redis_errors

from service.jobs.heartbeats import live_workers
from service.jobs.queue import JobRecords, queue_name
from service.shared.link import RedisLink, as_text

UNTOLD = "it does not tell this user; see docs/replicas.md for what to set"


def report(url: str) -> list[tuple[str, str]]:
    """What there is to say, each as its subject and a sentence.

    Raises:
        UnavailableError: if Redis cannot be used.
    """
    with closing(RedisLink(url)) as link, link.reached() as client:
        client.ping()
        return [
            ("Redis", "answers"),
            ("Redis's disk", on_disk(aof_of(client), setting(client, "save"))),
            ("Redis's memory", on_memory(setting(client, "maxmemory"), setting(client, "maxmemory-policy"))),
            ("jobs", on_jobs(JobRecords(client).count_waiting(queue_name()), len(live_workers(client, queue_name())))),
        ]


def setting(client: Redis, name: str) -> str | None:
    """A setting of Redis; None where this user may not ask, or nobody may."""
    try:
        found: Any = client.config_get(name)
    except redis_errors.ResponseError:
        return None
    return next((as_text(value) for value in found.values()), None)


def aof_of(client: Redis) -> bool | None:
    """Whether Redis writes changes to a file as they come; None where this user may not ask."""
    try:
        found: Any = client.info("persistence")
    except redis_errors.ResponseError:
        return None
    return bool(found.get("aof_enabled"))


def on_disk(aof: bool | None, save: str | None) -> str:
    """What a crash or a restart of Redis would cost."""
    match aof, save:
        case True, _:
            return "every change is in its append-only file: a crash costs the last second"
        case False, "":
            return (
                "nothing is kept: a restart loses all jobs, and chains that no replica has a copy of; "
                "start it with --appendonly yes"
            )
        case False, _:
            return (
                "snapshots at most: a crash loses chains and jobs of the last minutes; start it with --appendonly yes"
            )
        case _:
            return UNTOLD


def on_memory(most: str | None, policy: str | None) -> str:
    """What happens when Redis is full."""
    if most is None or policy is None:
        return UNTOLD
    if most == "0":
        return "no maxmemory: it may take all that the machine has"
    bounded = f"{int(most) / 1e6:,.0f} MB, {policy}"
    if policy.startswith("allkeys"):
        return f"{bounded}: it may evict CHAINS when it is full; set its maxmemory-policy to volatile-lru"
    if policy == "noeviction":
        return f"{bounded}: it refuses fits and promotions when it is full; volatile-lru would make room from the cache"
    return f"{bounded}: it evicts vectors of texts when it is full, and never chains"


def on_jobs(waiting: int, workers: int) -> str:
    """Whether somebody takes the jobs that wait."""
    there = f"waiting: {waiting}; live workers of Lathe {version('lathe')}: {workers}"
    return there if workers else f"{there}, `lathe worker` starts one"
