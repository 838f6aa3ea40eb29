"""Cache of ids and metadata of items that were found recently, ready for a response."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from service.errors import TooLargeError
from service.index.record import Record

ANSWER_BYTES_MOST = 64_000_000
"""Maximum size of metadata and vectors in one response, in bytes; each entry of a vector counts 12."""

BYTES_MOST = 64_000_000
"""Maximum size of the cache, in bytes."""
OVERHEAD_BYTES = 300
"""Memory that Python needs per entry, besides its id and metadata, in bytes."""

Shown = tuple[str, Any]
"""Id of an item, and its metadata as inserted into a response; None if it has no metadata."""


class Payloads:
    """Cache of payloads by label; entries never become stale, because a label stands for one version of one item."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.kept: dict[int, Shown] = {}
        self.bytes = 0
        self.keeping = threading.Lock()

    def of(self, labels: Sequence[int]) -> dict[int, Shown]:
        """Return id and metadata of each label, by label, reading uncached ones from the record.

        Labels of deleted versions are left out, unless the cache still has them.
        """
        kept = self.kept
        found = {label: kept[label] for label in labels if label in kept}
        missing = [label for label in labels if label not in found]
        if missing:
            read = self.record.payloads(missing)
            shown = {label: (item, fragment(metadata)) for label, (item, metadata) in read.items()}
            self.keep(shown, sum(OVERHEAD_BYTES + len(item) + len(metadata or b"") for item, metadata in read.values()))
            found |= shown
        return found

    def keep(self, shown: dict[int, Shown], size: int) -> None:
        """Add payloads of `size` bytes to the cache; if they do not fit, empty the cache first."""
        with self.keeping:
            if self.bytes + size > BYTES_MOST:
                self.kept, self.bytes = {}, 0
            if size <= BYTES_MOST:
                self.kept.update(shown)
                self.bytes += size


def require_small(items: Iterable[Mapping[str, Any] | None]) -> None:
    """Raise `TooLargeError` if the metadata and vectors of the items would make the response too large."""
    size = 0
    sizes: dict[int, int] = {}  # of metadata that several items share, measured once
    for item in items:
        if item is None:
            continue
        metadata = item["metadata"]
        if metadata is not None:
            if id(metadata) not in sizes:
                sizes[id(metadata)] = len(orjson.dumps(metadata))
            size += sizes[id(metadata)]
        size += 12 * len(item.get("vector", ()))
        if size > ANSWER_BYTES_MOST:
            raise TooLargeError(
                f"the metadata and vectors of these items take more than {ANSWER_BYTES_MOST:,} bytes: ask for fewer"
            )


def fragment(metadata: bytes | None) -> Any:
    """Wrap JSON metadata for insertion into a response without parsing; None stays None."""
    return None if metadata is None else orjson.Fragment(metadata)
