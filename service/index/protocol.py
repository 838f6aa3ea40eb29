"""What every backend of indexes can do: the embedded one (`index`, `indexes`) and Milvus (`milvus`)."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

from service.index.bridge import Bridge
from service.index.filters import Filter
from service.index.reducer import Vectors
from service.index.spec import IndexSpec
from transforms.progress import Progress

Hit = dict[str, Any]
"""`{id, score, metadata}`."""

Payload = tuple[str, bytes | None]
"""An item's id and its metadata as JSON; None if it has none."""

Artifact = tuple[bytes, bytes] | None
"""Manifest and tensors of an index's chain; None for raw vectors."""


@dataclass(frozen=True)
class Change:
    """What a write did.

    Attributes:
        sequence: of the write; None where writes are not counted.
        gone: versions of items that it replaced or deleted; None where nobody looked.
    """

    sequence: int | None
    gone: int | None


class Serving(Protocol):
    """What answers the searches of an index at one moment: its settings and its items belong together."""

    @property
    def spec(self) -> IndexSpec:
        """The settings."""

    def search(
        self,
        queries: Vectors,
        k: int,
        ef: int | None = None,
        rescoring: float | None = None,
        wanted: Filter | None = None,
        reduced: bool = False,
    ) -> list[list[Hit]]:
        """The nearest items to each query, best first; arguments as in `Generation.search`."""


class SearchIndex(Protocol):
    """An index, whatever keeps it."""

    @property
    def name(self) -> str:
        """Of the index."""

    @property
    def spec(self) -> IndexSpec:
        """Its settings now."""

    @property
    def bridge(self) -> Bridge | None:
        """Takes queries of the encoder it is moving to; None if there is none."""

    def serving(self) -> Serving:
        """What answers searches now."""

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None = None,
    ) -> "Future[Change]":
        """Put items with their original vectors, in place of those with the same ids; see `Index.upsert`."""

    def delete(self, ids: Sequence[str]) -> "Future[Change]":
        """Remove those of the items that are there."""

    def get(self, ids: Sequence[str], vectors: bool) -> list[dict[str, Any] | None]:
        """Items by their ids, with their original vectors if asked for; None for one that is not there."""

    def describe(self) -> dict[str, Any]:
        """What it is and how it is."""

    def note(self, key: str) -> Any:
        """What a write noted; None if there is nothing."""

    def forget_note(self, key: str) -> None:
        """Remove a note."""

    def scan(self, most: int) -> Iterator[tuple[list[Payload], Vectors]]:
        """All items, some at a time: ids and metadata, and originals `(n, d)`."""

    def wait_until_linked(self, on_progress: Progress) -> None:
        """Wait until the graph has every item."""


class SearchIndexes(Protocol):
    """The indexes of one backend.

    Attributes:
        ready: set once those that can be opened are.
        needs_home: whether they are kept in the state folder.
    """

    ready: Event
    needs_home: bool

    def warnings(self) -> list[str]:
        """What keeps indexes from being used, or is wrong with them, as was last seen: nobody is asked now."""

    def states(self) -> dict[str, int]:
        """How many indexes are in which state, for the metrics."""

    def start(self) -> None:
        """Begin to open all there are; returns at once."""

    def close(self) -> None:
        """Let go of all."""

    def names(self) -> list[str]:
        """Indexes there are."""

    def get(self, name: str) -> SearchIndex:
        """An index, open; `UnknownNameError` if there is none."""

    def create(self, name: str, spec: IndexSpec, artifact: Artifact) -> SearchIndex:
        """A new index; one that is there already is kept as it is."""

    def delete(self, name: str) -> None:
        """Remove an index for good."""

    def require_owned(self, name: str) -> None:
        """Raise unless an index is there and may be changed by this process."""

    def describe(self) -> list[dict[str, Any]]:
        """All indexes; those that cannot be opened say why."""
