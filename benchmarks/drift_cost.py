"""What watching for drift costs a request: the same requests to one real server, in turns with and without."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.server import Server
from lathe.training.sources.docstrings import read_docstring_paragraphs

MAX_CHARACTERS = 200
DIFFERENT = 8
"""Requests that differ: few, so that a cache has seen them all before it counts."""

BLOCKS = {("on", 1): (32, 1.0), ("on", 64): (32, 1.0), ("off", 1): (8, 0.5), ("off", 64): (8, 0.5)}
"""By cache and texts: requests of a block, long enough to have the cost of all that is done now and then; and the
share of the blocks asked for."""

SETTLED_SECONDS = 0.03
"""After a block, for the thread beside the requests."""

WARM_BLOCKS = 24
"""First, so that more came than a generation holds, past which not every request is looked at."""

RESAMPLES = 2000
CHAIN = "compact"


class WatchedServer(Server):
    """A server whose watch can be taken off."""

    command = (sys.executable, "-m", "benchmarks.drift_server")


def measure_cost(blocks: int) -> list[dict[str, Any]]:
    """Times with and without, for one text and for many, found in the cache and not.

    Returns:
        `overhead` is the median over pairs of blocks of the difference of their mean times, over the median time
        without; `low` and `high` its 95 % interval, by drawing pairs anew.
    """
    texts = [text for text in read_docstring_paragraphs() if len(text) <= MAX_CHARACTERS]
    found = []
    for cache in ("on", "off"):
        with tempfile.TemporaryDirectory() as folder:
            server = WatchedServer(Path(folder), LATHE_CACHE_BYTES="100000000" if cache == "on" else "0")
            try:
                for size in (1, 64):
                    of_a_block, share = BLOCKS[cache, size]
                    bodies = [
                        orjson.dumps({"inputs": texts[at * size : (at + 1) * size], "chain": CHAIN})
                        for at in range(DIFFERENT)
                    ] * (of_a_block // DIFFERENT)
                    taken = in_turns(server, bodies, max(int(blocks * share), 4))
                    found.append({"texts": size, "cache": cache, "requests": of_a_block} | taken)
                    print(f"  {found[-1]}", file=sys.stderr)
            finally:
                server.stop()
    return found


def in_turns(server: Server, bodies: list[bytes], pairs: int) -> dict[str, Any]:
    """Blocks with and without, the order changing from pair to pair."""
    taken: dict[str, list[float]] = {"false": [], "true": []}
    for _ in range(WARM_BLOCKS):
        timed(server, bodies)
    for number in range(pairs):
        for watching in sorted(taken, reverse=number % 2 == 0):
            server.call("POST", f"/watching/{watching}")
            taken[watching].append(1000 * timed(server, bodies))
            time.sleep(SETTLED_SECONDS)
    off, on = (np.array(taken[side]) for side in ("false", "true"))
    again = np.random.default_rng(0).integers(0, pairs, (RESAMPLES, pairs))
    shares = np.median((on - off)[again], axis=1) / np.median(off[again], axis=1)
    low, high = np.quantile(shares, [0.025, 0.975]).tolist()
    middle = {"off_ms": float(np.median(off)), "on_ms": float(np.median(on))}
    overhead = float(np.median(on - off) / np.median(off))
    return {"pairs": pairs} | middle | {"overhead": overhead, "low": low, "high": high}


def timed(server: Server, bodies: list[bytes]) -> float:
    """Mean seconds of requests one after another."""
    begun = time.perf_counter()
    for body in bodies:
        answer = server.client.post("/embed", content=body, headers={"content-type": "application/json"})
        if answer.status_code != 200:
            sys.exit(f"/embed: {answer.status_code} {answer.text[:200]}")
    return (time.perf_counter() - begun) / len(bodies)
