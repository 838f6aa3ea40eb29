"""Embedded index in use: its record, the generation that serves, and the maintenance thread."""

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
"""Number of seconds between checks while waiting for the graph."""
TRIES = 3
"""Maximum number of times a search is run if it meets rows of items that are being replaced."""

Texts = Callable[[IndexSpec, list[str]], Vectors]
"""Function that encodes texts with the encoder that a spec names."""

log = logging.getLogger(__name__)


class SpaceMovedError(Exception):
    """Error for vectors of a space that the index no longer serves; the caller must encode the texts again."""


class Index:
    """Embedded index that this process owns.

    Args:
        name: name of the index.
        folder: folder of the index.
        lock: acquired lock of the index.
        threads: number of threads for a search.
        job_threads: number of threads for adding rows to the graph.
        encode: encodes texts with the encoder that a spec names.
        exact_rows: number of candidate rows up to which its generations search exactly.

    Attributes:
        generation: generation that serves; always replaced as a whole.
        bridge: alignment for queries of the encoder that the index is moving to; None if there is none.
        moving_to: during a re-embedding, the metadata field that must hold an item's text; else None.
        exact_rows: as given.
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
        """Start the maintenance thread."""
        self.keeper.start()

    def close(self, snapshot: bool = True, release: bool = True) -> None:
        """Finish accepted writes, stop the maintenance thread, and close all files.

        Args:
            snapshot: whether to write a snapshot.
            release: whether to release the lock of the index.
        """
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
        """Open the generation of a spec: restore its snapshot, then add later items from the record.

        If the result disagrees with the record, or the files cannot be used, the generation is rebuilt from the record.
        Its notes, which say what was rebuilt, are logged.
        """
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
        """Queue the insertion of items with original vectors, replacing items with the same ids, and return a future.

        All items are written or none. Writes run one after another in a thread, so callers need not hold a thread while
        they wait.

        Args:
            ids: valid, distinct ids; see `require_ids`.
            vectors: original vectors `(n, d)`.
            metadata: metadata of each item.
            raw_space_id: space of the vectors; None if unknown.
            note: meta values to write in the same transaction.

        Raises:
            SpaceMovedError: if the index has moved to another encoder.
            ServiceError: if the vectors or metadata cannot be stored, or the index is being closed.
            OSError, sqlite3.Error: if the write fails; nothing is written then.
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
        """Insert items, in the writer thread; arguments and errors as in `upsert`."""
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
        """Queue the deletion of the items with these ids, and return a future; unknown ids are ignored."""
        return self.in_turn(self.remove, ids)

    def in_turn(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Queue a function call in the writer thread, and return its future.

        Raises:
            UnavailableError: if the index is being closed.
            UnknownNameError: if the index was deleted.
        """
        try:
            return self.writer.submit(work, *arguments)
        except RuntimeError:
            raise self.closing_error() from None

    def closing_error(self) -> ServiceError:
        """Return the error for requests that come while the index is being closed or deleted."""
        if self.deleted:
            return UnknownNameError(f"the index {self.name} was deleted", param="name")
        return UnavailableError(f"the index {self.name} is being closed", code="closing")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Run the block; while the index is being closed, replace errors of SQLite and of files by one that says so."""
        try:
            yield
        except (sqlite3.Error, OSError):
            if self.keeper.stopping.is_set():
                raise self.closing_error() from None
            raise

    def remove(self, ids: Sequence[str]) -> Written:
        """Delete items from the record and mark their rows as dead, in the writer thread."""
        generation = self.healed()
        with self.changing:
            self.behind = True
            written = self.record.delete(ids)
            generation.rows.bury(written.dead)
            self.behind = False
        return written

    def healed(self) -> Generation:
        """Return the serving generation, after replaying recorded rows that a failed write did not add."""
        if self.behind:  # a write failed: it may have been recorded, and its rows not added
            self.generation.replay()
            self.behind = False
        return self.generation

    # ── reads ────────────────────────────────────────────────────────────────────────────────

    @property
    def spec(self) -> IndexSpec:
        """Settings of the generation that serves."""
        return self.generation.spec

    def serving(self) -> GenerationServing:
        """Return the current generation to search in; it stays the same if the index changes."""
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
        """Return the k nearest items to each query `(q, d)`, best first, with id, score and metadata.

        The arguments are those of `Generation.search`.

        The search is repeated up to twice if items it found were replaced meanwhile; items that are still missing are
        left out.

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
        """Return the items with these ids, with original vectors on request; None for an id that does not exist."""
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
        """Return the value that a write stored under the key; None if there is none."""
        return self.record.meta(key)

    def forget_note(self, key: str) -> None:
        """Set the value that a write stored under the key to null, which reads like a missing one."""
        self.record.note({key: None})

    def scan(self, most: int) -> Iterator[tuple[list[Payload], Vectors]]:
        """Yield all items of one consistent moment in batches: ids and metadata, and original vectors `(n, d)`."""
        return self.record.scan(most)

    def wait_until_linked(self, on_progress: Progress) -> None:
        """Block until the graph contains every row, reporting progress; return at once without a graph."""
        while self.generation.graph is not None and self.generation.covered < self.generation.rows.count:
            linked, total = self.generation.covered, self.generation.rows.count
            on_progress(linked / total, f"{linked:,} of {total:,} rows in the graph")
            time.sleep(POLL_SECONDS)

    def describe(self) -> dict[str, Any]:
        """Return settings, counts, sizes in bytes, state and notes of the index as a dict."""
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
