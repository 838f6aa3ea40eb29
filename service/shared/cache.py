"""Vectors of texts that any replica has seen, as float16: half the bytes, at a cosine of COSINE or more.

Two generations, each a hash of half the bytes that are allowed. When the young one is full, or has had half its time,
it takes the old one's place. So the size is bounded whatever Redis is used for besides, a lookup is one round trip,
and all of it has a time to live: a Redis set to `volatile-lru` evicts it, and never a chain.
"""

import logging
import threading
import time
import zlib
from collections.abc import Sequence
from queue import Empty, Full, Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter
from redis import exceptions as redis_errors

from service.cache import Entry
from service.shared.damage import note_damage
from service.shared.link import RedisLink, as_unavailable, connect

COSINE = 0.9999998
"""Of a unit vector with what comes back, at least; lengths are made 1 again. float16 rounds each number by a share of
2⁻¹¹ at most, so the angle is at most 2⁻¹¹ and its cosine at least 1 − 2⁻²³; numbers below 6e-5 add less than that."""
PATIENCE_SECONDS = 0.25
"""A cache that takes longer is no help."""
PAUSE_SECONDS = 1.0
"""For which a Redis that took longer is not asked."""
WAITING_MOST = 64
"""Batches on their way to Redis; more are dropped."""
ENTRY_BYTES = 130
"""What Redis takes for an entry beside its vector."""
YOUNG, OLD, STATE = "lathe:cache:young", "lathe:cache:old", "lathe:cache:state"
PUT = """
local half, seconds = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(redis.call('TIME')[1])
local begun = tonumber(redis.call('HGET', KEYS[3], 'begun') or now)
local bytes = tonumber(redis.call('HGET', KEYS[3], 'bytes') or 0)
if redis.call('EXISTS', KEYS[1]) == 0 then bytes, begun = 0, now end
for i = 4, #ARGV, 2 do
    if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then bytes = bytes + #ARGV[i + 1] + ARGV[3] end
end
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], seconds) end
if bytes > half or now - begun > seconds / 2 then
    redis.call('UNLINK', KEYS[2])
    redis.call('RENAME', KEYS[1], KEYS[2])
    bytes, begun = 0, now
end
redis.call('HSET', KEYS[3], 'bytes', bytes, 'begun', begun)
redis.call('EXPIRE', KEYS[3], seconds)
"""
"""Keys: young, old, state. Arguments: half the bytes allowed, seconds to live, an entry's own bytes, key and value of
each entry. Redis's clock counts, so that replicas need not agree on theirs."""

HITS = Counter("lathe_shared_cache_hits", "Texts whose vectors another replica, or an earlier run, had left in Redis")
MISSES = Counter("lathe_shared_cache_misses", "Texts whose vectors were not in Redis, or could not be read")
FAILURES = Counter("lathe_shared_cache_failures", "Reads and writes that Redis did not take", ["operation"])

log = logging.getLogger(__name__)
Batch = tuple[list[bytes], NDArray[np.float32], NDArray[np.int64]]


