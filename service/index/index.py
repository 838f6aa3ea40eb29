"""One index at work: its record, the generation that serves, and a keeper who looks after both."""

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from service.errors import ServiceError, UnavailableError, UnknownNameError
from service.index.adoption import text_of
from service.index.bridge import Bridge
from service.index.filters import Filter
from service.index.generation import EXACT_ROWS, Generation, hints
from service.index.items import payload
from service.index.keeper import Keeper
from service.index.payloads import Payloads, fragment
from service.index.protocol import Change, Hit, Payload
from service.index.record import Record, Written
from service.index.reducer import Reducer, Vectors, require_half
from service.index.serving import GenerationServing
from service.index.snapshot import Snapshots, restore_snapshot
from service.index.spec import IndexSpec
from transforms.progress import Progress

POLL_SECONDS = 0.1
TRIES = 3
"""How often a search is done again that met rows of items being replaced."""

Texts = Callable[[IndexSpec, list[str]], Vectors]
"""Encodes texts by the encoder that a spec names."""

log = logging.getLogger(__name__)


class SpaceMovedError(Exception):
    """The index serves another space than the vectors were made for: make them anew."""


class Index:
    """An index that this process owns.

    Attributes:
        generation: what serves; replaced whole.
        bridge: takes queries of the encoder the index is moving to; None if there is none.
        moving_to: while it is being embedded anew, the metadata field that must hold an item's text.
        exact_rows: of its generations.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        lock: FileLock,
        threads: int,
        job_threads: int,
        encode: Texts,
        exact_rows: int = EXACT_ROWS,
    ) -> None:
        self.name = name
        self.folder = folder
        self.lock = lock
        self.threads = threads
        self.job_threads = job_threads
        self.encode = encode
        self.exact_rows = exact_rows
        self.record = Record(folder / "record.db")
        self.snapshots = Snapshots()
        self.generation = self.open_generation(self.record.spec)
        self.bridge: Bridge | None = None
        self.moving_to: str | None = None
        self.moving_folder: Path | None = None
        self.behind = False
        self.deleted = False
        self.payloads = Payloads(self.record)
        self.changing = threading.Lock()
        self.reindexing = threading.Lock()
        self.writer = ThreadPoolExecutor(1, thread_name_prefix=f"index-{name}")
        self.keeper = Keeper(self)

    def start(self) -> None:
        """Begin to look after the graph and the snapshots."""
        self.keeper.start()

    def close(self, snapshot: bool = True, release: bool = True) -> None:
        """Finish the writes accepted, write a snapshot, let go of the folder and, unless told otherwise, its lock."""
        self.keeper.stopping.set()
        self.writer.shutdown(wait=True)
        self.keeper.stop()
        if snapshot:
            with suppress(OSError):
                self.snapshots.write(self.generation)
        self.generation.close()
        self.record.close()
        if release:
            self.lock.release()

    # ── opening ──────────────────────────────────────────────────────────────────────────────

    def open_generation(self, spec: IndexSpec) -> Generation:
        """The generation of a spec from its snapshot and the record; anew from the record if they disagree."""
        folder = self.folder / f"graph-{spec.generation}"
        artifact = None if spec.chain == "none" else self.record.artifact(spec.chain)
        reducer = Reducer(spec, artifact)
        anew = "rows and graph were made anew from the record"
        notes: list[str] | None = None
        try:
            generation = Generation(folder, spec, self.record, reducer, self.threads, self.exact_rows)
            restored = restore_snapshot(generation)
            generation.replay()
            if generation.rows.count - generation.rows.dead != self.record.counts()["count"]:
                generation.close()
                notes = [*generation.notes, f"snapshot and record disagreed: {anew}"]
            elif restored is not None:
                self.snapshots.note(restored)
        except OSError as error:
            notes = [f"{Path(error.filename or folder).name}: {error.strerror}; {anew}"]
        if notes is not None:
            shutil.rmtree(folder, ignore_errors=True)
            generation = Generation(folder, spec, self.record, reducer, self.threads, self.exact_rows)
            generation.notes = notes
            generation.replay()
        for note in generation.notes:
            log.warning("index %s: %s", self.name, note)
        return generation

    # ── writes, all by the one writer thread ─────────────────────────────────────────────────

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None = None,
    ) -> "Future[Change]":
        """Put items with their original vectors; in place of those with the same ids; all or none.

        Gives a future: writes take their turns, and whoever waits need not hold a thread.

        Args:
            ids: as `require_ids` takes them.
            vectors: `(n, d)` originals.
            metadata: of each item.
            raw_space_id: the space of the vectors; None where the caller did not say.
            note: meta values to write with them.

        Raises:
            SpaceMovedError: if the index has moved on to another encoder.
            ServiceError: for vectors that cannot be kept.
            OSError, sqlite3.Error: if they cannot be written; nothing is, then.
        """
        return self.in_turn(self.put, ids, vectors, metadata, raw_space_id, note)

    def put(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None,
    ) -> Written:
        """`upsert` in the writer thread."""
        generation = self.healed()
        spec = generation.spec
        if raw_space_id not in (None, spec.raw_space_id):
            raise SpaceMovedError
        if spec.originals == "float16":
            require_half(vectors)
        payloads = [payload(place, given) for place, given in enumerate(metadata)]
        if self.moving_to is not None:
            for item, said in zip(ids, payloads, strict=True):
                text_of(item, said, self.moving_to)
        halves, reduced = generation.reduce.half(vectors), generation.reduce(vectors)
        generation.rows.reserve(len(ids))  # whatever may fail comes before the record says yes
        with self.changing:
            self.behind = True
            written = self.record.upsert(ids, vectors, metadata, payloads, spec, note)
            generation.rows.append(written.labels, halves, reduced, written.dead)
            self.behind = False
        self.keeper.news.set()
        return written

    def delete(self, ids: Sequence[str]) -> "Future[Change]":
        """Remove those of the items that are there; a future, as `upsert`."""
        return self.in_turn(self.remove, ids)

    def in_turn(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Have something done by the writer thread.

        Raises:
            UnavailableError: if the index is being closed.
        """
        try:
            return self.writer.submit(work, *arguments)
        except RuntimeError:
            raise self.closing_error() from None

    def closing_error(self) -> ServiceError:
        """What to say to whoever comes while the index is being closed or deleted."""
        if self.deleted:
            return UnknownNameError(f"the index {self.name} was deleted", param="name")
        return UnavailableError(f"the index {self.name} is being closed", code="closing")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Turn errors of a record that was closed, or whose files went meanwhile, into what it means."""
        try:
            yield
        except (sqlite3.Error, OSError):
            if self.keeper.stopping.is_set():
                raise self.closing_error() from None
            raise

    def remove(self, ids: Sequence[str]) -> Written:
        """`delete` in the writer thread."""
        generation = self.healed()
        with self.changing:
            self.behind = True
            written = self.record.delete(ids)
            generation.rows.bury(written.dead)
            self.behind = False
        return written

    def healed(self) -> Generation:
        """The generation that serves, with every row of the record."""
        if self.behind:  # a write failed: it may have been recorded, and its rows not added
            self.generation.replay()
            self.behind = False
        return self.generation

    # ── reads ────────────────────────────────────────────────────────────────────────────────

    @property
    def spec(self) -> IndexSpec:
        """The settings of the generation that serves."""
        return self.generation.spec

    def serving(self) -> GenerationServing:
        """The generation that serves now, whatever happens to the index meanwhile."""
        return GenerationServing(self, self.generation)

    def search(
        self,
        generation: Generation,
        queries: Vectors,
        k: int,
        ef: int | None = None,
        rescoring: float | None = None,
        wanted: Filter | None = None,
        reduced: bool = False,
    ) -> list[list[Hit]]:
        """The nearest items to each query `(q, d)`, best first, as JSON has them; see `Generation.search`.

        Raises:
            ServiceError: if the index is deleted or closed meanwhile.
        """
        for _ in range(TRIES):
            with self.in_use():
                labels, scores = generation.search(queries, k, ef, rescoring, wanted, reduced)
                there = np.unique(labels[labels >= 0]).tolist()
                found = self.payloads.of(there)
            if len(found) == len(there):
                break
            with self.changing:  # rows of items that were replaced or deleted just now: wait until that is through
                pass
        return [
            [
                {"id": found[label][0], "score": score, "metadata": found[label][1]}
                for label, score in zip(ours, theirs, strict=True)
                if label in found
            ]
            for ours, theirs in zip(labels.tolist(), scores.tolist(), strict=True)
        ]

    def get(self, ids: Sequence[str], vectors: bool) -> list[dict[str, Any] | None]:
        """Items by their ids, with their original vectors if asked for; None for one that is not there."""
        with self.in_use():
            found = self.record.find(ids)
            labels = [label for label, _ in found.values()] if vectors else []
            try:
                originals = self.record.originals(labels, self.generation.spec)
            except sqlite3.OperationalError:  # the table went in this moment, with a change of encoder
                originals = self.record.originals(labels, self.record.spec)
        items: list[dict[str, Any] | None] = []
        for item in ids:
            if item not in found:
                items.append(None)
                continue
            label, metadata = found[item]
            content: dict[str, Any] = {"id": item, "metadata": fragment(metadata)}
            items.append(content | ({"vector": originals[label]} if label in originals else {}))
        return items

    def note(self, key: str) -> Any:
        """What a write noted in the record."""
        return self.record.meta(key)

    def forget_note(self, key: str) -> None:
        """Remove a note."""
        self.record.note({key: None})

    def scan(self, most: int) -> Iterator[tuple[list[Payload], Vectors]]:
        """All items as they are at one moment."""
        return self.record.scan(most)

    def wait_until_linked(self, on_progress: Progress) -> None:
        """Wait until the graph has every row."""
        while self.generation.graph is not None and self.generation.covered < self.generation.rows.count:
            linked, total = self.generation.covered, self.generation.rows.count
            on_progress(linked / total, f"{linked:,} of {total:,} rows in the graph")
            time.sleep(POLL_SECONDS)

    def describe(self) -> dict[str, Any]:
        """What it is and how it is."""
        generation = self.generation
        spec, rows = generation.spec, generation.rows
        with self.in_use():
            sequence, record_bytes = self.record.meta("sequence"), self.record.file_bytes()
        behind = rows.count - generation.covered
        return {
            "name": self.name,
            "count": rows.count - rows.dead,
            "chain": spec.chain,
            "space_id": spec.space_id,
            "dimensions": spec.dimensions,
            "state": "building" if generation.graph is not None and behind > generation.exact_rows else "ready",
            "encoder": spec.encoder,
            "raw_space_id": spec.raw_space_id,
            "width": spec.width,
            "metric": spec.metric,
            "m": spec.m,
            "ef_construction": spec.ef_construction,
            "originals": spec.originals,
            "deleted": rows.dead,
            "in_graph": generation.covered,
            "sequence": sequence,
            "bytes": {
                "record": record_bytes,
                "rows": rows.bytes,
                "graph": generation.graph.bytes if generation.graph else 0,
            },
            "snapshot_age_seconds": self.snapshots.age(),
            "notes": [*generation.notes, *hints(rows)],
            "moving_to": None if self.bridge is None else self.bridge.describe(),
        }
