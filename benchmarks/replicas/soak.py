"""Mixed load for minutes, in which no request may fail and memory must stop growing."""

import json
import random
import threading
import time
from collections import Counter
from typing import Any

import httpx
import numpy as np

from benchmarks.replicas.cluster import ADMIN, Cluster, read_built_in_texts

SAMPLE_SECONDS = 5.0
WARM_SHARE = 0.4
"""Share of the time in which caches and allocators fill; memory is judged after it."""


def measure_soak(cluster: Cluster, minutes: float, chain: str, seed: int = 0) -> dict[str, Any]:
    """Run four callers through nginx: new and known texts, reductions, promotions, listings."""
    url, end = cluster.balance(cluster.servers), time.monotonic() + 60 * minutes
    statuses: Counter[str] = Counter()
    seconds: list[float] = []
    threads = [
        threading.Thread(target=run_caller, args=(url, end, chain, seed + number, statuses, seconds))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    samples = []
    while time.monotonic() < end:
        time.sleep(SAMPLE_SECONDS)
        used: Any = cluster.redis.info("memory")
        samples.append([server.memory("VmRSS") for server in cluster.servers] + [used["used_memory"]])
    for thread in threads:
        thread.join()
    memory = np.array(samples, float) / 2**20
    late = memory[int(WARM_SHARE * len(memory)) :]
    hours = np.arange(len(late)) * SAMPLE_SECONDS / 3600
    return {
        "minutes": minutes,
        "requests": len(seconds),
        "statuses": dict(statuses),
        "milliseconds": {p: round(1000 * float(np.percentile(seconds, p)), 1) for p in (50, 95, 99)},
        "memory_mb": {
            name: {
                "after_warming": round(late[0, column], 1),
                "at_the_end": round(late[-1, column], 1),
                "mb_an_hour": round(float(np.polyfit(hours, late[:, column], 1)[0]), 1),
            }
            for column, name in enumerate([*(f"server_{n}" for n in range(len(cluster.servers))), "redis"])
        },
    }


def run_caller(url: str, end: float, chain: str, seed: int, statuses: Counter[str], seconds: list[float]) -> None:
    """Send random requests until the time is up, and record their statuses and seconds."""
    rng, texts = random.Random(seed), read_built_in_texts()
    vectors = np.random.default_rng(seed).normal(size=(16, 384)).tolist()
    with httpx.Client(base_url=url, timeout=60, headers={"authorization": f"Bearer {ADMIN}"}) as client:
        while time.monotonic() < end:
            kind = rng.choices(["new", "known", "reduce", "list", "promote"], [3, 5, 3, 1, 0.2])[0]
            begun = time.perf_counter()
            match kind:
                case "new":
                    body: dict[str, Any] = {"inputs": [f"{rng.random()} {rng.choice(texts)[:300]}"], "chain": chain}
                    answer = client.post("/embed", json=body)
                case "known":
                    answer = client.post("/embed", json={"inputs": texts[rng.randrange(500)], "chain": chain})
                case "reduce":
                    answer = client.post("/reduce", json={"vectors": vectors, "chain": chain})
                case "list":
                    answer = client.get("/chains")
                case _:
                    answer = client.post(f"/chains/{chain}/promote", json={"version": rng.choice([1, 2])})
            seconds.append(time.perf_counter() - begun)
            statuses[f"{kind} {answer.status_code}"] += 1
            json.loads(answer.content)
