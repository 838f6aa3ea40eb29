"""Rate of `/reduce`, relative to the least any server must do with the same bytes, and memory over many requests."""

import io
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.load import Target, closed_loop
from benchmarks.server import Server

ROWS, WIDTH = 4096, 384
NPY = "application/x-npy"
REQUESTS = 20
"""Number of requests in each round."""


def measure_reduce(home: Path, rounds: int) -> dict[str, Any]:
    """Measure the reduction of bodies of 4096 × 384 to 128, as npy and as JSON, one at a time and two."""
    lathe = Server(home, LATHE_WORKERS="1")
    try:
        vectors = make_unit_vectors(ROWS)
        npy = Target(f"{lathe.url}/reduce?chain=compact", NPY, NPY)
        figures: dict[str, Any] = {"rows": ROWS, "width": WIDTH}
        for concurrency in (1, 2):
            closed_loop(npy, [serialize_npy(vectors)] * 4, concurrency)
            rates = [
                REQUESTS * ROWS / closed_loop(npy, [serialize_npy(vectors)] * REQUESTS, concurrency).seconds
                for _ in range(rounds)
            ]
            figures[f"npy_vectors_per_second_{concurrency}_at_a_time"] = round(statistics.median(rates))
        return figures | measure_json(lathe.url, vectors, rounds)
    finally:
        lathe.stop()


def measure_json(url: str, vectors: np.ndarray[Any, Any], rounds: int) -> dict[str, Any]:
    """Measure a JSON request's time, relative to only parsing its body and writing an answer of its size."""
    body = orjson.dumps({"vectors": vectors, "chain": "compact"}, option=orjson.OPT_SERIALIZE_NUMPY)
    target = Target(f"{url}/reduce")
    answer = closed_loop(target, [body] * 2, 1, keep=True).bodies[0]
    reduced = np.array(orjson.loads(answer)["vectors"], dtype=np.float32)
    ratios, seconds = [], []
    for _ in range(2 * rounds):
        begun = time.perf_counter()
        orjson.loads(body)
        orjson.dumps({"vectors": reduced}, option=orjson.OPT_SERIALIZE_NUMPY)
        least = time.perf_counter() - begun
        seconds.append(closed_loop(target, [body], 1).latencies[0])
        ratios.append(seconds[-1] / least)
    return {
        "json_ms": round(1000 * statistics.median(seconds), 1),
        "json_to_parse_and_dump": round(statistics.median(ratios), 3),
        "json_to_parse_and_dump_least": round(min(ratios), 3),
        "json_to_parse_and_dump_greatest": round(max(ratios), 3),
    }


def measure_memory(home: Path, requests: int) -> dict[str, Any]:
    """Measure the memory of a server after a tenth of some small requests, and after all of them."""
    lathe = Server(home, LATHE_WORKERS="1")
    try:
        body = serialize_npy(make_unit_vectors(8))
        target = Target(f"{lathe.url}/reduce?chain=compact", NPY, NPY)
        held = []
        for share in (requests // 10, requests - requests // 10):
            load = closed_loop(target, [body] * share, 16)
            held.append(lathe.memory("VmRSS"))
        return {
            "requests": requests,
            "requests_per_second": round(share / load.seconds),
            "mb_after_a_tenth": round(held[0] / 1e6, 1),
            "mb_after_all": round(held[1] / 1e6, 1),
        }
    finally:
        lathe.stop()


def make_unit_vectors(count: int) -> np.ndarray[Any, Any]:
    """Make random unit vectors of the encoder's dimensions, since the work does not depend on them."""
    rows = np.random.default_rng(0).normal(size=(count, WIDTH)).astype(np.float32)
    unit: np.ndarray[Any, Any] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def serialize_npy(vectors: np.ndarray[Any, Any]) -> bytes:
    """Serialize vectors as the bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, vectors)
    return file.getvalue()
