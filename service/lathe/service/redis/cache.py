"""Redis cache of text vectors that any replica encoded, as float16.

float16 takes half the bytes, at a cosine of COSINE or more. There are two generations, each a hash of half the allowed
bytes. When the young one is full, or half the time to live has passed, it replaces the old one. The size is thus
bounded whatever else Redis is used for, a lookup is one round trip, and all entries have a time to live: a Redis set to
`volatile-lru` evicts them, and never a chain.
"""

import logging
import threading
import time
import zlib
from collections.abc import Sequence
from queue import Empty, Full, Queue
from typing import Any

import numpy as np
from prometheus_client import Counter
from redis import exceptions as redis_errors

from lathe.service.encoders.cache import CachedVector, VectorBatch
from lathe.service.redis.connection import RedisConnection, as_unavailable, connect, note_damage
from lathe.training.thread_problem import ThreadProblem

COSINE = 0.9999998
"""Lower bound of the cosine of a unit vector and its restored copy, which is normalized. float16 rounds each number by
a share of 2⁻¹¹ at most, so the angle is at most 2⁻¹¹ and its cosine at least 1 − 2⁻²³; numbers below 6e-5 add less than
that."""
PATIENCE_SECONDS = 0.25
"""Timeout of a request to Redis in seconds; a cache that takes longer does not help."""
PAUSE_SECONDS = 1.0
"""Seconds without requests after a timeout."""
MAX_WAITING = 64
"""Maximum number of batches queued for Redis; more are dropped."""
ENTRY_BYTES = 130
"""Bytes that Redis takes for an entry besides its vector."""
YOUNG, OLD, STATE = "lathe:cache:young", "lathe:cache:old", "lathe:cache:state"
PUT = """
local half, seconds = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
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
"""Lua script that adds entries to the young generation, and ages it when it is full or half its time is up.

Keys: young, old, state. Arguments: half the allowed bytes, seconds to live, an entry's own bytes, then key and value of
each entry. Redis's clock is used, so that replicas need not agree on theirs."""

HITS = Counter("lathe_shared_cache_hits", "Texts whose vectors another replica, or an earlier run, had left in Redis")
MISSES = Counter("lathe_shared_cache_misses", "Texts whose vectors were not in Redis, or could not be read")
FAILURES = Counter("lathe_shared_cache_failures", "Reads and writes that Redis did not take", ["operation"])

log = logging.getLogger(__name__)


