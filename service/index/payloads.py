"""Ids and metadata of items that were found lately, ready to stand in an answer."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from service.errors import TooLargeError
from service.index.record import Record

ANSWER_BYTES_MOST = 64_000_000
"""Metadata and vectors of the items in one answer, which may name an item often; a number of a vector counts 12."""

BYTES_MOST = 64_000_000
OVERHEAD_BYTES = 300
"""What Python takes for an entry beside its metadata and id."""

Shown = tuple[str, Any]
"""An item's id, and its metadata as it goes into an answer; None if it has none."""


class Payloads:
    """The record's payloads, kept by label: a label stands for one version of one item, so none grows stale."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.kept: dict[int, Shown] = {}
        self.bytes = 0
        self.keeping = threading.Lock()

    def of(self, labels: Sequence[int]) -> dict[int, Shown]:
        """Payloads of labels; those that are gone are left out, or shown as they were a moment ago."""
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
        """Keep payloads of so many bytes; where that is too many, all earlier ones go."""
        with self.keeping:
            if self.bytes + size > BYTES_MOST:
                self.kept, self.bytes = {}, 0
            if size <= BYTES_MOST:
                self.kept.update(shown)
                self.bytes += size


def require_small(items: Iterable[Mapping[str, Any] | None]) -> None:
    """Raise `TooLargeError` for items that would make too large an answer, before it is written."""
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
    """Metadata as it goes into an answer, without being parsed."""
    return None if metadata is None else orjson.Fragment(metadata)
