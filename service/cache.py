"""Vectors of texts seen before: encoder output, before any chain, so that every chain profits."""

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge

from service.engine.process import EncoderInfo
from service.engine.work import EncodeOptions

ENTRY_BYTES = 300
"""What an entry takes beside its floats: key, objects, its place in the cache."""

HITS = Counter("lathe_cache_hits", "Texts whose vectors were in the cache", ["encoder"])
MISSES = Counter("lathe_cache_misses", "Texts whose vectors were not", ["encoder"])
BYTES = Gauge("lathe_cache_bytes", "Bytes of cached vectors")


@dataclass(frozen=True)
class Entry:
    """A text's vector `(d,)` as its encoder gave it, and the tokens it took."""

    vector: NDArray[np.float32]
    tokens: int


class Behind(Protocol):
    """A cache that is asked for what this process has not seen."""

    def get(self, keys: Sequence[bytes], normalized: bool, dimensions: int) -> list[Entry | None]:
        """What is there and of that many dimensions, in the order of the keys; may wait for a moment."""

    def put(self, keys: list[bytes], vectors: NDArray[np.float32], tokens: NDArray[np.int64]) -> None:
        """Keep vectors; never waits."""


class VectorCache:
    """The entries used last, within a number of bytes; none at all with 0.

    Args:
        max_bytes: that they take in memory.
        behind: the cache that replicas share, if they do.
    """

    def __init__(self, max_bytes: int, behind: Behind | None = None) -> None:
        self.max_bytes = max_bytes
        self.behind = behind
        self.entries: LRUCache[bytes, Entry] = LRUCache(
            max(max_bytes, 1), getsizeof=lambda entry: entry.vector.nbytes + ENTRY_BYTES
        )
        self.guard = threading.Lock()

    def serves(self, options: EncodeOptions) -> bool:
        """Whether a request is answered from it; one that refuses long texts must have them measured."""
        return self.max_bytes > 0 and options.truncate

    def keys(self, encoder: EncoderInfo, options: EncodeOptions, texts: Iterable[str]) -> list[bytes]:
        """A key for each text: its hash with all that its vector depends on."""
        prompt = encoder.prompt(options.prompt_name)
        context = repr((encoder.fingerprint, encoder.spec.dtype, prompt, options.truncation_side, options.normalize))
        start = hashlib.blake2b(context.encode("utf-8", "surrogatepass"), digest_size=16)
        found = []
        for text in texts:
            digest = start.copy()
            digest.update(text.encode("utf-8", "surrogatepass"))
            found.append(digest.digest())
        return found

    def get(self, encoder: EncoderInfo, keys: list[bytes], normalized: bool) -> list[Entry | None]:
        """What is there, in the order of the keys; asks the cache behind, so not for the event loop."""
        with self.guard:
            found = [self.entries.get(key) for key in keys]
        missing = [index for index, entry in enumerate(found) if entry is None]
        if self.behind is not None and missing:
            fetched = self.behind.get([keys[index] for index in missing], normalized, encoder.dimensions)
            for index, entry in zip(missing, fetched, strict=True):
                found[index] = entry
            self.keep({keys[index]: entry for index, entry in zip(missing, fetched, strict=True) if entry is not None})
        hits = sum(entry is not None for entry in found)
        HITS.labels(encoder.name).inc(hits)
        MISSES.labels(encoder.name).inc(len(found) - hits)
        return found

    def put(self, keys: list[bytes], vectors: NDArray[np.float32], tokens: NDArray[np.int64]) -> None:
        """Keep vectors `(n, d)`; those used longest ago make room."""
        rows = zip(keys, vectors, tokens, strict=True)
        self.keep({key: Entry(row.copy(), int(count)) for key, row, count in rows})  # a view would keep its whole batch
        if self.behind is not None:
            self.behind.put(keys, vectors, tokens)

    def keep(self, entries: Mapping[bytes, Entry]) -> None:
        """Keep entries in memory."""
        with self.guard:
            for key, entry in entries.items():
                if entry.vector.nbytes + ENTRY_BYTES <= self.max_bytes:
                    self.entries[key] = entry
            BYTES.set(self.entries.currsize)
