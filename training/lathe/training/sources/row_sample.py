"""Uniform random sample of the distinct rows of a source, in one pass and bounded memory."""

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from lathe.training.errors import EmptyError
from lathe.training.sources.source import Source
from lathe.transforms.vectors import FloatArray


@dataclass(frozen=True)
class RowSample:
    """Random sample of the distinct rows of a source of texts or vectors, in a random order that the seed determines.

    Attributes:
        texts: sampled texts, distinct after whitespace and case are normalized, none blank; empty for a source of
            vectors.
        vectors: sampled distinct vectors `(n, d)`; None for a source of texts.
        rows: number of rows of the source.
        blank: number of blank texts among these rows.
        repeated: estimated share of the rows, without blank ones, that repeat an earlier row, in [0, 1).
    """

    texts: list[str]
    vectors: FloatArray | None
    rows: int
    blank: int
    repeated: float

    def __len__(self) -> int:
        """Return the number of sampled rows."""
        return len(self.texts) if self.vectors is None else len(self.vectors)


def sample_rows(source: Source, max_rows: int, seed: int = 0) -> RowSample:
    """Sample up to `max_rows` distinct rows of a source uniformly at random, in one pass. Only blank rows raise.

    A source with fewer distinct rows gives all of them. The rows with the lowest salted hashes are kept: equal rows
    count once, the order of the source does not matter, and memory is bounded. Texts that differ only in whitespace or
    case count as equal: if one were held out and another fitted on, held-out data would leak into the fit.

    Args:
        source: source of texts or vectors.
        max_rows: maximum number of rows.
        seed: salt of the hashes.

    Returns:
        The rows with the number of all and of blank rows, and the estimated share of repeated rows.

    Raises:
        SourceError: if the source cannot be read.
        EmptyError: if the source has no rows that are not blank.
    """
    lowest, blank, rows = _LowestKeys(max_rows), 0, 0
    salt = seed.to_bytes(8, "little")
    of_texts = True

    for batch in source.batches():
        of_texts = isinstance(batch.values, list)
        rows += len(batch)
        for value in batch.values:
            if isinstance(value, str):
                if not value.strip():
                    blank += 1
                    continue
                # Texts that differ only in spaces or case are one row, or held-out data could leak into the fit.
                content = " ".join(value.split()).casefold().encode(errors="surrogatepass")
            else:
                content = value.tobytes()

            # The salt is the seed: another seed gives other hashes and another sample.
            lowest.add(hashlib.blake2b(content, digest_size=16, salt=salt).digest(), value)

    sampled = list(lowest)
    if not sampled:
        raise EmptyError(f"the source {source.name} holds no rows that are not blank")

    return RowSample(
        texts=[str(value) for value in sampled] if of_texts else [],
        vectors=None if of_texts else np.stack([np.asarray(value) for value in sampled]),
        rows=rows,
        blank=blank,
        repeated=lowest.repeated,
    )


@dataclass
class _LowestKeys:
    """Bounded set of the items with the `max_rows` lowest keys, one item for each key.

    Attributes:
        max_rows: maximum number of items.
        items: items by key.
        times: number of times that each stored key was added.
        heap: keys with inverted bits, so that the highest key comes first.
    """

    max_rows: int
    items: dict[bytes, object] = field(default_factory=dict)
    times: dict[bytes, int] = field(default_factory=dict)
    heap: list[bytes] = field(default_factory=list)

    def add(self, key: bytes, item: object) -> None:
        """Add an item under a key, unless `max_rows` items have lower keys.

        If there are too many items, the item with the highest key is removed. A key that is already stored only
        increases its count. If texts share a key, the alphabetically first text is stored.
        """
        if key in self.items:
            self.times[key] += 1
            if isinstance(item, str):
                self.items[key] = min(str(self.items[key]), item)
            return

        if len(self.heap) < self.max_rows:
            heapq.heappush(self.heap, _invert_bits(key))
        elif key < _invert_bits(self.heap[0]):
            highest = _invert_bits(heapq.heapreplace(self.heap, _invert_bits(key)))
            del self.items[highest], self.times[highest]
        else:
            return

        # An array is copied, so that the batch of which it is a view can be freed.
        self.items[key] = np.array(item) if isinstance(item, np.ndarray) else item
        self.times[key] = 1

    def __iter__(self) -> Iterator[object]:
        return (self.items[key] for key in sorted(self.items))

    @property
    def repeated(self) -> float:
        """Share of the added items whose key was already stored, among the keys that are still stored, in [0, 1)."""
        return 1 - len(self.items) / max(1, sum(self.times.values()))


def _invert_bits(key: bytes) -> bytes:
    return bytes(255 - byte for byte in key)
