"""Embedded index that this process owns: its record, the generation that serves, and its threads."""

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from lathe.service.errors import BadValueError, ServiceError, UnavailableError, UnknownNameError
from lathe.service.index.bridge import Bridge, Move
from lathe.service.index.embedded.calibration import load_calibration
from lathe.service.index.embedded.generation import (
    Generation,
    describe_state,
    list_hints,
    measure_bytes,
    measure_memory,
)
from lathe.service.index.embedded.record import IndexRecord, RecordWrite
from lathe.service.index.embedded.rows import Labels
from lathe.service.index.embedded.serving import GenerationServing, PayloadCache, wrap_json
from lathe.service.index.embedded.snapshot import Snapshots, open_generation
from lathe.service.index.embedded.watch import RecallWatch, read_checkup
from lathe.service.index.items import get_text, serialize_metadata
from lathe.service.index.protocol import Artifact, Change, Payload, Quality, SpaceMovedError
from lathe.service.index.query import Filter
from lathe.service.index.reducer import Reducer, Vectors, require_float16
from lathe.service.index.spec import IndexSpec, require_originals
from lathe.training.thread_problem import ThreadProblem
from lathe.transforms.progress import Progress

POLL_SECONDS = 0.1
"""Number of seconds between checks while waiting for the graph."""
LOSSES = ("graph", "quantizer")
"""Kinds of findings of a checkup whose share is one of recall, not of rows."""
EncodeTexts = Callable[[IndexSpec, list[str]], Vectors]
"""Function that encodes texts with the encoder that a spec names."""


