"""What one search of an embedded index uses from beginning to end: a generation, and the cache of items' payloads."""

import math
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import orjson

from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.items import parse_metadata
from lathe.service.index.protocol import Hit
from lathe.service.index.query import DEFAULT_EF, Query
from lathe.service.index.spec import IndexSpec

TRIES = 3
"""Maximum number of times a search is run if it meets rows of items that are being replaced."""

MAX_HELD_BYTES = 64_000_000
"""Maximum size of the cache, in bytes."""
OVERHEAD_BYTES = 300
"""Memory that Python needs per entry, besides its id and metadata, in bytes."""

MAX_QUICK_EFFORT = 128
"""Largest number of candidates of a quick search: of 384 dimensions, they take some .3 ms."""

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

    def get(self, labels: Collection[int]) -> dict[int, ResponsePayload]:
        """Return `{label: (id, metadata for a response)}` for labels, from the cache or else from the record.

        Labels are the record's integer ids. Labels of deleted versions are left out, unless they are still cached.

        Raises:
            UnavailableError: if the metadata of an item is damaged.
        """
        # Read without the lock: entries are only added, and the dictionary is replaced as a whole.
        cached = self.cached  # `_store` may replace the dictionary meanwhile
        payloads = {label: cached[label] for label in labels if label in cached}
        missing = [label for label in labels if label not in payloads]
        if missing:
            recorded = self.record.read_payloads(missing)
            read = {label: (item, wrap_json(item, metadata)) for label, (item, metadata) in recorded.items()}
            size = sum(OVERHEAD_BYTES + len(item) + len(metadata or b"") for item, metadata in recorded.values())
            self._store(read, size)
            payloads |= read
        return payloads

    def _store(self, payloads: dict[int, ResponsePayload], size: int) -> None:
        """Add payloads that take `size` bytes to the cache, and empty it first if they do not fit.

        Payloads of more than 64 MB are not stored.
        """
        with self.guard:
            if self.bytes + size > MAX_HELD_BYTES:
                self.cached, self.bytes = {}, 0
            if size <= MAX_HELD_BYTES:
                self.cached.update(payloads)
                self.bytes += size


def wrap_json(item: str, metadata: bytes | None) -> Any:
    """Return an item's metadata as a fragment that orjson inserts into a response unchanged, or None for None.

    The JSON is parsed once, because a response with damaged metadata would not be JSON.

    Args:
        item: id of the item, for the error message.
        metadata: its metadata as JSON bytes.

    Raises:
        UnavailableError: if the metadata is damaged.
    """
    if metadata is None:
        return None
    parse_metadata(item, metadata)
    return orjson.Fragment(metadata)


@dataclass(frozen=True)
class GenerationServing:
    """Generation that an index served at one moment, with what a search needs to look up ids and metadata.

    Attributes:
        changing: lock that a write holds while record and rows change.
        translate_closing_errors: function that opens a block in which errors of a closed index are raised as such.
    """

    generation: Generation
    payloads: PayloadCache
    changing: Lock
    translate_closing_errors: Callable[[], AbstractContextManager[None]]

    @property
    def spec(self) -> IndexSpec:
        """Settings of the generation."""
        return self.generation.spec

    @property
    def is_calibrated(self) -> bool:
        """Whether hits have a probability."""
        return self.generation.calibration is not None

    def is_quick(self, query: Query) -> bool:
        """Return whether a search takes less time than a change of threads, and waits for nobody.

        It is quick if it is for one vector, without a filter or rescoring, at a moderate effort, and in a graph that
        has all rows and that nobody holds.
        """
        effort = max(query.k, query.ef or DEFAULT_EF)
        return (
            len(query.vectors) == 1
            and query.item_filter is None
            and query.rescoring is None
            and not query.exact
            and effort <= MAX_QUICK_EFFORT
            and self.generation.is_idle
        )

    def search(self, query: Query) -> list[list[Hit]]:
        """Return for each query vector a list of its k nearest items as `{id, score, metadata}`, best first.

        If the generation is calibrated, items also have a `probability`, which is None for fewer than ten hits, and
        items below the query's minimum are left out.

        If items of the result were replaced meanwhile, the search is repeated, at most twice. Items that are missing
        even then are left out.

        Raises:
            ServiceError: if the filter takes too much work, or the index is deleted or closed meanwhile.
        """
        for _ in range(TRIES):
            with self.translate_closing_errors():
                labels, scores, probabilities = self.generation.search(query)
                found = labels.tolist()
                distinct = {label for query_labels in found for label in query_labels if label >= 0}
                payloads = self.payloads.get(distinct)
            if len(payloads) == len(distinct):
                break
            with self.changing:  # waits for the write that replaced or deleted these items just now
                pass

        least, calibrated = query.min_probability, probabilities is not None
        estimates = scores if probabilities is None else probabilities
        results: list[list[Hit]] = []
        for query_labels, query_scores, chances in zip(found, scores.tolist(), estimates.tolist(), strict=True):
            hits: list[Hit] = []
            for label, score, probability in zip(query_labels, query_scores, chances, strict=True):
                payload = payloads.get(label)
                if payload is None or (least is not None and not probability >= least):  # NaN is not enough either
                    continue
                hit: Hit = {"id": payload[0], "score": score, "metadata": payload[1]}
                if calibrated:
                    hit["probability"] = None if math.isnan(probability) else probability
                hits.append(hit)
            results.append(hits)
        return results
