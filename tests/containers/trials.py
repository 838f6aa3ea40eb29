"""What happens to requests, jobs and data when containers die, are replaced, or Redis fails."""

import time
from contextlib import suppress
from typing import Any

import httpx2

from tests.containers.compose import Compose, wait_until
from tests.containers.load import Load

REPLICAS = 2
LONG_FIT, LONGER_FIT = 1500, 3000
"""Training steps of a fit that a worker is killed in, and of one that outlasts a full Redis."""
ENDS = ("succeeded", "failed", "cancelled")


def start(compose: Compose) -> dict[str, Any]:
    """Start all services with two replicas and two workers."""
    began = time.monotonic()
    compose.up("--scale", f"api={REPLICAS}", "--scale", "worker=2")
    wait_until(lambda: compose.is_healthy("api", REPLICAS) and compose.is_healthy("nginx"), "healthy")
    serving = round(time.monotonic() - began, 1)
    for service in ("index", "redis", "prometheus"):
        wait_until(lambda service=service: compose.is_healthy(service), f"{service} healthy")
    wait_until(lambda: compose.read_log("worker").count("taking jobs") == 2, "workers taking jobs")
    return {"seconds_until_it_serves": serving, "seconds_until_all_work": round(time.monotonic() - began, 1)}


def kill_replicas(compose: Compose, times: int) -> dict[str, Any]:
    """Kill replicas under load, one after the other.

    Every second time it is the main process, which the engine starts again at once. Else it is the container, whose
    address then answers nothing, and it is started again after five seconds.
    """
    recovered = []
    with Load(key=compose.environment["LATHE_API_KEYS"]) as load:  # an earlier trial changes it
        for number in range(times):
            container = compose.list_containers("api")[number % REPLICAS]
            time.sleep(1)
            if number % 2:
                compose.kill_process(container)
                wait_until(lambda: not compose.is_healthy("api", REPLICAS), "the replica's end noticed")
            else:
                compose.engine.docker("kill", container)
                time.sleep(5)
                compose.engine.docker("start", container)
            recovered.append(wait_until(lambda: compose.is_healthy("api", REPLICAS), "replicas healthy"))
            print(f"  {number + 1}/{times} {dict(load.statuses)}", flush=True)
    return {"kills": times, **load.summarize(), "most_seconds_until_healthy": max(recovered)}


def find_busy_worker(compose: Compose) -> str:
    """Return the id of the worker's container that runs a job, or an empty text if none does."""
    for container in compose.list_containers("worker"):
        if "lathe.service.jobs.process" in compose.engine.docker("top", container):
            return container
    return ""


def kill_worker(compose: Compose) -> dict[str, Any]:
    """Kill the worker that runs a job. Another must finish the job, and publish its chain once."""
    job = compose.start_fit("survives", LONG_FIT)
    wait_until(lambda: find_busy_worker(compose) != "", "job's process running")
    time.sleep(3)
    compose.engine.docker("kill", find_busy_worker(compose))
    began = time.monotonic()
    wait_until(lambda: compose.tell("GET", job)["state"] in ENDS, "job ended")
    took = round(time.monotonic() - began, 1)
    compose.up("--no-recreate", "--scale", "worker=2", "worker")
    return {
        "state": compose.tell("GET", job)["state"],
        "versions_published": len(compose.tell("GET", "/chains/survives")["versions"]),
        "seconds_from_the_kill_to_the_end": took,
    }


def is_answered(compose: Compose, method: str, path: str, status: int) -> bool:
    """Return whether a request is answered with a status. Without an answer it is not."""
    with suppress(httpx2.HTTPError):
        return compose.ask(method, path).status_code == status
    return False


def stop_redis(compose: Compose) -> dict[str, Any]:
    """Stop Redis for ten seconds under load. Administration must be refused, and accepted again afterwards."""
    (redis,) = compose.list_containers("redis")
    with Load() as load:
        compose.engine.docker("stop", redis)
        refused = wait_until(lambda: is_answered(compose, "GET", "/jobs", 503), "administration refused")
        time.sleep(10)
        compose.engine.docker("start", redis)
        accepted = wait_until(lambda: is_answered(compose, "GET", "/jobs", 200), "administration accepted")
    job = compose.start_fit("after-stop", 20)
    wait_until(lambda: compose.tell("GET", job)["state"] == "succeeded", "fit succeeded")
    summary = {"seconds_until_refused": refused, "seconds_until_accepted": accepted}
    return {**load.summarize(), **summary, "fit_afterwards": "succeeded", "workers_restarted": count_restarts(compose)}


def count_restarts(compose: Compose) -> int:
    """Return how often the engine has restarted the workers by itself."""
    counts = [compose.engine.docker("inspect", "--format", "{{.RestartCount}}", one) for one in list_workers(compose)]
    return sum(map(int, counts))


def list_workers(compose: Compose) -> list[str]:
    """Return the ids of all containers of workers, running or not."""
    return compose.run("ps", "--all", "--quiet", "worker").split()


