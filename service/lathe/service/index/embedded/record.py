"""Record of an index: everything that cannot be rebuilt, in one SQLite file.

meta         spec, sequence (number of writes), last_label (last label given), notes of imports
items        label → id, metadata       a label stands for one version of one item, for ever
vectors_<n>  label → original vector    re-embedding fills the next table, then drops this one; without
                                        originals: label → code
fields       name, value → label        what filters look up
tombstones   labels of items that were deleted or replaced, with the sequence of that write
chains       the chain's artifact, so that the index needs no registry
calibrations what gives hits their probabilities, by embedding space: see calibration

WAL with synchronous=FULL: a write is on the disk when its transaction returns, whole or not at all.
"""

import json
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.chains.names import RAW
from lathe.service.errors import TooLargeError, UnavailableError
from lathe.service.index.embedded.record_file import (
    MAX_CHAIN_BYTES,
    TABLES,
    VECTORS_TABLE,
    RecordFile,
    placeholders,
    read_counter,
    read_meta,
    read_spec,
    slice_parameters,
    write_meta_values,
    write_spec,
)
from lathe.service.index.embedded.rows import Labels
from lathe.service.index.items import list_entries, parse_metadata
from lathe.service.index.protocol import Artifact, Change, Payload
from lathe.service.index.spec import IndexSpec
from lathe.transforms.files import create_file


@dataclass(frozen=True)
class RecordWrite(Change):
    """Outcome of a write to the record, with the labels needed to update the rows.

    Attributes:
        labels: labels of the new versions, in the order of the ids.
        dead: labels of the versions that were replaced or deleted.
    """

    labels: Labels
    dead: Labels


