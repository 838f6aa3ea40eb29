"""What watching for drift costs a request: the same requests to two servers in turns, one of which does not watch."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.server import Server
from training.docstrings import docstring_paragraphs

SIZES = (1, 64)
CHARACTERS_MOST = 200
RESAMPLES = 2000
REQUESTS = 8
"""Different ones: few, so that a cache has seen them all before it counts."""

CHAIN = "compact"


def measure_cost(pairs: int) -> list[dict[str, Any]]:
    """Median times with and without, for one text and for many, found in the cache and not.

    Returns:
        `overhead` is the median of the differences within pairs over the median time without; `low` and `high`
        its 95 % interval, by drawing pairs anew.
    """
    texts = [text for text in docstring_paragraphs() if len(text) <= CHARACTERS_MOST]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("on", "off"):
            sides = {
                drift: Server(
                    Path(folder) / f"{cache}-{drift}",
                    LATHE_DRIFT=drift,
                    LATHE_CACHE_BYTES="100000000" if cache == "on" else "0",
                )
                for drift in ("false", "true")
            }
            try:
                for size in SIZES:
                    count = pairs if size == 1 or cache == "on" else max(pairs // 6, 20)
                    found.append({"texts": size, "cache": cache} | paired(sides, texts, size, count))
            finally:
                for server in sides.values():
                    server.stop()
    return found


def paired(sides: dict[str, Server], texts: list[str], size: int, pairs: int) -> dict[str, Any]:
    """The same request to both, the order changing from pair to pair; some first, to warm up."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    warm = max(pairs // 10, 2 * REQUESTS)
    for number in range(-warm, pairs):
        start = (number + warm) % REQUESTS * size
        body = orjson.dumps({"inputs": texts[start : start + size], "chain": CHAIN})
        for side in sorted(sides, reverse=number % 2 == 0):
            begun = time.perf_counter()
            answer = sides[side].client.post("/embed", content=body, headers={"content-type": "application/json"})
            seconds = time.perf_counter() - begun
            if answer.status_code != 200:
                sys.exit(f"/embed: {answer.status_code} {answer.text[:200]}")
            if number >= 0:
                taken[side].append(seconds)
    off, on = (1000 * np.array(taken[side]) for side in ("false", "true"))
    rng = np.random.default_rng(0)
    again = rng.integers(0, pairs, (RESAMPLES, pairs))
    shares = np.median((on - off)[again], axis=1) / np.median(off[again], axis=1)
    low, high = np.quantile(shares, [0.025, 0.975]).tolist()
    return {
        "pairs": pairs,
        "off_ms": float(np.median(off)),
        "on_ms": float(np.median(on)),
        "overhead": float(np.median(on - off) / np.median(off)),
        "low": low,
        "high": high,
    }
