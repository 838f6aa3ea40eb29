"""Cost of observing drift for a request: the same requests to one server, alternating with and without."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.server import Server
from lathe.training.sources.readers import read_docstring_paragraphs

MAX_CHARACTERS = 200
DIFFERENT = 8
"""Number of distinct requests: few, so that a cache holds them all before the measurement."""

BLOCKS = {("on", 1): (32, 1.0), ("on", 64): (32, 1.0), ("off", 1): (8, 0.5), ("off", 64): (8, 0.5)}
"""By cache and texts: requests of a block, long enough to have the cost of all that is done now and then; and the
share of the blocks asked for."""

SETTLED_SECONDS = 0.03
"""Seconds after a block in which the observing thread can finish."""

WARM_BLOCKS = 24
"""Blocks before the measurement, so that more rows came than a generation holds, past which not every request is
observed."""

RESAMPLES = 2000
CHAIN = "compact"


class WatchedServer(Server):
    """A server whose observer can be switched off."""

    command = (sys.executable, "-m", "benchmarks.drift_server")


def measure_cost(blocks: int) -> list[dict[str, Any]]:
    """Measure times with and without observing, for one text and for many, with the cache on and off.

    Returns:
        `overhead` is the median over pairs of blocks of the difference of their mean times, over the median time
        without; `low` and `high` are its 95 % interval, by resampling pairs.
    """
    texts = [text for text in read_docstring_paragraphs() if len(text) <= MAX_CHARACTERS]
    costs = []
    for cache in ("on", "off"):
        with tempfile.TemporaryDirectory() as folder:
            server = WatchedServer(Path(folder), LATHE_CACHE_BYTES="100000000" if cache == "on" else "0")
            try:
                for size in (1, 64):
                    block_requests, share = BLOCKS[cache, size]
                    bodies = [
                        orjson.dumps({"inputs": texts[at * size : (at + 1) * size], "chain": CHAIN})
                        for at in range(DIFFERENT)
                    ] * (block_requests // DIFFERENT)
                    times = measure_alternating(server, bodies, max(int(blocks * share), 4))
                    costs.append({"texts": size, "cache": cache, "requests": block_requests} | times)
                    print(f"  {costs[-1]}", file=sys.stderr)
            finally:
                server.stop()
    return costs


def measure_alternating(server: Server, bodies: list[bytes], pairs: int) -> dict[str, Any]:
    """Time blocks with and without observing, in an order that changes from pair to pair."""
    milliseconds: dict[str, list[float]] = {"false": [], "true": []}
    for _ in range(WARM_BLOCKS):
        time_requests(server, bodies)
    for number in range(pairs):
        for watching in sorted(milliseconds, reverse=number % 2 == 0):
            server.call("POST", f"/watching/{watching}")
            milliseconds[watching].append(1000 * time_requests(server, bodies))
            time.sleep(SETTLED_SECONDS)
    off, on = (np.array(milliseconds[side]) for side in ("false", "true"))
    resamples = np.random.default_rng(0).integers(0, pairs, (RESAMPLES, pairs))
    shares = np.median((on - off)[resamples], axis=1) / np.median(off[resamples], axis=1)
    low, high = np.quantile(shares, [0.025, 0.975]).tolist()
    medians = {"off_ms": float(np.median(off)), "on_ms": float(np.median(on))}
    overhead = float(np.median(on - off) / np.median(off))
    return {"pairs": pairs} | medians | {"overhead": overhead, "low": low, "high": high}


def time_requests(server: Server, bodies: list[bytes]) -> float:
    """Return the mean seconds of requests sent one after another."""
    begun = time.perf_counter()
    for body in bodies:
        answer = server.client.post("/embed", content=body, headers={"content-type": "application/json"})
        if answer.status_code != 200:
            sys.exit(f"/embed: {answer.status_code} {answer.text[:200]}")
    return (time.perf_counter() - begun) / len(bodies)
