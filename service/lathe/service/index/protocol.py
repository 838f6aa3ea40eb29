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
"""Search result of one item, `{id, score, metadata}`."""

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


class SpaceMovedError(Exception):
    """Error for vectors of a space that the index no longer serves, whose texts the caller must encode again."""


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
    """Protocol of the state of an index at one moment, whose settings and items belong together."""

    @property
    def spec(self) -> IndexSpec:
        """Settings of the index at that moment."""

    def search(self, query: Query) -> list[list[Hit]]:
        """Return the k nearest items to each vector of the query, best first."""


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
        """Alignment for queries of the encoder that the index is moving to, or None if there is none."""

    def read_artifact(self) -> Artifact:
        """Return manifest and tensors of the chain that the current settings name, or None for raw vectors."""

    def get_serving(self) -> Serving:
        """Return the current state to search in, which stays consistent if the index changes."""

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None = None,
    ) -> "Future[Change]":
        """Queue the insertion of items, which replace those with the same ids.

        See `EmbeddedIndex.upsert` for arguments and errors.
        """

    def delete(self, ids: Sequence[str]) -> "Future[Change]":
        """Queue the deletion of the items with these ids, ignoring unknown ones."""

    def delete_matching(self, item_filter: Filter) -> "Future[Change]":
        """Queue the deletion of all items that satisfy a filter when its turn comes."""

    def get(self, ids: Sequence[str], vectors: bool) -> list[dict[str, Any] | None]:
        """Return the items with these ids, with original vectors on request, and None for unknown ids."""

    def describe(self) -> dict[str, Any]:
        """Return the settings, counts and state of the index as a dict."""

    def read_note(self, key: str) -> Any:
        """Return the value that a write stored under the key, or None."""

    def delete_note(self, key: str) -> None:
        """Delete the value that a write stored under the key."""

    def scan(self, max_items: int) -> Generator[tuple[list[Payload], Vectors], None, None]:
        """Yield all items in batches of at most `max_items`: ids and metadata, and original vectors `(n, d)`."""

    def read_page(self, cursor: str | None, max_items: int) -> tuple[list[Payload], str | None]:
        """Return up to `max_items` items after a cursor, None for the first ones, and the cursor of the next page.

        The cursor is None after the last item. `BadValueError` is raised for one that the index never gave.
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

    def warnings(self) -> list[str]:
        """Return messages about unusable or damaged indexes, as of the last check."""

    def count_states(self) -> dict[str, int]:
        """Return the number of indexes in each state, for the metrics."""

    def start(self) -> None:
        """Start opening all indexes in the background, and return at once."""

    def close(self) -> None:
        """Close all indexes."""

    def names(self) -> list[str]:
        """Return the names of all indexes."""

    def get(self, name: str) -> SearchIndex:
        """Return the open index of that name, or raise `UnknownNameError`."""

    def create(self, name: str, spec: IndexSpec, artifact: Artifact) -> SearchIndex:
        """Create an index and return it, or return the existing index of that name unchanged."""

    def delete(self, name: str) -> None:
        """Delete an index permanently."""

    def require_owned(self, name: str) -> None:
        """Raise unless the index exists and this process may change it."""

    def describe(self) -> list[dict[str, Any]]:
        """Return a description of every index, which is its error if it cannot be opened."""