class EmbeddedIndex:
    """Vector index in one folder: a SQLite record, row files, and a graph in memory. This process alone has it open.

    The constructor opens the record, and restores the serving generation from its snapshot or rebuilds it.

    The index alone assigns its attributes, because three kinds of threads share them: the writer thread changes record
    and generation, the maintenance thread begins and ends moves, and searches only read.

    Args:
        threads: number of threads for a search.
        graph_threads: number of threads for adding rows to the graph.
        encode: encodes texts with the encoder that a spec names.
        exact_rows: number of candidate rows up to which its generations search exactly; None for their own choice.

    Attributes:
        generation: generation that serves; always replaced as a whole.
        move: move to another encoder in progress; None if there is none.
        lacks_rows: whether a failed write may have left rows of recorded items out of the generation.
        rows_added: event that is set when rows were added.
        stopping: event that is set when the index is being closed.
        watch: recall of its searches while it serves.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        lock: FileLock,
        threads: int,
        graph_threads: int,
        encode: EncodeTexts,
        exact_rows: int | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.lock = lock
        self.threads = threads
        self.graph_threads = graph_threads
        self.encode = encode
        self.exact_rows = exact_rows
        self.record = IndexRecord(folder / "record.db")
        self.snapshots = Snapshots()

        with ExitStack() as opened:  # closes the record if the rest fails
            opened.enter_context(closing(self.record))
            self.record.read_counters()  # an error if writes could not be numbered
            self.generation = self._open_generation(self.record.spec)
            opened.pop_all()

        self.move: Move | None = None
        self.lacks_rows = False
        self.deleted = False
        self.payloads = PayloadCache(self.record)
        self.watch = RecallWatch(folder / "recall.json")
        self.changing = threading.Lock()
        self.writer = ThreadPoolExecutor(1, thread_name_prefix=f"index-{name}")
        self.rows_added = threading.Event()
        self.stopping = threading.Event()
        self.maintenance: threading.Thread | None = None
        self.maintenance_problem = ThreadProblem(f"maintenance of the index {name}")

    def start(self, maintain: Callable[[], None]) -> None:
        """Start the maintenance thread, which calls `maintain`.

        That function must return soon after `stopping` is set.
        """
        self.maintenance = threading.Thread(target=maintain, name=f"maintenance-{self.name}", daemon=True)
        self.maintenance.start()

    @property
    def maintenance_warning(self) -> str | None:
        """Message about an unexpected error of the maintenance thread, or None if its last step succeeded."""
        return self.maintenance_problem.message

    def close(self, snapshot: bool = True, release: bool = True) -> None:
        """Finish accepted writes, stop the maintenance thread, write a snapshot, and close the record's file.

        Args:
            snapshot: whether to write a snapshot of rows and graph, from which the next start is fast.
            release: whether to give up the lock by which this process owns the index.
        """
        self.stopping.set()
        self.writer.shutdown(wait=True)
        self.rows_added.set()  # or the maintenance thread would go on waiting for rows
        if self.maintenance is not None:
            self.maintenance.join()

        if snapshot:
            with suppress(OSError):
                self.write_snapshot()
        self.record.close()
        if release:
            self.lock.release()

    def close_for_deletion(self) -> None:
        """Close the index without releasing its lock, and let later writes raise `UnknownNameError`."""
        self.deleted = True
        self.close(snapshot=False, release=False)

    # ── opening ──────────────────────────────────────────────────────────────────────────────

    def _open_generation(self, spec: IndexSpec) -> Generation:
        """Return the index's generation, restored from its snapshot on disk or rebuilt from the record."""
        folder = self.folder / f"graph-{spec.generation}"
        # Built before `open_generation`, which takes an OSError for damage of the generation's files.
        reducer = Reducer(spec, self.record.read_artifact(spec.chain))
        create = partial(self.create_generation, folder, spec, reducer)
        generation, restored = open_generation(self.name, folder, create)
        if restored is not None:
            self.snapshots.remember(restored)
        generation.use_calibration(load_calibration(generation))
        return generation

    @property
    def is_calibration_stale(self) -> bool:
        """Whether the index is calibrated, and many of its rows are newer."""
        calibration = self.generation.calibration
        return calibration is not None and calibration.is_stale

    @property
    def excessive_loss(self) -> str | None:
        """Recall@10 that the graph loses, with its interval, if it is worth a warning, else None."""
        return self.watch.excessive_loss

    def measure_quality(self) -> Quality:
        """Return what searches lose and which rows are faulty, by the canaries and the last checkup."""
        measured = self.watch.describe() or {"losses": {}, "rows": {}}
        findings = (read_checkup(self.folder) or {}).get("findings", [])
        shares = {one["kind"]: one["share"]["value"] for one in findings if one["share"] and one["kind"] not in LOSSES}
        losses, rows = ({cause: share[0] for cause, share in measured[part].items()} for part in ("losses", "rows"))
        return Quality(losses, shares | rows)

    def ask_canary(self) -> None:
        """Search for a stored row, if it is time to, to measure what searches lose."""
        self.watch.ask_if_due(self.generation)

    def create_generation(self, folder: Path, spec: IndexSpec, reducer: Reducer) -> Generation:
        """Return a generation (rows, graph and chain of transforms) without rows, whose files are in `folder`."""
        return Generation(folder, spec, self.record, reducer, self.threads, self.exact_rows)

    # ── writes, all by the one writer thread ─────────────────────────────────────────────────

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None = None,
    ) -> "Future[Change]":
        """Queue the insertion of items, which replace items with the same ids, and return a future.

        Its result is the write's number and the number of items replaced. All items are written or none. Writes run one
        after another in the writer thread, so that callers need not hold a thread while they wait.

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
        return self.run_in_writer(self._write_items, ids, vectors, metadata, raw_space_id, note)

    def _write_items(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[Mapping[str, Any] | None],
        raw_space_id: str | None,
        note: Mapping[str, Any] | None,
    ) -> RecordWrite:
        """Write items to the record, append their rows, and mark the rows of replaced items as dead.

        Runs in the writer thread, with the arguments and errors of `upsert`. The items are checked first, and rows that
        a failed write left out are added before them. Wakes the maintenance thread.

        Returns:
            Number of the write, new labels, and labels of the replaced items.
        """
        generation = self.recover_generation()
        spec = generation.spec
        if raw_space_id not in (None, spec.raw_space_id):
            raise SpaceMovedError
        if spec.originals == "float16":
            require_float16(vectors)
        payloads = [serialize_metadata(position, fields) for position, fields in enumerate(metadata)]
        if (move := self.move) is not None:  # the next generation is encoded from texts
            for item, metadata_json in zip(ids, payloads, strict=True):
                get_text(item, metadata_json, move.text_field)

        recorded, half_precision, compact = generation.convert(vectors)
        generation.rows.reserve(len(ids))  # all that can fail comes before the record is written
        with self.changing:
            self.lacks_rows = True
            written = self.record.upsert(ids, recorded, metadata, payloads, spec, note)
            generation.rows.append(written.labels, half_precision, compact, written.dead)
            self.lacks_rows = False

        self.rows_added.set()
        return written

    def delete(self, ids: Sequence[str]) -> "Future[Change]":
        """Queue the deletion of the items with these ids, and return a future. Unknown ids are ignored.

        Its result is the write's number and the number of items deleted.
        """
        return self.run_in_writer(self._delete_items, lambda _: self.record.find_labels(ids))

    def delete_matching(self, item_filter: Filter) -> "Future[Change]":
        """Queue the deletion of all items that satisfy a filter when its turn comes, and return a future.

        Its result is the write's number and the number of items deleted.
        """
        return self.run_in_writer(self._delete_items, lambda generation: generation.find_matching_labels(item_filter))

    def _delete_items(self, find_labels: Callable[[Generation], Labels]) -> RecordWrite:
        """Delete the items whose labels `find_labels` returns, and mark their rows as dead.

        Runs in the writer thread.
        """
        generation = self.recover_generation()
        labels = find_labels(generation)  # stays true: no other thread writes
        with self.changing:
            self.lacks_rows = True
            written = self.record.delete(labels)
            generation.rows.mark_dead(written.dead)
            self.lacks_rows = False
        return written

    def recover_generation(self) -> Generation:
        """Return the serving generation, after appending recorded rows that a failed write may have left out."""
        if self.lacks_rows:  # the write may have been recorded, and its rows not added
            self.generation.replay()
            self.lacks_rows = False
        return self.generation

    def run_in_writer(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Queue a function with its arguments in the writer thread, and return the future of its result.

        Raises:
            UnavailableError: if the index is being closed.
            UnknownNameError: if the index was deleted.
        """
        try:
            return self.writer.submit(work, *arguments)
        except RuntimeError:
            raise self._build_closing_error() from None

    def _build_closing_error(self) -> ServiceError:
        if self.deleted:
            return UnknownNameError(f"the index {self.name} was deleted", param="name")
        return UnavailableError(f"the index {self.name} is being closed", code="closing")

    @contextmanager
    def translate_closing_errors(self) -> Iterator[None]:
        """Run a block, and once the index is being closed, replace SQLite and file errors by one that says so."""
        try:
            yield
        except (sqlite3.Error, OSError):
            if self.stopping.is_set():
                raise self._build_closing_error() from None
            raise

    # ── maintenance and changes of the generation ────────────────────────────────────────────

    def wait_for_rows(self, seconds: float) -> None:
        """Block until rows are added or the index is being closed, at most this number of seconds."""
        self.rows_added.wait(seconds)
        self.rows_added.clear()

    def extend_graph(self, max_rows: int) -> int:
        """Add up to `max_rows` rows to the graph, and return how many rows are not in it then, or 0 without a graph."""
        return self.generation.extend_graph(max_rows, self.graph_threads)

    def write_snapshot(self) -> None:
        """Write rows and graph to disk as a snapshot, unless neither has grown since the last one.

        Raises:
            OSError: if it cannot be written; the previous snapshot stays.
        """
        self.snapshots.write(self.generation)

    def begin_move(self, folder: Path, text_field: str) -> None:
        """Note that the index is moving to another encoder, and that a job builds the new generation in `folder`.

        Until the move ends, items without a text in this field of their metadata are refused.
        """
        self.move = Move(folder, text_field)

    def set_move_bridge(self, bridge: Bridge | None) -> None:
        """Set the fitted map by which queries of the new encoder search the old vectors, or remove it with None.

        The index must be moving to another encoder.
        """
        assert self.move is not None
        self.move = replace(self.move, bridge=bridge)

    def end_move(self) -> None:
        """End the move to another encoder without cutting over to its generation."""
        self.move = None

    def switch_to(self, generation: Generation, artifact: Artifact, snapshot: Mapping[str, Any] | None) -> Generation:
        """Let a new generation serve searches, end a move to another encoder, if any, and return the old generation.

        The record's settings and chain are replaced with it. Call it in the writer thread, so that no write comes
        between the change of the record and the change of the generation. A search uses the old or the new generation
        as a whole. The caller deletes the old generation's files.

        Args:
            generation: new generation, with a row for every item of the record.
            artifact: manifest and tensors of its chain of transforms; None for raw vectors.
            snapshot: description of its snapshot; None if there is none.
        """
        self.record.switch_generation(generation.spec, artifact)
        old, self.generation = self.generation, generation
        self.move = None
        if snapshot is not None:
            self.snapshots.remember(snapshot)
        return old

    # ── reads ────────────────────────────────────────────────────────────────────────────────

    @property
    def spec(self) -> IndexSpec:
        """Settings of the generation that serves."""
        return self.generation.spec

    @property
    def bridge(self) -> Bridge | None:
        """Fitted map for queries of the encoder that the index is moving to, or None if there is none."""
        return None if (move := self.move) is None else move.bridge

    def read_artifact(self) -> Artifact:
        """Return the manifest and tensors, as bytes, of the chain of transforms that serves, or None for raw vectors.

        Raises:
            UnavailableError: if the record does not have the chain, because the index cuts over at this moment.
        """
        return self.record.read_artifact(self.spec.chain)

    def get_serving(self) -> GenerationServing:
        """Return the current generation for a search.

        It stays the same object if the index cuts over to another generation.
        """
        return GenerationServing(self.generation, self.payloads, self.changing, self.translate_closing_errors)

    def get(self, ids: Sequence[str], vectors: bool) -> list[dict[str, Any] | None]:
        """Return `{id, metadata}` for each id in order, with `vectors` also its `vector`, or None for an unknown id.

        Raises:
            ConflictError: if original vectors are requested, and the index stores none.
        """
        if vectors:
            require_originals(self.spec, "`vectors`", "vectors")
        with self.translate_closing_errors():
            stored, originals = self.record.read_items(ids) if vectors else (self.record.find_items(ids), {})

        items: list[dict[str, Any] | None] = []
        for item in ids:
            if item not in stored:
                items.append(None)
                continue
            label, metadata = stored[item]
            content: dict[str, Any] = {"id": item, "metadata": wrap_json(item, metadata)}
            items.append(content | ({"vector": originals[label]} if label in originals else {}))
        return items

    def read_page(self, cursor: str | None, max_items: int) -> tuple[list[Payload], str | None]:
        """Return up to `max_items` items (id, metadata) after a cursor, and the cursor of the next page or None.

        The items are in the order of writing.

        Raises:
            BadValueError: if this index gave no such cursor.
        """
        if cursor is not None and re.fullmatch("[0-9]{1,16}", cursor, re.ASCII) is None:
            raise BadValueError("the cursor is none that a page of this index gave", param="cursor")
        with self.translate_closing_errors():
            labels, payloads = self.record.read_payloads_after(int(cursor or 0), max_items + 1)
        more = len(payloads) > max_items
        return payloads[:max_items], str(labels[max_items - 1]) if more else None

    def read_note(self, key: str) -> Any:
        """Return the JSON value that an upsert stored in its `note` under a key, or None if there is none."""
        return self.record.read_meta(key)

    def delete_note(self, key: str) -> None:
        """Set the value that an upsert stored in its `note` under a key to null, which reads like a missing one."""
        self.record.write_meta({key: None})

    def scan(self, max_items: int) -> Generator[tuple[list[Payload], Vectors], None, None]:
        """Yield all items in batches of up to `max_items`: a list of (id, metadata), and the original vectors `(n, d)`.

        All are read at one consistent moment.

        Raises:
            ConflictError: if the index stores no originals.
        """
        require_originals(self.spec, "reading all items")
        return self.record.scan(max_items)

    def wait_until_linked(self, on_progress: Progress) -> None:
        """Block until every row is in the graph, and report the progress meanwhile. Return at once without a graph."""
        while self.generation.graph is not None and self.generation.covered < self.generation.rows.count:
            linked, total = self.generation.covered, self.generation.rows.count
            on_progress(linked / total, f"{linked:,} of {total:,} rows in the graph")
            time.sleep(POLL_SECONDS)

    def describe(self) -> dict[str, Any]:
        """Return the settings, number of items, sizes in bytes, state, hints and current move of the index."""
        generation = self.generation
        spec, rows = generation.spec, generation.rows
        with self.translate_closing_errors():
            sequence, record_bytes = self.record.read_meta("sequence"), self.record.measure_bytes()
        return {
            **spec.describe(self.name, rows.count - rows.dead, describe_state(generation)),
            "deleted": rows.dead,
            "in_graph": generation.covered,
            "sequence": sequence,
            "bytes": measure_bytes(generation, record_bytes),
            "memory": measure_memory(generation, self.payloads.bytes),
            "snapshot_age_seconds": self.snapshots.compute_age(),
            "notes": [*generation.notes, *list_hints(generation)],
            "calibration": None if (calibration := generation.calibration) is None else calibration.describe(),
            "recall": self.watch.describe(),
            "checkup": read_checkup(self.folder),
            "moving_to": None if (bridge := self.bridge) is None else bridge.describe(),
        }
