"""What watching for drift costs a request: the same requests to two servers in turns, one of which does not watch."""

import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from scipy import stats

from benchmarks.server import Server
from training.docstrings import docstring_paragraphs

SIZES = (1, 64)
CHARACTERS_MOST = 200
REQUESTS = 8
"""Different ones: few, so that a cache has seen them all before it counts."""

CHAIN = "compact"


def measure_cost(pairs: int, rounds: int) -> list[dict[str, Any]]:
    """Times with and without, for one text and for many, found in the cache and not.

    Two servers differ by some hundredths for no reason but where they lie in memory, so each round starts two anew,
    in turns the one or the other first.

    Returns:
        `overhead` is the mean over the rounds of the median difference within pairs over the median without;
        `ci95` half its interval.
    """
    texts = [text for text in docstring_paragraphs() if len(text) <= CHARACTERS_MOST]
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for number, cache in product(range(rounds), ("on", "off")):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            sides = {}
            for drift in ("false", "true") if number % 2 == 0 else ("true", "false"):
                size = "100000000" if cache == "on" else "0"
                sides[drift] = Server(Path(folder) / drift, LATHE_DRIFT=drift, LATHE_CACHE_BYTES=size)
                stack.callback(sides[drift].stop)
            for texts_each in SIZES:
                slow = cache == "off" and texts_each > 1
                taken = paired(sides, texts, texts_each, max(pairs // 6, REQUESTS) if slow else pairs)
                found.setdefault((texts_each, cache), []).append(taken)
                print(f"  round {number + 1}, {texts_each} texts, cache {cache}: {taken}", file=sys.stderr)
    return [{"texts": size, "cache": cache} | over_rounds(taken) for (size, cache), taken in found.items()]


def over_rounds(taken: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the rounds."""
    overheads = [one["overhead"] for one in taken]
    spread = float(np.std(overheads, ddof=1)) / np.sqrt(len(taken)) if len(taken) > 1 else float("nan")
    means = {name: float(np.mean([one[name] for one in taken])) for name in taken[0]}
    return means | {"rounds": overheads, "ci95": float(stats.t.ppf(0.975, len(taken) - 1)) * spread}


def paired(sides: dict[str, Server], texts: list[str], size: int, pairs: int) -> dict[str, float]:
    """The same request to both, the order changing from pair to pair; some first, to warm up."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(-2 * REQUESTS, pairs):
        start = number % REQUESTS * size
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
    return {
        "pairs": pairs,
        "off_ms": float(np.median(off)),
        "on_ms": float(np.median(on)),
        "overhead": float(np.median(on - off) / np.median(off)),
    }
