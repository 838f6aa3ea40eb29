"""One index in Milvus."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.errors import UnavailableError, UnknownNameError
from service.index.filters import Filter
from service.index.generation import DEFAULT_EF, QUERIES_AT_ONCE, RESCORED_ENTRIES
from service.index.items import payload
from service.index.milvus.catalogue import NOTE, Catalogue, Entry
from service.index.milvus.client import CollectionGoneError, Connection
from service.index.milvus.collections import ID, METADATA, ORIGINAL, VECTOR, matrix, rows_of
from service.index.milvus.expressions import EVERYTHING, among, expression
from service.index.protocol import Change, Hit, Payload
from service.index.reducer import Reducer, Vectors, unit
from transforms.progress import Progress

CANDIDATES_MOST = 16_384
"""Maximum number of candidates of a query, Milvus's limit; `k` is at most 10,000."""
EF_MOST = 32_768
"""Maximum size of the candidate list of a graph search."""
IDS_AT_ONCE = 1000
"""Maximum number of ids in one expression."""


class MilvusIndex:
    """Index whose items are a collection of Milvus; several processes may have it open.

    Attributes:
        bridge: None, because an index in Milvus does not move to another encoder.
        gone: whether its collection was found missing, because another server deleted or recreated the index.
    """

    bridge = None

    def __init__(self, name: str, entry: Entry, connection: Connection, catalogue: Catalogue) -> None:
        self.name = name
        self.collection = entry.collection
        self.spec = entry.spec
        self.connection = connection
        self.catalogue = catalogue
        self.reduce = Reducer(entry.spec, catalogue.artifact(entry))
        self.writer = ThreadPoolExecutor(1, thread_name_prefix=f"milvus-{name}")
        self.gone = False

    def close(self, wait: bool = True) -> None:
        """Accept no more writes and finish the accepted ones; wait for them if `wait`."""
        self.writer.shutdown(wait=wait)

    def serving(self) -> "MilvusIndex":
        """Return the index itself, because its settings never change."""
        return self

    # ── writes, one after another ────────────────────────────────────────────────────────────

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None = None,
    ) -> "Future[Change]":
        """Queue the insertion of items with original vectors, replacing items with the same ids, and return a future.

        See `SearchIndex.upsert`. The caller has compared `raw_space_id` with the settings, which never change.
        """
        return self.in_turn(self.put, ids, vectors, metadata, note)

    def put(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        note: Mapping[str, Any] | None,
    ) -> Change:
        """Insert items in one request to Milvus, in the writer thread, then store the note; count nothing."""
        payloads = [payload(place, given) for place, given in enumerate(metadata)]
        rows = rows_of(ids, vectors, self.reduce(vectors), metadata, payloads)
        self.call("upsert", rows)
        if note:
            self.catalogue.write({f"{NOTE}{self.name}": orjson.dumps(note).decode()})
        return Change(None, None)

    def delete(self, ids: Sequence[str]) -> "Future[Change]":
        """Queue the deletion of the items with these ids, and return a future; unknown ids are ignored."""
        return self.in_turn(self.remove, ids)

    def remove(self, ids: Sequence[str]) -> Change:
        """Delete items in the writer thread, and return how many existed.

        They are counted by a query first, because Milvus itself counts unknown ids too.
        """
        gone = 0
        for start in range(0, len(ids), IDS_AT_ONCE):
            wanted = among(ids[start : start + IDS_AT_ONCE])
            there = len(self.call("query", filter=wanted, output_fields=[ID]))
            if there:
                self.call("delete", filter=wanted)
            gone += there
        return Change(None, gone)

    def in_turn(self, work: Callable[..., Change], *arguments: Any) -> "Future[Change]":
        """Queue a function call in the writer thread, and return its future.

        Raises:
            UnavailableError: if the index is being closed.
        """
        try:
            return self.writer.submit(work, *arguments)
        except RuntimeError:
            raise UnavailableError(f"the index {self.name} is being closed", code="closing") from None

    # ── reads ────────────────────────────────────────────────────────────────────────────────

    def search(
        self,
        queries: Vectors,
        k: int,
        ef: int | None = None,
        rescoring: float | None = None,
        wanted: Filter | None = None,
        reduced: bool = False,
    ) -> list[list[Hit]]:
        """Return the k nearest items to each query, best first: candidates from Milvus, rescored here if asked for.

        Rescoring uses the original vectors, if `rescoring` is given.
        The arguments are those of `Generation.search`.
        """
        count = min(math.ceil(k * (rescoring or 1)), CANDIDATES_MOST)
        asking = Asking(k, count, max(ef or DEFAULT_EF, count), "" if wanted is None else expression(wanted))
        step = max(1, min(QUERIES_AT_ONCE, RESCORED_ENTRIES // (count * self.spec.width)))
        found: list[list[Hit]] = []
        for start in range(0, len(queries), step):
            asked = queries[start : start + step]
            directions = unit(asked) if self.spec.metric == "cosine" else asked
            compact = directions if reduced else self.reduce(asked)
            found += self.nearest(compact, directions, asking, rescored=rescoring is not None)
        return found

    def nearest(self, compact: Vectors, originals: Vectors, asking: "Asking", rescored: bool) -> list[list[Hit]]:
        """Search one batch of queries in Milvus, and return the k best items of each, best first.

        Args:
            compact: reduced queries `(q, k)`.
            originals: original queries `(q, d)`; used only for rescoring.
            asking: parameters of the search.
            rescored: whether to rank the candidates by the original vectors.
        """
        compared = ORIGINAL if rescored else VECTOR
        by_distance = self.spec.metric == "l2"  # which Milvus squares, and Milvus Lite does not
        found = self.call(
            "search",
            data=list(compact),
            anns_field=VECTOR,
            limit=asking.count,
            filter=asking.filter,
            search_params={"params": {"ef": min(asking.ef, EF_MOST)}},
            output_fields=[METADATA, *([compared] if rescored or by_distance else [])],
        )
        answers = []
        for place, hits in enumerate(found):
            scores = np.array([hit["distance"] for hit in hits], np.float32)
            if len(hits) and (rescored or by_distance):
                vectors = matrix([hit["entity"] for hit in hits], compared)
                if self.spec.metric == "cosine":
                    vectors = unit(vectors)
                scores = compare(vectors, (originals if rescored else compact)[place], by_distance)
            best = np.argsort(scores if by_distance else -scores, kind="stable")[: asking.k].tolist()
            answers.append([shown(hits[row], float(scores[row])) for row in best])
        return answers

    def get(self, ids: Sequence[str], vectors: bool) -> list[dict[str, Any] | None]:
        """Return the items with these ids, with original vectors on request; None for an id that does not exist."""
        fields = [ID, METADATA, *([ORIGINAL] if vectors else [])]
        there: dict[str, Any] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            wanted = among(list(dict.fromkeys(ids[start : start + IDS_AT_ONCE])))
            there |= {row[ID]: row for row in self.call("query", filter=wanted, output_fields=fields)}
        return [self.item(there[item], vectors) if item in there else None for item in ids]

    def item(self, row: Mapping[str, Any], vectors: bool) -> dict[str, Any]:
        """Convert a row to an item for a response: id, metadata, and the original vector if `vectors`."""
        content = {"id": row[ID], "metadata": row[METADATA] or None}
        return content | ({"vector": np.array(row[ORIGINAL], np.float32)} if vectors else {})

    def describe(self) -> dict[str, Any]:
        """Return settings, counts and state of the index as a dict, without sizes in bytes and snapshot age."""
        state = self.call("describe_index", VECTOR)
        spec, count = self.spec, self.count()
        linked = min(int(state.get("indexed_rows", count)), count)
        return {
            "name": self.name,
            "count": count,
            "chain": spec.chain,
            "space_id": spec.space_id,
            "dimensions": spec.dimensions,
            "state": "ready",
            "encoder": spec.encoder,
            "raw_space_id": spec.raw_space_id,
            "width": spec.width,
            "metric": spec.metric,
            "m": spec.m,
            "ef_construction": spec.ef_construction,
            "originals": spec.originals,
            "in_graph": linked,
            "collection": self.collection,
            "notes": [],
            "moving_to": None,
        }

    def count(self) -> int:
        """Ask Milvus for the number of items."""
        return int(self.call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    # ── importing and exporting ──────────────────────────────────────────────────────────────

    def note(self, key: str) -> Any:
        """Return the value that the last noting write stored under the key; None if there is none."""
        return (self.catalogue.read(f"{NOTE}{self.name}") or {}).get(key)

    def forget_note(self, key: str) -> None:
        """Delete all values that the last noting write stored, whatever the key."""
        self.catalogue.forget(f"{NOTE}{self.name}")

    def scan(self, most: int) -> Iterator[tuple[list[Payload], Vectors]]:
        """Yield all items in batches of at most `most`: ids and metadata, and original vectors `(n, d)`.

        The items are read as they are when the scan reaches them, not at one moment.
        """
        rows = self.call("query_iterator", batch_size=most, filter=EVERYTHING, output_fields=[ID, METADATA, ORIGINAL])
        try:
            while True:
                with self.connection.asking():
                    found = rows.next()
                if not found:
                    break
                said = [orjson.dumps(row[METADATA]) if row[METADATA] else None for row in found]
                yield list(zip((row[ID] for row in found), said, strict=True)), matrix(found, ORIGINAL)
        finally:
            with self.connection.asking():
                rows.close()

    def wait_until_linked(self, on_progress: Progress) -> None:
        """Report completion at once: Milvus builds the graph itself, and searches the remaining rows exactly."""
        on_progress(1.0, "Milvus has every row")

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a client method on the index's collection, and return its result.

        Raises:
            UnknownNameError: if another server deleted the index; `gone` is set then.
            UnavailableError: if Milvus does not answer.
        """
        try:
            return self.connection.call(name, self.collection, *arguments, **options)
        except CollectionGoneError:
            self.gone = True
            raise UnknownNameError(f"the index {self.name} was deleted", param="name") from None


@dataclass(frozen=True)
class Asking:
    """Parameters of a search in Milvus, without the queries.

    Attributes:
        k: number of items to return.
        count: number of candidates.
        ef: size of the graph's candidate list.
        filter: expression; empty for none.
    """

    k: int
    count: int
    ef: int
    filter: str


def shown(hit: Any, score: float) -> Hit:
    """Convert a hit of Milvus to a search result with the given score."""
    return {"id": hit[ID], "score": score, "metadata": hit["entity"][METADATA] or None}


def compare(vectors: Vectors, query: Vectors, by_distance: bool) -> Vectors:
    """Return inner products `(n,)` of vectors `(n, d)` with a query, or Euclidean distances if `by_distance`."""
    scores: Vectors = np.linalg.norm(vectors - query, axis=1) if by_distance else vectors @ query
    return scores
