"""Measures how soon a promotion is served by all replicas, what a vector in Redis saves, and two replicas' rate."""

import json
import random
import statistics
import threading
import time
from typing import Any

import httpx
import numpy as np

from benchmarks.load import Target, closed_loop
from benchmarks.replicas.cluster import Cluster, read_built_in_texts
from benchmarks.server import Server

NAME = "measured"


def measure_switch(cluster: Cluster, rounds: int) -> dict[str, Any]:
    """Promote two versions alternately through the first server, and measure when all servers serve each."""
    first = cluster.servers[0]
    vectors = np.random.default_rng(0).normal(size=(200, 384)).tolist()
    for _ in range(2):
        body = {"name": NAME, "steps": [{"kind": "r2"}], "source": {"vectors": vectors}}
        job = first.call("POST", "/fit-transform", **body)
        while (state := first.call("GET", job["status_url"]))["state"] not in ("succeeded", "failed"):
            time.sleep(0.1)
        if state["state"] == "failed":
            raise SystemExit(state["error"])
    logs = [watch_versions(server) for server in cluster.servers]
    promotion_seconds, serving_seconds = [], []
    for number in range(rounds):
        version = 2 - number % 2
        begun = time.perf_counter()
        first.call("POST", f"/chains/{NAME}/promote", version=version)
        promotion_seconds.append(time.perf_counter() - begun)
        deadline = time.perf_counter() + 5
        while time.perf_counter() < deadline and any(log["since"].get(version, 0) < begun for log in logs):
            time.sleep(0.001)
        serving_seconds.append(max(log["since"][version] for log in logs) - begun)
        time.sleep(0.05)
    for log in logs:
        log["stop"].set()
    return {
        "rounds": rounds,
        "promotion_ms": summarize_seconds(promotion_seconds),
        "served_everywhere_ms": summarize_seconds(serving_seconds),
        "failed_requests": sum(log["failed"] for log in logs),
        "requests": sum(log["requests"] for log in logs),
    }


def watch_versions(server: Server) -> dict[str, Any]:
    """Request one text from a server repeatedly in a thread, and log since when each version has answered.

    Returns:
        The log: `since` by version, `failed`, `requests`, and the event `stop` that ends the thread.
    """
    log: dict[str, Any] = {"since": {}, "failed": 0, "requests": 0, "stop": threading.Event()}

    def run() -> None:
        last = 0
        with httpx.Client(base_url=server.url) as client:
            while not log["stop"].is_set():
                answer = client.post("/embed", json={"inputs": "seen before", "chain": NAME})
                log["requests"] += 1
                log["failed"] += answer.status_code != 200
                version = int(answer.headers["x-chain"].partition("@")[2] or 0)
                if version != last:
                    log["since"][version], last = time.perf_counter(), version

    threading.Thread(target=run, daemon=True).start()
    return log


def measure_cache(cluster: Cluster, texts: int) -> dict[str, Any]:
    """Time requests to the second server for texts that the first has encoded, and for as many that none has."""
    first, second = cluster.servers[:2]
    sample = random.Random(1).sample(read_built_in_texts(), 2 * texts)
    known, unknown = sample[:texts], sample[texts:]
    for start in range(0, texts, 16):
        first.call("POST", "/embed", inputs=known[start : start + 16])
    time.sleep(1)  # it is written behind the answer
    seconds: dict[str, list[float]] = {"encoded": [], "from_redis": [], "from_memory": []}
    for start in range(0, texts, 4):
        for what, inputs in (("encoded", unknown), ("from_redis", known), ("from_memory", known)):
            begun = time.perf_counter()
            second.call("POST", "/embed", inputs=inputs[start : start + 4])
            seconds[what].append(time.perf_counter() - begun)
    medians = {what: statistics.median(values) for what, values in seconds.items()}
    return {
        "texts_a_request": 4,
        "milliseconds": {what: summarize_seconds(values) for what, values in seconds.items()},
        "speed_up_redis": round(medians["encoded"] / medians["from_redis"], 2),
        "speed_up_memory": round(medians["encoded"] / medians["from_memory"], 2),
        "cosine_least": measure_min_cosine(first, second, known[:64]),
    }


def measure_min_cosine(first: Server, second: Server, texts: list[str]) -> float:
    """Return the smallest cosine between encoded vectors and those read from Redis."""
    encoded, read = (np.array(server.call("POST", "/embed", inputs=texts), np.float64) for server in (first, second))
    return round(float((encoded * read).sum(axis=1).min()), 9)


def measure_throughput(cluster: Cluster, requests: int, rounds: int) -> dict[str, Any]:
    """Measure the texts per second through nginx, by one server and by two, alternating, with no text twice."""
    first, second = cluster.servers[:2]
    urls = {"one": cluster.balance([first]), "two": cluster.balance([first, second])}
    texts = read_built_in_texts()
    rates: dict[str, list[float]] = {"one": [], "two": []}
    number = 0
    for _ in range(rounds + 1):
        for what, url in urls.items():
            bodies = []
            for _ in range(requests):
                number += 1
                inputs = [f"{number} {texts[(number * 8 + offset) % len(texts)]}" for offset in range(8)]
                bodies.append(json.dumps({"inputs": inputs}).encode())
            load = closed_loop(Target(f"{url}/embed"), bodies, concurrency=8)
            if set(load.statuses) != {200}:
                raise SystemExit(f"failed requests: {dict(load.statuses)}")
            rates[what].append(8 * requests / load.seconds)
    ratios = [two / one for one, two in zip(rates["one"][1:], rates["two"][1:], strict=True)]  # the first warms up
    return {
        "threads_a_server": cluster.threads,
        "texts_a_second": {
            what: [round(rate, 1) for rate in texts_per_second[1:]] for what, texts_per_second in rates.items()
        },
        "two_over_one": [round(ratio, 2) for ratio in sorted(ratios)],
    }


def summarize_seconds(seconds: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum of times, in milliseconds."""
    return {
        "median": round(1000 * statistics.median(seconds), 2),
        "p95": round(1000 * float(np.percentile(seconds, 95)), 2),
        "most": round(1000 * max(seconds), 2),
    }