class SharedCache:
    """Cache of vectors of texts in Redis, as float16, which all replicas share.

    While Redis is unreachable, lookups miss and writes are dropped.

    Args:
        max_bytes: bytes that the entries may take.
        seconds: maximum time that an entry is kept.
    """

    def __init__(self, connection: RedisConnection, max_bytes: int, seconds: int) -> None:
        self.connection = connection
        self.max_bytes = max_bytes
        self.seconds = seconds
        self.client = connect(connection.url, PATIENCE_SECONDS, retries=0)
        self.script = self.client.register_script(PUT)
        self.waiting: Queue[VectorBatch] = Queue(MAX_WAITING)
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("writing to the shared cache")
        self.paused_until = 0.0
        self.thread = threading.Thread(target=self.run, name="shared cache", daemon=True)

    @property
    def available(self) -> bool:
        """Whether requests are sent to Redis now.

        They are if Redis is up and no pause after a timeout is on.
        """
        return self.connection.up and time.monotonic() >= self.paused_until

    def start(self) -> None:
        """Start the thread that writes entries to Redis."""
        self.thread.start()

    def stop(self) -> None:
        """End the writer thread, waiting up to 2 s for it, and close the connection to Redis."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=2)
        self.client.close()

    def get(self, keys: Sequence[bytes], normalized: bool, dimensions: int) -> list[CachedVector | None]:
        """Look up vectors of texts in Redis by key. Return an entry for each key in order, or None where there is none.

        An entry is None if it is missing or damaged, or Redis fails. Hits, misses and damaged entries are counted. A
        timeout pauses requests, and a lost connection marks Redis as down.

        Args:
            keys: cache keys of texts.
            normalized: whether the vectors are unit vectors.
            dimensions: dimensions that the vectors must have; others count as damaged.
        """
        entries: list[CachedVector | None] = [None] * len(keys)
        if keys and self.available:
            try:
                with self.client.pipeline(transaction=False) as pipe:
                    pipe.hmget(YOUNG, list(keys))
                    pipe.hmget(OLD, list(keys))
                    young, old = pipe.execute()

                # An entry is in the old generation, the young one, or both; the young one's is newer.
                contents = [aged if recent is None else recent for recent, aged in zip(young, old, strict=True)]
                entries = [
                    None if content is None else _decode_entry(content, normalized, dimensions) for content in contents
                ]
                for key, content, entry in zip(keys, contents, entries, strict=True):
                    if content is not None and entry is None:
                        note_damage("vector", key.hex(), "its checksum, dimensions or numbers are wrong")
            except redis_errors.RedisError as error:
                self._note_failure("read", error)

        hits = sum(entry is not None for entry in entries)
        HITS.inc(hits)
        MISSES.inc(len(entries) - hits)
        return entries

    def put(self, *batch: *VectorBatch) -> None:
        """Queue a copy of vectors to be written to Redis in the background. They are dropped if the queue is full.

        Nothing is queued while Redis is unavailable.
        """
        if not self.available:
            return
        keys, vectors, tokens, cut = batch
        try:
            self.waiting.put_nowait((keys, vectors.copy(), tokens, cut))  # a view would keep its whole batch in memory
        except Full:
            FAILURES.labels("write").inc()

    def run(self) -> None:
        """Write queued vectors to Redis until the thread is stopped. Errors are counted, not raised."""
        while not self.stopping.is_set():
            try:
                batch = self.waiting.get(timeout=0.5)
            except Empty:
                continue
            with self.unexpected.watch():
                try:
                    if self.available:
                        self.write_batch(*batch)
                except redis_errors.RedisError as error:
                    self._note_failure("write", error)

    def write_batch(self, *batch: *VectorBatch) -> None:
        """Write vectors `(n, d)` as float16 and token counts to Redis, under the keys of their texts, with checksums.

        Vectors that overflow float16 are skipped. The number of tokens that were cut is left out where it is 0.
        """
        keys, vectors, tokens, cut = batch
        # Numbers beyond 65504 become inf in float16; such rows are left out below.
        with np.errstate(over="ignore"):
            halves = vectors.astype(np.float16)
        representable = np.asarray(np.isfinite(halves).all(axis=1))  # (n,)

        pairs: list[bytes] = []
        for key, half, count, unread, fits in zip(keys, halves, tokens, cut, representable, strict=True):
            if fits:
                content = int(count).to_bytes(4, "little") + half.tobytes()
                content += int(unread).to_bytes(4, "little") if unread else b""
                pairs += [key, zlib.crc32(content).to_bytes(4, "little") + content]
        if pairs:
            limits: list[Any] = [self.max_bytes // 2, self.seconds, ENTRY_BYTES]
            self.script(keys=[YOUNG, OLD, STATE], args=limits + pairs)

    def _note_failure(self, operation: str, error: redis_errors.RedisError) -> None:
        """Count a failed read or write. Pause after a timeout, and mark Redis as down after a lost connection."""
        FAILURES.labels(operation).inc()
        # A slow Redis is left alone for a while; a lost one is marked as down for all that use it.
        if isinstance(error, redis_errors.TimeoutError):
            self.paused_until = time.monotonic() + PAUSE_SECONDS
        elif isinstance(error, redis_errors.ConnectionError):
            self.connection.mark_down(as_unavailable(error).message)


def _decode_entry(content: bytes, normalized: bool, dimensions: int) -> CachedVector | None:
    """Return a cached entry as a float32 vector `(d,)` with its token counts, or None if it is damaged.

    It is damaged if its checksum, dimensions or numbers are wrong.

    Args:
        content: the entry: checksum, tokens read, float16 numbers and, unless it is 0, tokens cut.
        normalized: whether to restore the unit norm.
        dimensions: dimensions that the vector must have.
    """
    end = 8 + 2 * dimensions
    if len(content) not in (end, end + 4) or zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
        return None

    # CRC-32 of the rest (4 bytes), tokens read (4), d numbers (2 each), and tokens cut (4) unless there are none.
    vector = np.frombuffer(content[:end], np.float16, offset=8).astype(np.float32)
    if not np.isfinite(vector).all():
        return None
    if normalized:
        vector /= max(float(np.linalg.norm(vector)), 1e-12)
    return CachedVector(vector, int.from_bytes(content[4:8], "little"), int.from_bytes(content[end:], "little"))