class SharedCache:
    """Vectors in Redis; without it nothing is found and nothing fails.

    Args:
        link: to Redis.
        max_bytes: that they may take.
        seconds: that they are kept at most.
    """

    def __init__(self, link: RedisLink, max_bytes: int, seconds: int) -> None:
        self.link = link
        self.max_bytes = max_bytes
        self.seconds = seconds
        self.client = connect(link.url, PATIENCE_SECONDS, again=0)
        self.script = self.client.register_script(PUT)
        self.waiting: Queue[Batch] = Queue(WAITING_MOST)
        self.stopping = threading.Event()
        self.paused_until = 0.0
        self.thread = threading.Thread(target=self.run, name="shared cache", daemon=True)

    @property
    def asked(self) -> bool:
        """Whether Redis is asked at all just now."""
        return self.link.up and time.monotonic() >= self.paused_until

    def start(self) -> None:
        """Begin to write what is put."""
        self.thread.start()

    def stop(self) -> None:
        """Write no longer."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=2)
        self.client.close()

    def get(self, keys: Sequence[bytes], normalized: bool, dimensions: int) -> list[Entry | None]:
        """What is there, in the order of the keys.

        Args:
            keys: of texts.
            normalized: whether they are of unit vectors.
            dimensions: that their vectors have; others are damaged.
        """
        found: list[Entry | None] = [None] * len(keys)
        if keys and self.asked:
            try:
                with self.client.pipeline(transaction=False) as pipe:
                    pipe.hmget(YOUNG, list(keys))
                    pipe.hmget(OLD, list(keys))
                    young, old = pipe.execute()
                contents = [before if new is None else new for new, before in zip(young, old, strict=True)]
                found = [None if part is None else entry_of(part, normalized, dimensions) for part in contents]
                for key, part, entry in zip(keys, contents, found, strict=True):
                    if part is not None and entry is None:
                        note_damage("vector", key.hex(), "its checksum, width or numbers are wrong")
            except redis_errors.RedisError as error:
                self.failed("read", error)
        hits = sum(entry is not None for entry in found)
        HITS.inc(hits)
        MISSES.inc(len(found) - hits)
        return found

    def put(self, keys: list[bytes], vectors: NDArray[np.float32], tokens: NDArray[np.int64]) -> None:
        """Let vectors `(n, d)` be written; never waits, and drops them where Redis does not keep up."""
        if not self.asked:
            return
        try:
            self.waiting.put_nowait((keys, vectors.copy(), tokens))  # a view would keep its whole batch in memory
        except Full:
            FAILURES.labels("write").inc()

    def run(self) -> None:
        """Write what waits until told to stop."""
        while not self.stopping.is_set():
            try:
                batch = self.waiting.get(timeout=0.5)
            except Empty:
                continue
            try:
                if self.asked:
                    self.write(*batch)
            except redis_errors.RedisError as error:
                self.failed("write", error)
            except Exception:
                log.exception("writing the shared cache failed; going on")

    def write(self, keys: list[bytes], vectors: NDArray[np.float32], tokens: NDArray[np.int64]) -> None:
        """Write a batch, but for vectors that float16 cannot hold."""
        with np.errstate(over="ignore"):
            halves = vectors.astype(np.float16)
        fit = np.asarray(np.isfinite(halves).all(axis=1))
        pairs: list[bytes] = []
        for key, half, count, fits in zip(keys, halves, tokens, fit, strict=True):
            if fits:
                content = int(count).to_bytes(4, "little") + half.tobytes()
                pairs += [key, zlib.crc32(content).to_bytes(4, "little") + content]
        if pairs:
            limits: list[Any] = [self.max_bytes // 2, self.seconds, ENTRY_BYTES]
            self.script(keys=[YOUNG, OLD, STATE], args=limits + pairs)

    def failed(self, operation: str, error: redis_errors.RedisError) -> None:
        """Count what Redis did not take; one that is gone is not asked again before the follower has reached it."""
        FAILURES.labels(operation).inc()
        if isinstance(error, redis_errors.TimeoutError):
            self.paused_until = time.monotonic() + PAUSE_SECONDS
        elif isinstance(error, redis_errors.ConnectionError):
            self.link.mark_down(as_unavailable(error).message)


def entry_of(content: bytes, normalized: bool, dimensions: int) -> Entry | None:
    """Return an entry from its bytes; None if they are damaged."""
    if len(content) != 8 + 2 * dimensions or zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
        return None
    vector = np.frombuffer(content, np.float16, offset=8).astype(np.float32)
    if not np.isfinite(vector).all():
        return None
    if normalized:
        vector /= max(float(np.linalg.norm(vector)), 1e-12)
    return Entry(vector, int.from_bytes(content[4:8], "little"))
