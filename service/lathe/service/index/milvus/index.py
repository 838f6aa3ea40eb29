"""One index in Milvus."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import orjson

from lathe.service.errors import UnavailableError, UnknownNameError
from lathe.service.index.items import serialize_metadata
from lathe.service.index.milvus.client import CollectionGoneError, MilvusConnection
from lathe.service.index.milvus.collections import (
    ID,
    METADATA,
    NOTE,
    ORIGINAL,
    VECTOR,
    Catalogue,
    CatalogueEntry,
    build_rows,
    stack_vectors,
)
from lathe.service.index.milvus.expressions import EVERYTHING, build_following_filter, build_id_filter, translate_filter
from lathe.service.index.protocol import Artifact, Change, Hit, Payload
from lathe.service.index.query import DEFAULT_EF, Filter, Query
from lathe.service.index.reducer import Reducer, Vectors, normalize_rows
from lathe.transforms.progress import Progress

MAX_CANDIDATES = 16_384
"""Maximum number of candidates of a query, Milvus's limit; `k` is at most 10,000."""
MAX_EF = 32_768
"""Maximum size of the candidate list of a graph search."""
IDS_AT_ONCE = 1000
"""Maximum number of ids in one expression."""


class MilvusIndex:
    """Index whose items are a collection of Milvus, which several processes may have open.

    Args:
        catalogue: settings and chains of all indexes, from which the chain is read at once.

    Attributes:
        bridge: None, because an index in Milvus does not move to another encoder.
        is_deleted: whether its collection was found missing, because another server deleted or recreated the index.
    """

    bridge = None

    def __init__(self, name: str, entry: CatalogueEntry, connection: MilvusConnection, catalogue: Catalogue) -> None:
        self.name = name
        self.entry = entry
        self.collection = entry.collection
        self.spec = entry.spec
        self.connection = connection
        self.catalogue = catalogue
        self.reducer = Reducer(entry.spec, catalogue.read_artifact(entry))
        self.writer = ThreadPoolExecutor(1, thread_name_prefix=f"milvus-{name}")
        self.is_deleted = False

    def close(self, wait: bool = True) -> None:
        """Accept no more writes, finish the accepted ones, and wait for them if `wait`."""
        self.writer.shutdown(wait=wait)

    def read_artifact(self) -> Artifact:
        """Return the manifest and tensors, as bytes, of the index's chain of transforms, or None for raw vectors."""
        return self.catalogue.read_artifact(self.entry)

    def get_serving(self) -> "MilvusIndex":
        """Return the index itself, because its settings never change."""
        return self

    @property
    def is_calibrated(self) -> bool:
        """Whether hits have a probability: False, as the rows are in Milvus."""
        return False

    def is_quick(self, query: Query) -> bool:
        """Return False: every search asks the server of Milvus."""
        return False

    # ── writes, one after another ────────────────────────────────────────────────────────────

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None = None,
    ) -> "Future[Change]":
        """Queue the insertion of items, which replace items with the same ids.

        The `Change` has neither number nor count. See `SearchIndex.upsert`. The caller has compared `raw_space_id` with
        the settings, which never change.
        """
        return self._run_in_writer(self._write_items, ids, vectors, metadata, note)

    def _write_items(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        note: Mapping[str, Any] | None,
    ) -> Change:
        """Insert or replace items in Milvus in one request, then store `note` if there is one.

        Runs in the writer thread. Milvus does not say how many items were replaced.
        """
        payloads = [serialize_metadata(position, fields) for position, fields in enumerate(metadata)]
        rows = build_rows(ids, vectors, self.reducer.reduce_documents(vectors), metadata, payloads)
        self._call("upsert", rows)
        if note:
            self.catalogue.write_values({f"{NOTE}{self.name}": orjson.dumps(note).decode()})
        return Change(None, None)

    def delete(self, ids: Sequence[str]) -> "Future[Change]":
        """Queue the deletion of the items with these ids, ignoring unknown ones.

        The `Change` says how many items were deleted.
        """
        starts = range(0, len(ids), IDS_AT_ONCE)
        return self._run_in_writer(
            self._delete_items, [build_id_filter(ids[start : start + IDS_AT_ONCE]) for start in starts]
        )

    def delete_matching(self, item_filter: Filter) -> "Future[Change]":
        """Queue the deletion of all items that satisfy a filter when its turn comes.

        The `Change` says how many items were deleted.
        """
        return self._run_in_writer(self._delete_items, [translate_filter(item_filter)])

    def _delete_items(self, conditions: Sequence[str]) -> Change:
        """Delete the items that satisfy any of these Milvus expressions.

        Runs in the writer thread. The items are counted first, because Milvus itself counts unknown ids too.
        """
        deleted = 0
        for condition in conditions:
            existing = self._count_items(condition)
            if existing:
                self._call("delete", filter=condition)
            deleted += existing
        return Change(None, deleted)

    def _run_in_writer(self, work: Callable[..., Change], *arguments: Any) -> "Future[Change]":
        try:
            return self.writer.submit(work, *arguments)
        except RuntimeError:
            raise UnavailableError(f"the index {self.name} is being closed", code="closing") from None

    # ── reads ────────────────────────────────────────────────────────────────────────────────

    def search(self, query: Query) -> list[list[Hit]]:
        """Return for each vector of the query a list of its k nearest items as `{id, score, metadata}`, best first.

        If the query asks for rescoring, up to 16,384 candidates are taken from Milvus and ranked here by the originals.
        """
        count = min(math.ceil(query.k * (query.rescoring or 1)), MAX_CANDIDATES)
        condition = "" if query.item_filter is None else translate_filter(query.item_filter)
        results: list[list[Hit]] = []
        for batch in query.slice_batches(count, self.spec.width):
            vectors = query.vectors[batch]
            directions = normalize_rows(vectors) if self.spec.metric == "cosine" else vectors
            compact = directions if query.reduced else self.reducer.reduce_queries(vectors)
            originals = None if query.rescoring is None else self.reducer.map_for_rescoring(vectors)
            results += self._search_batch(query, compact, originals, count, condition)
        return results

    def _search_batch(
        self, query: Query, compact: Vectors, originals: Vectors | None, count: int, condition: str
    ) -> list[list[Hit]]:
        """Search one batch of reduced queries in Milvus. Return the k best items of each as `{id, score, metadata}`."""
        rescored = originals is not None
        compared = ORIGINAL if rescored else VECTOR
        by_distance = self.spec.metric == "l2"  # which Milvus squares, and Milvus Lite does not
        candidates = self._call(
            "search",
            data=list(compact),
            anns_field=VECTOR,
            limit=count,
            filter=condition,
            search_params={"params": {"ef": min(max(query.ef or DEFAULT_EF, count), MAX_EF)}},
            output_fields=[METADATA, *([compared] if rescored or by_distance else [])],
        )

        results = []
        for position, hits in enumerate(candidates):
            scores = np.array([hit["distance"] for hit in hits], np.float32)
            if len(hits) and (rescored or by_distance):
                vectors = stack_vectors([hit["entity"] for hit in hits], compared)
                if self.spec.metric == "cosine":
                    vectors = normalize_rows(vectors)
                vector = (compact if originals is None else originals)[position]
                scores = np.linalg.norm(vectors - vector, axis=1) if by_distance else vectors @ vector
            best = np.argsort(scores if by_distance else -scores, kind="stable")[: query.k].tolist()
            results.append(
                [
                    {
                        "id": hits[row][ID],
                        "score": float(scores[row]),
                        "metadata": hits[row]["entity"][METADATA] or None,
                    }
                    for row in best
                ]
            )
        return results

    def get(self, ids: Sequence[str], vectors: bool) -> list[dict[str, Any] | None]:
        """Return `{id, metadata}` for each id in order, or None for an unknown one.

        With `vectors`, each has its original vector under `vector`.
        """
        fields = [ID, METADATA, *([ORIGINAL] if vectors else [])]
        rows: dict[str, Any] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            condition = build_id_filter(list(dict.fromkeys(ids[start : start + IDS_AT_ONCE])))
            rows |= {row[ID]: row for row in self._call("query", filter=condition, output_fields=fields)}
        return [self._build_item(rows[item], vectors) if item in rows else None for item in ids]

    def _build_item(self, row: Mapping[str, Any], vectors: bool) -> dict[str, Any]:
        content = {"id": row[ID], "metadata": row[METADATA] or None}
        return content | ({"vector": np.array(row[ORIGINAL], np.float32)} if vectors else {})

    def describe(self) -> dict[str, Any]:
        """Return a dict of the index's settings, number of items, state and collection, for responses."""
        state = self._call("describe_index", VECTOR)
        spec, count = self.spec, self._count_items("")
        linked = min(int(state.get("indexed_rows", count)), count)
        return {
            **spec.describe(self.name, count, "ready"),
            "in_graph": linked,
            "collection": self.collection,
            "notes": [],
            "moving_to": None,
        }

    def _count_items(self, condition: str) -> int:
        """Return the number of items that satisfy a Milvus expression. An empty one counts all."""
        return int(self._call("query", filter=condition, output_fields=["count(*)"])[0]["count(*)"])

    # ── importing and exporting ──────────────────────────────────────────────────────────────

    def read_note(self, key: str) -> Any:
        """Return the value that the last upsert with a `note` stored under a key, or None if there is none."""
        return (self.catalogue.read_value(f"{NOTE}{self.name}") or {}).get(key)

    def delete_note(self, key: str) -> None:
        """Delete all values that the last upsert with a `note` stored, whatever the key."""
        self.catalogue.delete_values(f"{NOTE}{self.name}")

    def scan(self, max_items: int) -> Generator[tuple[list[Payload], Vectors], None, None]:
        """Yield all items in batches: a list of (id, metadata), and the original vectors `(n, d)`.

        A batch has at most `max_items` items. They are read as they are when the scan reaches them, not at one moment.
        """
        for rows in self._iterate(EVERYTHING, [ID, METADATA, ORIGINAL], max_items, None):
            yield [_build_payload(row) for row in rows], stack_vectors(rows, ORIGINAL)

    def read_page(self, cursor: str | None, max_items: int) -> tuple[list[Payload], str | None]:
        """Return up to `max_items` items (id, metadata) after a cursor, in order of ids, and the next cursor.

        The cursor is None after the last item.
        """
        condition = EVERYTHING if cursor is None else build_following_filter(cursor)
        with closing(self._iterate(condition, [ID, METADATA], max_items + 1, max_items + 1)) as batches:
            payloads = [_build_payload(row) for row in next(batches, [])]
        more = len(payloads) > max_items
        return payloads[:max_items], payloads[max_items - 1][0] if more else None

    def _iterate(
        self, condition: str, fields: Sequence[str], batch_size: int, limit: int | None
    ) -> Generator[list[Mapping[str, Any]], None, None]:
        """Yield the items that satisfy a Milvus expression, at most `limit`, in batches in the order of ids."""
        bound = {} if limit is None else {"limit": limit}
        iterator = self._call("query_iterator", batch_size=batch_size, filter=condition, output_fields=fields, **bound)
        try:
            while True:
                with self.connection.translate_errors():
                    rows = iterator.next()
                if not rows:
                    break
                yield rows
        finally:
            with self.connection.translate_errors():
                iterator.close()

    def wait_until_linked(self, on_progress: Progress) -> None:
        """Report completion at once: Milvus builds the graph itself, and searches the remaining rows exactly."""
        on_progress(1.0, "Milvus has every row")

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call the client method `name` on the index's collection, and return its result.

        A collection that is missing was dropped by another server: the index is then marked as deleted, and
        `UnknownNameError` raised.
        """
        try:
            return self.connection.call(name, self.collection, *arguments, **options)
        except CollectionGoneError:
            self.is_deleted = True
            raise UnknownNameError(f"the index {self.name} was deleted", param="name") from None


def _build_payload(row: Mapping[str, Any]) -> Payload:
    return row[ID], orjson.dumps(row[METADATA]) if row[METADATA] else None
