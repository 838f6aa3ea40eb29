"""In-memory LRU cache of text vectors as the encoder outputs them, before any chain, so that all chains share it."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge

from lathe.service.encoders.engine.work import EncodeOptions, EncoderInfo
from lathe.training.encoder.text_encoder import hash_texts

ENTRY_BYTES = 300
"""Bytes that an entry takes besides its floats, for the key, the objects and the place in the cache."""

HITS = Counter("lathe_cache_hits", "Texts whose vectors were in the cache", ["encoder"])
MISSES = Counter("lathe_cache_misses", "Texts whose vectors were not", ["encoder"])
BYTES = Gauge("lathe_cache_bytes", "Bytes of cached vectors")


@cache
def _get_counters(encoder: str) -> tuple[Counter, Counter]:
    """Return an encoder's counters of cache hits and misses, which take longer to look up than a cached vector."""
    return HITS.labels(encoder), MISSES.labels(encoder)


@dataclass(frozen=True)
class CachedVector:
    """A text's vector `(d,)` by the encoder, before any chain of transforms, and its numbers of tokens read and cut."""

    vector: NDArray[np.float32]
    tokens: int
    cut: int = 0


VectorBatch = tuple[list[bytes], NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]
"""Keys of texts, their vectors `(n, d)`, and the numbers of tokens of each that were read, and that were cut."""


class SecondLevelCache(Protocol):
    """A second-level cache, asked for vectors that this process has not cached."""

    def get(self, keys: Sequence[bytes], normalized: bool, dimensions: int) -> list[CachedVector | None]:
        """Return the entry of each key in order, or None where there is none or it has other dimensions.

        The call may block briefly.
        """

    def put(self, *batch: *VectorBatch) -> None:
        """Store vectors by their keys without blocking."""


class VectorCache:
    """An LRU cache of text vectors, bounded in bytes.

    Args:
        max_bytes: bytes that entries may take; 0 turns the cache off.
        second_level: cache that is asked for vectors which this one lacks.
    """

    def __init__(self, max_bytes: int, second_level: SecondLevelCache | None = None) -> None:
        self.max_bytes = max_bytes
        self.second_level = second_level
        self.entries: LRUCache[bytes, CachedVector] = LRUCache(
            max(max_bytes, 1), getsizeof=lambda entry: entry.vector.nbytes + ENTRY_BYTES
        )
        self.guard = threading.Lock()

    def can_serve(self, options: EncodeOptions) -> bool:
        """Return whether the cache may answer a request with these options: it is on, and long texts raise no error."""
        return self.max_bytes > 0 and options.long_text != "error"

    def compute_keys(
        self, encoder: EncoderInfo, options: EncodeOptions, prompt: str | None, texts: Iterable[str]
    ) -> list[bytes]:
        """Return the cache key of each text, a hash of everything that its vector depends on.

        That is the text, the encoder's fingerprint and dtype, the prompt's text, truncation side and normalization, and
        whether long texts are means. The prompt's text is given as `prompt_key` of the encoder returns it.
        """
        side = "mean" if options.long_text == "mean" else options.truncation_side
        context = repr((encoder.fingerprint, encoder.spec.dtype, prompt, side, options.normalize))
        return hash_texts(context, texts)

    def get(self, encoder: EncoderInfo, keys: list[bytes], normalized: bool) -> list[CachedVector | None]:
        """Look up vectors by key in memory, then in the second-level cache, with None for each key that is in neither.

        The metrics of hits and misses are updated. The second-level cache may block, and its entries are kept in
        memory: do not call this on the event loop if there is one.
        """
        with self.guard:
            entries = [self.entries.get(key) for key in keys]

        missing = [index for index, entry in enumerate(entries) if entry is None]
        if self.second_level is not None and missing:
            fetched = self.second_level.get([keys[index] for index in missing], normalized, encoder.dimensions)
            for index, entry in zip(missing, fetched, strict=True):
                entries[index] = entry
            self._store(
                {keys[index]: entry for index, entry in zip(missing, fetched, strict=True) if entry is not None}
            )

        hits = sum(entry is not None for entry in entries)
        hit_counter, miss_counter = _get_counters(encoder.name)
        hit_counter.inc(hits)
        miss_counter.inc(len(entries) - hits)
        return entries

    def put(self, *batch: *VectorBatch) -> None:
        """Store copies of vectors `(n, d)` with token counts under their keys, also in the second-level cache.

        The least recently used entries are evicted.
        """
        rows = zip(*batch, strict=True)
        # Copies: a view would keep its whole batch in memory.
        self._store({key: CachedVector(row.copy(), int(read), int(unread)) for key, row, read, unread in rows})
        if self.second_level is not None:
            self.second_level.put(*batch)

    def _store(self, entries: Mapping[bytes, CachedVector]) -> None:
        """Add entries to memory, except those larger than the whole cache. Update the metric of the cache's bytes."""
        with self.guard:
            for key, entry in entries.items():
                if entry.vector.nbytes + ENTRY_BYTES <= self.max_bytes:
                    self.entries[key] = entry
            # Set under the lock, so that the metric's last value is that of the last change.
            BYTES.set(self.entries.currsize)
