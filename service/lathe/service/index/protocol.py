"""Protocols that every backend of indexes implements: `embedded`, in the state folder, and `milvus`."""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from lathe.service.index.bridge import Bridge
from lathe.service.index.query import Filter, Query
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec
from lathe.transforms.progress import Progress

Hit = dict[str, Any]
"""Search result of one item, `{id, score, metadata}`, in a calibrated index also `probability`."""

Payload = tuple[str, bytes | None]
"""Id of an item, and its metadata as JSON bytes; None if it has no metadata."""

Artifact = tuple[bytes, bytes] | None
"""Manifest and tensors of the chain of an index, as bytes; None for raw vectors."""


@dataclass(frozen=True)
class Change:
    """Outcome of a write.

    Attributes:
        sequence: number of the write; None where writes are not numbered.
        removed: number of items that were replaced or deleted; None where that is not counted.
    """

    sequence: int | None
    removed: int | None


@dataclass(frozen=True)
class Quality:
    """What was measured of an index while it serves, and by its last checkup.

    Attributes:
        losses: loss of recall@10 by cause; empty before the first canary.
        faults: share of rows by fault.
    """

    losses: dict[str, float]
    faults: dict[str, float]


class SpaceMovedError(Exception):
    """Error for vectors of an embedding space that the index no longer serves: encode the texts again."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend of indexes supports, which callers read instead of asking which backend it is.

    Attributes:
        name: name of the backend in messages.
        in_state_folder: whether the indexes are stored in the state folder, which must then be writable.
        reindexing: whether a job can build an index's next generation while the index serves.
        ordered: whether `SearchIndex.scan` yields the items in the order in which they were written.
        backup_tool: tool that backs indexes up; None if `lathe index backup` and `restore` do.
    """

    name: str
    in_state_folder: bool
    reindexing: bool
    ordered: bool
    backup_tool: str | None


class Serving(Protocol):
    """Protocol of an index as it is at one moment: its settings, and a search of its items."""

    def is_quick(self, query: Query) -> bool:
        """Return whether a search may run on the event loop.

        It may if it takes less than a change of threads and waits for nobody.
        """

    @property
    def spec(self) -> IndexSpec:
        """Settings of the index at that moment."""

    @property
    def is_calibrated(self) -> bool:
        """Whether hits have a probability."""

    def search(self, query: Query) -> list[list[Hit]]:
        """Return for each vector of the query a list of its k nearest items as `{id, score, metadata}`, best first.

        If the index is calibrated, items also have a `probability`.
        """


class SearchIndex(Protocol):
    """Protocol of one index, whatever backend stores it."""

    @property
    def name(self) -> str:
        """Name of the index."""

    @property
    def spec(self) -> IndexSpec:
        """Current settings."""

    @property
    def bridge(self) -> Bridge | None:
        """Fitted map for queries of the encoder that the index is moving to, or None if there is none."""

    def read_artifact(self) -> Artifact:
        """Return the manifest and tensors, as bytes, of the index's chain of transforms, or None for raw vectors."""

    def get_serving(self) -> Serving:
        """Return the state of the index for a search. It stays the same if the index changes."""

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None = None,
    ) -> "Future[Change]":
        """Queue the insertion of items, which replace items with the same ids.

        The `Change` has the write's number, and how many items it replaced. See `EmbeddedIndex.upsert` for arguments
        and errors.
        """

    def delete(self, ids: Sequence[str]) -> "Future[Change]":
        """Queue the deletion of the items with these ids, ignoring unknown ones.

        The `Change` has the write's number, and how many items it deleted.
        """

    def delete_matching(self, item_filter: Filter) -> "Future[Change]":
        """Queue the deletion of all items that satisfy a filter when its turn comes.

        The `Change` has the write's number, and how many items it deleted.
        """

    def get(self, ids: Sequence[str], vectors: bool) -> list[dict[str, Any] | None]:
        """Return `{id, metadata}` for each id in order, or None for an unknown one.

        With `vectors`, each has its original vector under `vector`.
        """

    def describe(self) -> dict[str, Any]:
        """Return the settings, counts and state of the index as a dict."""

    def read_note(self, key: str) -> Any:
        """Return the JSON value that an upsert stored in its `note` under a key, or None if there is none."""

    def delete_note(self, key: str) -> None:
        """Delete the value that an upsert stored in its `note` under a key."""

    def scan(self, max_items: int) -> Generator[tuple[list[Payload], Vectors], None, None]:
        """Yield all items in batches of at most `max_items`: list of (id, metadata), and original vectors `(n, d)`."""

    def read_page(self, cursor: str | None, max_items: int) -> tuple[list[Payload], str | None]:
        """Return up to `max_items` items (id, metadata) after a cursor, and the cursor of the next page.

        The cursor is None after the last item.

        Args:
            cursor: cursor that an earlier page gave; None for the first page.
            max_items: maximum number of items.

        Raises:
            BadValueError: if no page of this index gave the cursor.
        """

    def wait_until_linked(self, on_progress: Progress) -> None:
        """Block until the graph contains every item, reporting progress."""


class SearchIndexes(Protocol):
    """Protocol of all indexes of one backend.

    Attributes:
        ready: event that is set once every index that can be opened at the start is open.
        capabilities: what the backend supports.
    """

    ready: Event
    capabilities: Capabilities

    def is_open(self, name: str) -> bool:
        """Return whether `get` returns the index of that name without reading a file or asking a server."""

    def warnings(self) -> list[str]:
        """Return sentences about indexes that cannot be used or are damaged, as far as is known without a new check."""

    def count_states(self) -> dict[str, int]:
        """Return `{state: number of indexes}`, for the metrics."""

    def measure_quality(self) -> "dict[str, Quality]":
        """Return what searches lose and which rows are faulty, by name of the index, for the metrics."""

    def start(self) -> None:
        """Start opening all indexes in the background, and return at once."""

    def close(self) -> None:
        """Close all indexes."""

    def names(self) -> list[str]:
        """Return the names of all indexes."""

    def get(self, name: str) -> SearchIndex:
        """Return the open index of that name, or raise `UnknownNameError`."""

    def create(self, name: str, spec: IndexSpec, artifact: Artifact) -> SearchIndex:
        """Create an index with these settings and chain of transforms, or return the one of that name unchanged."""

    def delete(self, name: str) -> None:
        """Delete an index permanently."""

    def require_owned(self, name: str) -> None:
        """Raise a `ServiceError` unless the index exists and this process may change it."""

    def describe(self) -> list[dict[str, Any]]:
        """Return the settings, counts and state of each index, or name, state and error if it cannot be opened."""