def fill_redis(compose: Compose) -> dict[str, Any]:
    """Fill Redis's volume under load, which makes it refuse writes, then make room.

    The workers must wait, with the job that one of them runs, and finish it afterwards.
    """
    restarts = count_restarts(compose)
    job = compose.start_fit("meanwhile", LONGER_FIT)
    with Load() as load:
        compose.run("exec", "-T", "redis", "sh", "-c", "cat /dev/zero > /data/filler; true")
        wait_until(lambda: "cannot write to its disk" in compose.read_log("worker"), "seen by the workers")
        answer = compose.submit_fit("refused", 20)
        refused = [answer.status_code, answer.json()["error"]["code"]]
        time.sleep(15)
        compose.run("exec", "-T", "redis", "rm", "/data/filler")
        accepted = wait_until(lambda: compose.tell("GET", job)["state"] in ENDS, "job ended")
    return {
        **load.summarize(),
        "fit_was_answered": refused,
        "running_job": compose.tell("GET", job)["state"],
        "seconds_from_room_to_its_end": accepted,
        "workers_restarted": count_restarts(compose) - restarts,
    }


def flush_redis(compose: Compose) -> dict[str, Any]:
    """Delete all that Redis has, under load. The chains must come back from a replica's copy."""
    before = {chain["name"] for chain in compose.tell("GET", "/chains")}
    with Load() as load:
        compose.run("exec", "-T", "redis", "redis-cli", "flushall")
        began = time.monotonic()
        wait_until(lambda: "lathe:chain:survives" in read_keys(compose), "chains restored")
        took = round(time.monotonic() - began, 1)
    after = {chain["name"] for chain in compose.tell("GET", "/chains")}
    return {**load.summarize(), "seconds_until_restored": took, "chains_lost": sorted(before - after)}


def read_keys(compose: Compose) -> list[str]:
    """Return Redis's keys of chains."""
    return compose.run("exec", "-T", "redis", "redis-cli", "--scan", "--pattern", "lathe:chain:*").split()


def kill_index(compose: Compose) -> dict[str, Any]:
    """Kill the owner of the indexes while items are written. It must come back with every acknowledged item."""
    compose.tell("PUT", "/indexes/docs", chain="compact")
    acknowledged, failed, number = 0, 0, 0
    (index,) = compose.list_containers("index")
    killed_at = came_back = 0.0
    while not came_back or time.monotonic() - came_back < 2:
        if number == 40:
            compose.kill_process(index)
            killed_at = time.monotonic()
        body = {"ids": [f"item-{number}"], "texts": [f"Item number {number} of the index."]}
        status = compose.ask("POST", "/indexes/docs/upsert", **body).status_code
        number += 1
        acknowledged += status == 200
        failed += status != 200
        time.sleep(0.05)
        if status == 200 and killed_at and failed:
            came_back = came_back or time.monotonic()
    size = compose.tell("GET", "/indexes/docs")
    return {
        "acknowledged_writes": acknowledged,
        "refused_writes": failed,
        "items_afterwards": size["count"],
        "seconds_until_it_answers": round(came_back - killed_at, 1),
    }


def replace_replicas(compose: Compose, load: Load) -> None:
    """Replace all replicas one by one, as docs/deployment.md says: start a new one beside the old, then stop one.

    One at a time: nginx tries two instances, and prefers those with the fewest connections, which new ones refuse.
    """
    for old in compose.list_containers("api"):
        compose.up("--no-deps", "--no-recreate", "--scale", f"api={REPLICAS + 1}", "api")
        wait_until(lambda: compose.is_healthy("api", REPLICAS + 1), "new replica healthy")
        time.sleep(5)
        compose.engine.docker("stop", "--time", "40", old)
        compose.engine.docker("rm", old)
        print(f"  {dict(load.statuses)}", flush=True)


def upgrade(compose: Compose) -> dict[str, Any]:
    """Replace the replicas under load by those of a new image."""
    engine = compose.engine
    before = engine.docker("image", "inspect", "--format", "{{.Id}}", "lathe:latest")
    engine.docker(
        "build", "--tag", "lathe:latest", "--label", f"rebuilt={time.time()}", "-", input="FROM lathe:latest\n"
    )
    with Load() as load:
        replace_replicas(compose, load)
    images = {engine.docker("inspect", "--format", "{{.Image}}", one) for one in compose.list_containers("api")}
    return {**load.summarize(), "new_images": len(images - {before}), "old_images": len(images & {before})}


def change_keys(compose: Compose) -> dict[str, Any]:
    """Replace the API key under load: first the replicas that know both keys, then those that know the new one."""
    with Load() as old_key:
        compose.environment["LATHE_API_KEYS"] = f"{old_key.key},new"
        replace_replicas(compose, old_key)
    with Load(key="new") as new_key:
        compose.environment["LATHE_API_KEYS"] = "new"
        replace_replicas(compose, new_key)
    refused = compose.ask("POST", "/embed", key=old_key.key, inputs="text").status_code
    return {"with_both": old_key.summarize(), "with_the_new_one": new_key.summarize(), "old_key_afterwards": refused}
