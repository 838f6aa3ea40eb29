"""Cache of ids and metadata of items that were found recently, ready for a response."""

import threading
from collections.abc import Sequence
from typing import Any

import orjson

from lathe.service.index.embedded.record import IndexRecord

MAX_BYTES = 64_000_000
"""Maximum size of the cache, in bytes."""
OVERHEAD_BYTES = 300
"""Memory that Python needs per entry, besides its id and metadata, in bytes."""

ResponsePayload = tuple[str, Any]
"""Id of an item, and its metadata as inserted into a response; None if it has no metadata."""


class PayloadCache:
    """Cache of items' ids and metadata by label, of at most 64 MB, in front of the record.

    Entries never become stale, because a label stands for one version of one item.
    """

    def __init__(self, record: IndexRecord) -> None:
        self.record = record
        self.cached: dict[int, ResponsePayload] = {}
        self.bytes = 0
        self.guard = threading.Lock()

    def get(self, labels: Sequence[int]) -> dict[int, ResponsePayload]:
        """Return id and metadata of each label, by label, reading uncached ones from the record.

        Labels of deleted versions are left out, unless the cache still has them.
        """
        cached = self.cached
        found = {label: cached[label] for label in labels if label in cached}
        missing = [label for label in labels if label not in found]
        if missing:
            read = self.record.read_payloads(missing)
            fetched = {label: (item, wrap_json(metadata)) for label, (item, metadata) in read.items()}
            self._store(
                fetched, sum(OVERHEAD_BYTES + len(item) + len(metadata or b"") for item, metadata in read.values())
            )
            found |= fetched
        return found

    def _store(self, fetched: dict[int, ResponsePayload], size: int) -> None:
        """Add payloads of `size` bytes to the cache; if they do not fit, empty it first. Over 64 MB are not stored."""
        with self.guard:
            if self.bytes + size > MAX_BYTES:
                self.cached, self.bytes = {}, 0
            if size <= MAX_BYTES:
                self.cached.update(fetched)
                self.bytes += size


def wrap_json(metadata: bytes | None) -> Any:
    """Wrap JSON metadata for insertion into a response without parsing; None stays None."""
    return None if metadata is None else orjson.Fragment(metadata)
