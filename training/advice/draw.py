"""Distinct rows of a source, drawn evenly, in memory that does not grow with it."""

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from training.errors import AdviceError
from training.sources.source import Source
from transforms.vectors import FloatArray


@dataclass(frozen=True)
class Drawn:
    """Rows of a source in an order that is random, and the same each time.

    Attributes:
        texts: distinct, spaces and case aside, and not blank; empty where the source holds vectors.
        vectors: distinct rows `(n, d)`; None where it holds texts.
        rows: of the source.
        blank: of those, texts that held nothing.
        repeated: share of the other rows that repeat an earlier one, estimated from those drawn.
    """

    texts: list[str]
    vectors: FloatArray | None
    rows: int
    blank: int
    repeated: float

    def __len__(self) -> int:
        """Rows drawn."""
        return len(self.texts) if self.vectors is None else len(self.vectors)


def draw(source: Source, most: int, seed: int = 0) -> Drawn:
    """Up to so many distinct rows, each as likely as any other.

    Those with the lowest hashes are kept, so that equal rows are one, the order of the source does not matter, and a
    source of any size takes one pass. Texts that differ in spaces or case alone are one too: held out and fitted on,
    they would be both what is learned and what is asked.

    Raises:
        SourceError: if it cannot be read.
        AdviceError: if it holds nothing.
    """
    lowest, blank, rows = Lowest(most), 0, 0
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
                content = " ".join(value.split()).casefold().encode(errors="surrogatepass")
            else:
                content = value.tobytes()
            lowest.add(hashlib.blake2b(content, digest_size=16, salt=salt).digest(), value)
    kept = list(lowest)
    if not kept:
        raise AdviceError(f"the source {source.name} holds nothing to advise on")
    return Drawn(
        texts=[str(value) for value in kept] if of_texts else [],
        vectors=None if of_texts else np.stack([np.asarray(value) for value in kept]),
        rows=rows,
        blank=blank,
        repeated=lowest.repeated,
    )


@dataclass
class Lowest:
    """The items of the lowest keys, one of each."""

    most: int
    items: dict[bytes, object] = field(default_factory=dict)
    times: dict[bytes, int] = field(default_factory=dict)
    heap: list[bytes] = field(default_factory=list)  # keys with their bits turned, so that the highest comes first

    def add(self, key: bytes, item: object) -> None:
        """Another item; one that is there already is counted, and of texts of one key the first by letters is kept."""
        if key in self.items:
            self.times[key] += 1
            if isinstance(item, str):
                self.items[key] = min(str(self.items[key]), item)
        elif len(self.heap) < self.most:
            heapq.heappush(self.heap, turned(key))
            self.items[key], self.times[key] = own(item), 1
        elif key < turned(self.heap[0]):
            highest = turned(heapq.heapreplace(self.heap, turned(key)))
            del self.items[highest], self.times[highest]
            self.items[key], self.times[key] = own(item), 1

    def __iter__(self) -> Iterator[object]:
        """The items in the order of their keys."""
        return (self.items[key] for key in sorted(self.items))

    @property
    def repeated(self) -> float:
        """Share of rows that repeat an earlier one, among those kept."""
        return 1 - len(self.items) / max(1, sum(self.times.values()))


def own(item: object) -> object:
    """A row without the batch it is a view of, which would stay in memory with it."""
    return np.array(item) if isinstance(item, np.ndarray) else item


def turned(key: bytes) -> bytes:
    """The key with every bit turned, which reverses the order."""
    return bytes(255 - byte for byte in key)