class IndexRecord(RecordFile):
    """The SQLite file of an index: its settings, chain of transforms, items, original vectors and tombstones.

    Any number of threads may call its methods; writes wait for one another.
    """

    @classmethod
    def create(cls, path: Path, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> "IndexRecord":
        """Create a new, empty record file with an index's settings and chain of transforms, and return it open."""
        create_file(path).close()  # SQLite gives the WAL beside it the same permissions
        connection = sqlite3.connect(path, isolation_level=None)
        connection.executescript(TABLES)
        connection.close()
        record = cls(path)
        with record.transaction() as db:
            write_meta_values(db, {"sequence": 0, "last_label": 0})
            write_spec(db, spec, artifact)
        return record

    # ── settings and counters ────────────────────────────────────────────────────────────────

    def read_meta(self, key: str) -> Any:
        """Return the JSON value of a key in the record's meta table, or None if the key is missing."""
        with self.reading() as db:
            return read_meta(db, key)

    @property
    def spec(self) -> IndexSpec:
        """Settings of the index."""
        with self.reading() as db:
            return read_spec(db)

    def read_artifact(self, chain: str) -> Artifact:
        """Return the manifest and tensors, as bytes, of a chain of transforms, or None for `none` (raw vectors).

        Raises:
            UnavailableError: if the record does not have the chain.
        """
        if chain == RAW:
            return None
        with self.reading() as db:
            row = db.execute("SELECT manifest, tensors FROM chains WHERE chain = ?", (chain,)).fetchone()
        if row is None:
            raise UnavailableError(f"the record holds no chain {chain}", code="corrupt_index")
        return row[0], row[1]

    def read_calibration(self, space_id: str) -> tuple[bytes, bytes, bytes] | None:
        """Return what `write_calibration` stored for an embedding space, or None. The first part is JSON."""
        query = "SELECT content, model, vectors FROM calibrations WHERE space_id = ?"
        with self.reading() as db:
            row: tuple[bytes, bytes, bytes] | None = db.execute(query, (space_id,)).fetchone()
        return row

    def read_counters(self) -> tuple[int, int]:
        """Return the number of the last write, and the last label that an item was given. Labels count from 1.

        Raises:
            UnavailableError: if one of them is damaged.
        """
        with self.reading() as db:
            return read_counter(db, "sequence"), read_counter(db, "last_label")

    def count_items(self) -> dict[str, int]:
        """Return `{count, deleted}`: the number of items, and of tombstones (labels of deleted or replaced items)."""
        with self.reading() as db:
            items, dead = (db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("items", "tombstones"))
        return {"count": items, "deleted": dead}

    # ── writes ───────────────────────────────────────────────────────────────────────────────

    def upsert(
        self,
        ids: Sequence[str],
        vectors: NDArray[Any],
        metadata: Sequence[Mapping[str, Any] | None],
        payloads: Sequence[bytes | None],
        spec: IndexSpec,
        note: Mapping[str, Any] | None = None,
    ) -> RecordWrite:
        """Insert items, or replace items with the same ids, in one transaction.

        All items are written or none. Each gets a new label (the record's integer id), and entries for filters. The
        labels of replaced versions become tombstones.

        Args:
            ids: ids without duplicates.
            vectors: original vectors `(n, d)`, or without originals codes `(n, b)`.
            metadata: metadata of each item, for the filters.
            payloads: the same metadata as JSON.
            spec: settings, for the table and dtype of the vectors.
            note: meta values to write in the same transaction.

        Returns:
            Number of the write, new labels, and labels of the replaced versions.
        """
        entries = [list_entries(item_metadata) if item_metadata else () for item_metadata in metadata]
        blobs = [row.tobytes() for row in vectors.astype(spec.stored_dtype, copy=False)]

        with self.transaction() as db:
            sequence, last = read_counter(db, "sequence") + 1, read_counter(db, "last_label")
            dead = _find_labels(db, ids)
            _delete_items(db, dead, sequence)

            # Labels are never given twice, so whatever is cached by label never becomes stale.
            labels = np.arange(last + 1, last + 1 + len(ids), dtype=np.int64)
            numbers = labels.tolist()
            db.executemany("INSERT INTO items VALUES (?, ?, ?)", zip(numbers, ids, payloads, strict=True))
            db.executemany(f"INSERT INTO vectors_{spec.vectors} VALUES (?, ?)", zip(numbers, blobs, strict=True))
            db.executemany(
                "INSERT INTO fields VALUES (?, ?, ?)",
                ((name, value, label) for label, pairs in zip(numbers, entries, strict=True) for name, value in pairs),
            )
            write_meta_values(db, {"sequence": sequence, "last_label": last + len(ids), **(note or {})})
        return RecordWrite(sequence, len(dead), labels, dead)

    def delete(self, labels: Labels) -> RecordWrite:
        """Delete the items with these labels in one transaction, and store the labels as tombstones.

        The write gets a number even without labels.

        Args:
            labels: distinct labels of items that exist.

        Returns:
            Number of the write, and the labels.
        """
        with self.transaction() as db:
            sequence = read_counter(db, "sequence") + 1
            _delete_items(db, labels, sequence)
            write_meta_values(db, {"sequence": sequence})
        return RecordWrite(sequence, len(labels), np.empty(0, np.int64), labels)

    def write_meta(self, values: Mapping[str, Any]) -> None:
        """Write values by key to the record's meta table, as JSON, in one transaction."""
        with self.transaction() as db:
            write_meta_values(db, values)

    def write_calibration(self, space_id: str, content: Mapping[str, Any], model: bytes, vectors: bytes) -> None:
        """Store a calibration in one transaction, in place of the one of the same embedding space.

        Args:
            space_id: space of the vectors that are searched.
            content: its description, to be stored as JSON.
            model: tensors of its model.
            vectors: vectors of the queries it was made from.

        Raises:
            TooLargeError: if a part has more than `MAX_CHAIN_BYTES`; no backup could be restored.
        """
        parts = (json.dumps(content).encode(), model, vectors)
        if max(map(len, parts)) > MAX_CHAIN_BYTES:
            raise TooLargeError(f"a part of a calibration may have at most {MAX_CHAIN_BYTES:,} bytes")
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO calibrations VALUES (?, ?, ?, ?)", (space_id, *parts))

    def add_vectors(self, table: int, labels: Labels, vectors: NDArray[np.float32], dtype: str) -> None:
        """Write original vectors by label into table number `table`, which is for an index's next generation.

        The table is created if it is missing. Vectors of known labels are replaced.

        Args:
            table: number of the table.
            labels: labels `(n,)`.
            vectors: original vectors `(n, d)`.
            dtype: dtype to store.
        """
        blobs = (row.tobytes() for row in vectors.astype(dtype, copy=False))
        with self.transaction() as db:
            if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (f"vectors_{table}",)).fetchone():
                db.execute(VECTORS_TABLE.format(name=f"vectors_{table}"))
            db.executemany(
                f"INSERT OR REPLACE INTO vectors_{table} VALUES (?, ?)", zip(labels.tolist(), blobs, strict=True)
            )

    def switch_generation(self, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> None:
        """Replace the index's settings and chain, and drop the old table of original vectors if another is in use now.

        Calibrations of other embedding spaces are deleted, and vectors of items that were deleted meanwhile are removed
        from the new table.
        """
        with self.transaction() as db:
            old = read_spec(db)
            write_spec(db, spec, artifact)
            db.execute("DELETE FROM calibrations WHERE space_id != ?", (spec.space_id,))
            if old.vectors != spec.vectors:
                db.execute(f"DROP TABLE vectors_{old.vectors}")
                db.execute(f"DELETE FROM vectors_{spec.vectors} WHERE label NOT IN (SELECT label FROM items)")

    def drop_spare_vectors(self) -> None:
        """Drop the table of original vectors after the one in use, which an abandoned re-embedding may have left."""
        with self.transaction() as db:
            db.execute(f"DROP TABLE IF EXISTS vectors_{read_spec(db).vectors + 1}")

    def delete_tombstones(self, sequence: int) -> None:
        """Delete the tombstones of writes up to number `sequence`, and the filter entries of their labels.

        Call it only after a reindexing, when no row of the serving generation needs them.
        """
        with self.transaction() as db:
            labels = "SELECT label FROM tombstones WHERE sequence <= ?"
            db.execute(f"DELETE FROM fields WHERE label IN ({labels})", (sequence,))
            db.execute("DELETE FROM tombstones WHERE sequence <= ?", (sequence,))

    def rebuild_filter_entries(self) -> None:
        """Delete all entries by which filters find items, and write them again from the items' metadata.

        Raises:
            BadValueError: if an item has metadata that no item can have.
            UnavailableError: if metadata are not a JSON object.
        """
        with self.transaction() as db:
            db.execute("DELETE FROM fields")
            items = db.execute("SELECT label, id, metadata FROM items WHERE metadata IS NOT NULL ORDER BY label")
            db.executemany(
                "INSERT INTO fields VALUES (?, ?, ?)",
                (
                    (name, value, label)
                    for label, item, metadata in items
                    for name, value in list_entries(parse_metadata(item, metadata))
                ),
            )

    # ── reads ────────────────────────────────────────────────────────────────────────────────

    def read_rows_after(self, label: int, max_items: int, spec: IndexSpec) -> tuple[Labels, NDArray[Any]]:
        """Return the labels `(n,)` and stored vectors of up to `max_items` items with labels above `label`, ascending.

        These are original vectors `(n, d)` in float32, or without originals codes `(n, b)`.
        """
        query = f"SELECT label, vector FROM vectors_{spec.vectors} WHERE label > ? ORDER BY label LIMIT ?"
        with self.reading() as db:
            rows = db.execute(query, (label, max_items)).fetchall()
        labels = np.array([label for label, _ in rows], np.int64)
        return labels, self._build_matrix([vector for _, vector in rows], spec)

    def read_payloads_after(self, label: int, max_items: int) -> tuple[Labels, list[Payload]]:
        """Return the labels `(n,)` and (id, metadata) pairs of up to `max_items` items after `label`, ascending."""
        query = "SELECT label, id, metadata FROM items WHERE label > ? ORDER BY label LIMIT ?"
        with self.reading() as db:
            rows = db.execute(query, (label, max_items)).fetchall()
        return np.array([row[0] for row in rows], np.int64), [(row[1], row[2]) for row in rows]

    def scan(self, max_items: int) -> Generator[tuple[list[Payload], NDArray[np.float32]], None, None]:
        """Yield all items in batches of up to `max_items`: a list of (id, metadata), and the original vectors `(n, d)`.

        All are read at one consistent moment, in label order.
        """
        with self.reading() as db:
            db.execute("BEGIN")
            try:
                spec = read_spec(db)
                cursor = db.execute(
                    f"SELECT id, metadata, vector FROM items JOIN vectors_{spec.vectors} USING (label) ORDER BY label"
                )
                while rows := cursor.fetchmany(max_items):
                    yield [(row[0], row[1]) for row in rows], self._build_matrix([row[2] for row in rows], spec)
            finally:
                with suppress(sqlite3.ProgrammingError):  # a generator that nobody finished outlives the record
                    db.execute("ROLLBACK")

    def read_payloads(self, labels: Iterable[int]) -> dict[int, Payload]:
        """Return `{label: (id, metadata as JSON bytes)}` for labels, without deleted and replaced items."""
        payloads: dict[int, Payload] = {}
        with self.reading() as db:
            for part in slice_parameters(list(labels)):
                rows = db.execute(f"SELECT label, id, metadata FROM items WHERE label IN ({placeholders(part)})", part)
                payloads.update((label, (item, metadata)) for label, item, metadata in rows)
        return payloads

    def sample_labels(self, max_labels: int) -> list[int]:
        """Return up to `max_labels` labels spread over all items. The result is the same until the items change."""
        with self.reading() as db:
            step = max(1, db.execute("SELECT count(*) FROM items").fetchone()[0] // max_labels)
            # Multiplied by a large odd number, labels that follow a pattern, such as every second one, do so no longer.
            rows = db.execute(
                "SELECT label FROM items WHERE ((label * 2654435761) & 4294967295) % ? = 0 LIMIT ?", (step, max_labels)
            )
            return [label for (label,) in rows]

    def find_labels(self, ids: Sequence[str]) -> Labels:
        """Return the labels (the record's integer ids) of the items with these distinct ids, in no order.

        Unknown ids are ignored.
        """
        with self.reading() as db:
            return _find_labels(db, ids)

    def find_items(self, ids: Sequence[str]) -> dict[str, tuple[int, bytes | None]]:
        """Return `{id: (label, metadata as JSON bytes)}` for the ids that exist."""
        with self.reading() as db:
            return _find_items(db, ids)

    def read_items(
        self, ids: Sequence[str]
    ) -> tuple[dict[str, tuple[int, bytes | None]], dict[int, NDArray[np.float32]]]:
        """Return the items with these ids, `{id: (label, metadata)}`, and their vectors, `{label: vector}`.

        Both are of one state of the record: an item that is replaced meanwhile has its old metadata and its old vector.
        """
        with self.snapshot() as db:
            items = _find_items(db, ids)
            return items, self._read_originals(db, [label for label, _ in items.values()], read_spec(db))

    def read_originals(self, labels: Sequence[int], spec: IndexSpec) -> dict[int, NDArray[np.float32]]:
        """Return `{label: original vector (d,) float32}` for the labels that exist."""
        with self.reading() as db:
            return self._read_originals(db, labels, spec)

    def _read_originals(
        self, db: sqlite3.Connection, labels: Sequence[int], spec: IndexSpec
    ) -> dict[int, NDArray[np.float32]]:
        originals: dict[int, NDArray[np.float32]] = {}
        for part in slice_parameters(list(labels)):
            rows = db.execute(
                f"SELECT label, vector FROM vectors_{spec.vectors} WHERE label IN ({placeholders(part)})", part
            )
            originals.update((label, self._build_matrix([vector], spec)[0]) for label, vector in rows)
        return originals

    def read_tombstones(self) -> Labels:
        """Return the labels of deleted and replaced items whose tombstones are still stored."""
        with self.reading() as db:
            return np.array([row[0] for row in db.execute("SELECT label FROM tombstones")], np.int64)

    def measure_bytes(self) -> int:
        """Return the size in bytes of the file and of SQLite's write-ahead log."""
        sides = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(side.stat().st_size for side in sides if side.exists())

    def _build_matrix(self, blobs: list[bytes], spec: IndexSpec) -> NDArray[Any]:
        """Return stored vectors as a float32 array `(n, d)`, or stored byte codes as a uint8 array `(n, b)`.

        Raises:
            UnavailableError: if their sizes differ, or are not the size in the settings.
        """
        dtype = np.dtype(spec.stored_dtype)
        if not all(isinstance(blob, bytes) for blob in blobs):
            raise UnavailableError("the record holds vectors that are not bytes", code="corrupt_index")
        width = spec.width if spec.has_originals else len(blobs[0]) if blobs else 0
        if any(len(blob) != width * dtype.itemsize for blob in blobs):
            raise UnavailableError("the record holds vectors of another size", code="corrupt_index")

        flat = np.frombuffer(b"".join(blobs), dtype)
        return flat.reshape(len(blobs), width).astype(np.float32 if spec.has_originals else np.uint8)


def _delete_items(db: sqlite3.Connection, labels: Labels, sequence: int) -> None:
    """Delete the items with these labels, and store the labels as tombstones of write number `sequence`.

    The filter fields stay until the next reindexing: no filter finds rows that are marked as dead, and a running search
    must not lose an item that is being replaced.
    """
    rows = [(label,) for label in labels.tolist()]
    db.executemany("DELETE FROM items WHERE label = ?", rows)
    db.executemany(f"DELETE FROM vectors_{read_spec(db).vectors} WHERE label = ?", rows)
    db.executemany("INSERT INTO tombstones VALUES (?, ?)", [(label, sequence) for (label,) in rows])


def _find_labels(db: sqlite3.Connection, ids: Sequence[str]) -> Labels:
    labels: list[int] = []
    for part in slice_parameters(list(ids)):
        rows = db.execute(f"SELECT label FROM items WHERE id IN ({placeholders(part)})", part)
        labels += [label for (label,) in rows]
    return np.array(labels, np.int64)


def _find_items(db: sqlite3.Connection, ids: Sequence[str]) -> dict[str, tuple[int, bytes | None]]:
    items: dict[str, tuple[int, bytes | None]] = {}
    for part in slice_parameters(list(ids)):
        rows = db.execute(f"SELECT id, label, metadata FROM items WHERE id IN ({placeholders(part)})", part)
        items.update((item, (label, metadata)) for item, label, metadata in rows)
    return items
