"""Backups of an index: copies of the record alone, because everything else is built from it.

<backup>/
├── record.db     the record at one moment, compacted; over HTTP, this file is the backup
└── backup.json   {schema, index, count, sequence, spec, made_at, sha256}

A backup may come from somebody else. When it is restored, all rows are read, and what no index can have written is
refused by name, because it would fail every later request.
"""

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lathe.service.chains.names import is_name, require_name
from lathe.service.errors import BadValueError, ConflictError, UnavailableError, UnknownNameError
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.record_file import MAX_CHAIN_BYTES
from lathe.service.index.items import (
    ID_CHARACTERS,
    INDEXED_CHARACTERS,
    MAX_NAME,
    METADATA_BYTES,
    list_entries,
    parse_metadata,
    require_ids,
)
from lathe.service.index.reducer import Reducer
from lathe.service.index.spec import MAX_TEXT, MAX_WIDTH, IndexSpec
from lathe.transforms.artifact.folder import MAX_MANIFEST_BYTES as MAX_CHAIN_MANIFEST_BYTES
from lathe.transforms.beneath import open_beneath, read_beneath
from lathe.transforms.files import create_file, make_folder, make_root, parse_json_object, sync_folder, write_synced

MANIFEST = "backup.json"
"""Name of the manifest file."""
SCHEMA_VERSION = 1
"""Version of the backup format; newer ones are rejected."""
MAX_MANIFEST_BYTES = 1_000_000
"""Maximum bytes of the manifest, which has some hundred."""
COPIED_BYTES = 1 << 20
"""Buffer size for copying files, in bytes."""


def back_up_index(folder: Path, to: Path) -> dict[str, Any]:
    """Copy an index's record to a new backup folder `to`, and return the manifest: counts, settings and SHA-256.

    `folder` is the folder of the index, which may be written meanwhile. The copy is of one moment. The manifest is
    written to the folder, too.

    Raises:
        UnknownNameError: if the index does not exist.
        ConflictError: if `to` exists.
        OSError, sqlite3.Error: if the backup cannot be written; nothing is left then.
    """
    require_index(folder)
    if to.exists():
        raise ConflictError(f"{to} exists; a backup is never overwritten")

    to = to.absolute()
    make_root(to.parent)
    staging = to.with_name(f".{to.name}.{secrets.token_hex(6)}")
    try:
        make_folder(staging, private=True)
        manifest = _copy_record(folder, staging / "record.db")
        write_synced(staging / MANIFEST, json.dumps(manifest, indent=1).encode())
        staging.rename(to)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_folder(to.parent)
    return manifest


def open_copy(folder: Path) -> BinaryIO:
    """Copy the record of the index in `folder`, and return the copy as a file that is open for reading.

    The copy is the index's record (its SQLite file) at one moment, and the index may be written meanwhile. The copy's
    file has no name any more, so that its space is free once it is closed, or the process killed.

    Raises:
        UnknownNameError: if the index does not exist.
        OSError, sqlite3.Error: if the copy cannot be written; nothing is left then.
    """
    require_index(folder)
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}")
    try:
        make_folder(staging, private=True)
        _copy_record(folder, staging / "record.db")
        return (staging / "record.db").open("rb")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy_record(folder: Path, copy: Path) -> dict[str, Any]:
    """Copy an index's record, compacted, to the new file `copy`, sync it to disk, and return a backup's manifest."""
    create_file(copy).close()  # SQLite fills an empty file
    source = IndexRecord(folder / "record.db", read_only=True)
    try:
        source.writer.execute("VACUUM INTO ?", (str(copy),))  # one read transaction: consistent
    finally:
        source.close()

    with copy.open("r+b") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()

    with closing(IndexRecord(copy, read_only=True)) as copied:
        return {
            "schema": SCHEMA_VERSION,
            "index": folder.name,
            "count": copied.count_items()["count"],
            "sequence": copied.read_meta("sequence"),
            "spec": copied.spec.to_json(),
            "made_at": datetime.now(UTC).isoformat(),
            "sha256": digest,
        }


def restore_index(source: Path, root: Path, name: str | None = None) -> dict[str, Any]:
    """Check a backup, create an index from it, and return the manifest with the index's name and number of items.

    The SHA-256, the tables and all rows are checked. A running server opens the index on demand.

    Args:
        source: folder of the backup.
        root: folder of all indexes.
        name: name of the new index; None for the original name.

    Raises:
        BadValueError: if no index can have that name.
        UnavailableError: if the backup is damaged or of a newer schema.
        ArtifactError: if the chain in its record is damaged.
        ConflictError: if an index of that name exists.
    """
    manifest = _read_backup_manifest(source)
    with closing(Restoration(root, name or manifest["index"])) as restoration:
        with open_beneath(source, "record.db") as stored:
            shutil.copyfileobj(stored, restoration.file, COPIED_BYTES)
        restoration.file.seek(0)
        if hashlib.file_digest(restoration.file, "sha256").hexdigest() != manifest["sha256"]:
            raise UnavailableError(f"the record of {source} was altered: its SHA-256 does not match")
        return manifest | {"index": restoration.name, "count": restoration.finish()}


class Restoration:
    """Creation of an index from a copy of its record, in a hidden folder that is renamed once the record is checked.

    Args:
        root: folder of all indexes.
        name: name of the new index.

    Attributes:
        file: the new index's record, to be written before `finish`.

    Raises:
        BadValueError: if no index can have that name.
        ConflictError: if an index of that name exists.
    """

    def __init__(self, root: Path, name: str) -> None:
        require_name(name, "an index")
        self.root, self.name = root, name
        self._require_free()
        self.staging = root / f".{name}.{secrets.token_hex(6)}"
        make_root(root)
        make_folder(self.staging)
        self.file = create_file(self.staging / "record.db")

    def finish(self) -> int:
        """Check the record that was written, rename the folder to the index's name, and return the number of its items.

        Raises:
            UnavailableError, sqlite3.Error: if the record is damaged, no record, or of a newer schema.
            ArtifactError: if the chain in it is damaged.
            ConflictError: if an index of that name was created meanwhile.
        """
        self.file.close()
        copy = self.staging / "record.db"
        with closing(IndexRecord(copy)) as record:
            _require_sound_record(record)
            record.rebuild_filter_entries()  # filters must find what the metadata say, whatever the backup says
            count: int = record.count_items()["count"]

        with copy.open("r+b") as file:
            os.fsync(file.fileno())
        self._require_free()
        self.staging.rename(self.root / self.name)
        sync_folder(self.root)
        return count

    def close(self) -> None:
        """Delete what was written, unless it has become the index."""
        self.file.close()
        shutil.rmtree(self.staging, ignore_errors=True)

    def _require_free(self) -> None:
        if (self.root / self.name).exists():
            raise ConflictError(f"an index {self.name} exists: restore under another name, or delete it first")


def require_index(folder: Path) -> None:
    """Raise `UnknownNameError` unless the folder is that of an index."""
    if not is_name(folder.name) or not (folder / "record.db").exists():
        raise UnknownNameError(f"there is no index {folder.name!r}", param="name")


def _read_backup_manifest(source: Path) -> dict[str, Any]:
    try:
        manifest = parse_json_object(read_beneath(source, MANIFEST, MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        raise UnavailableError(f"there is no backup at {source}: {MANIFEST} is missing") from None
    except (OSError, ValueError) as error:
        raise UnavailableError(f"the manifest of {source} cannot be read: {error}") from error

    for field, kind in (("schema", int), ("index", str), ("sha256", str)):
        if type(manifest.get(field)) is not kind:
            raise UnavailableError(f"the manifest of {source} cannot be read: {field} must be of type {kind.__name__}")
    schema: int = manifest["schema"]
    if schema < 1:
        raise UnavailableError(f"the manifest of {source} is of schema {schema}; schemas begin with 1")
    if schema > SCHEMA_VERSION:
        raise UnavailableError(
            f"{source} is of schema {schema}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe"
        )
    return manifest


MAX_VALUE_BYTES = {
    ("meta", "key"): 1_000,
    ("meta", "value"): 1_000_000,
    ("items", "id"): 4 * ID_CHARACTERS,
    ("items", "metadata"): METADATA_BYTES,
    ("vectors", "vector"): 4 * MAX_WIDTH,
    ("fields", "name"): 4 * MAX_NAME,
    ("fields", "value"): 8 * INDEXED_CHARACTERS,
    ("chains", "chain"): 4 * MAX_TEXT,
    ("chains", "manifest"): MAX_CHAIN_MANIFEST_BYTES,
    ("chains", "tensors"): MAX_CHAIN_BYTES,
    ("calibrations", "space_id"): 4 * MAX_TEXT,
    ("calibrations", "content"): MAX_CHAIN_BYTES,
    ("calibrations", "model"): MAX_CHAIN_BYTES,
    ("calibrations", "vectors"): MAX_CHAIN_BYTES,
}
"""Maximum size of a value in each column of a record, in bytes."""

ODD_TOMBSTONES = "SELECT 1 FROM tombstones WHERE label NOT BETWEEN 1 AND ? OR sequence NOT BETWEEN 1 AND ? LIMIT 1"
"""SQL that finds a tombstone of a label that was never given, or of a write that never was."""

BURIED_ITEMS = "SELECT 1 FROM tombstones JOIN items USING (label) LIMIT 1"
"""SQL that finds a tombstone of an item that exists."""


def _require_sound_record(record: IndexRecord) -> None:
    """Check every value of an index's record except entries for filters, and raise an error for the first problem.

    The tables were compared when the record was opened. Checked here are the lengths of all values before any is read,
    the file (by SQLite), the settings and the chain, counters, tombstones, and each item's id, metadata and vector.

    Raises:
        UnavailableError: if the record is damaged.
        ArtifactError: if its chain is.
    """
    try:
        problem = _find_long_value(record.writer)
        problem = problem or str(record.writer.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if problem == "ok":
            problem = _find_problem(record) or "ok"
    except sqlite3.Error as error:  # text that is not UTF-8, for instance
        problem = str(error)
    if problem != "ok":
        raise UnavailableError(f"the record is damaged: {problem}", code="corrupt_index")


def _find_long_value(db: sqlite3.Connection) -> str | None:
    """Return a sentence on a value that is longer than its column allows, or None if there is none.

    No such value is read: SQLite stores up to a gigabyte, which compresses to a megabyte.
    """
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for (kind, column), most in MAX_VALUE_BYTES.items():
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)  # a text must be read, since `length` stops at the first NUL
        size = f"CASE typeof({column}) WHEN 'text' THEN length(CAST({column} AS BLOB)) ELSE length({column}) END"
        for table in (name for name in tables if name.partition("_")[0] == kind):
            try:
                found = db.execute(f"SELECT 1 FROM {table} WHERE {size} > ? LIMIT 1", (most,)).fetchone()
            except sqlite3.DataError:
                found = (1,)
            if found:
                return f"a value of {table}.{column} has more than {most:,} bytes"
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(MAX_VALUE_BYTES.values()))
    return None


def _find_problem(record: IndexRecord) -> str | None:
    """Return a sentence on the first thing wrong with the items, vectors, chains or tombstones of a record, or None."""
    spec, (sequence, last_label) = record.spec, record.read_counters()
    vector_bytes = _measure_vector_bytes(record, spec)
    with record.reading() as db:
        counts = {
            name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("items", f"vectors_{spec.vectors}", "chains")
        }
        if counts["items"] != counts[f"vectors_{spec.vectors}"]:
            return f"it has {counts['items']} items and {counts[f'vectors_{spec.vectors}']} vectors"
        if counts["chains"] > 1:
            return f"it has {counts['chains']} chains; an index has at most one"

        for query, values, what in (
            (ODD_TOMBSTONES, (last_label, sequence), "a tombstone of no label or write"),
            (BURIED_ITEMS, (), "a tombstone of an item that exists"),
        ):
            if db.execute(query, values).fetchone() is not None:
                return f"it has {what}"

        # LEFT JOIN, so that an item without a vector is found and named, too.
        query = f"SELECT label, id, metadata, vector FROM items LEFT JOIN vectors_{spec.vectors} USING (label)"
        for label, item, metadata, vector in db.execute(query):
            if problem := _find_item_problem(item, metadata) or _find_vector_problem(vector, spec, vector_bytes):
                return f"the item {item!r:.80} {problem}"
            if not 1 <= label <= last_label:
                return f"the item {item!r:.80} has the label {label}; the last one given is {last_label}"
    return None


def _measure_vector_bytes(record: IndexRecord, spec: IndexSpec) -> int:
    """Load the record's chain of transforms, and return the bytes that each stored vector or byte code must have.

    Raises:
        UnavailableError: if the chain is missing, or there are neither originals nor codes.
        ArtifactError: if the chain cannot be served.
    """
    reducer = Reducer(spec, record.read_artifact(spec.chain))
    if spec.has_originals:
        return spec.width * np.dtype(spec.stored_dtype).itemsize
    if reducer.quantizer is None:
        raise UnavailableError("its chain has no codes, and it stores no originals either", code="corrupt_index")
    return reducer.measure_bytes(spec.dimensions)


def _find_item_problem(item: object, metadata: object) -> str | None:
    try:
        if not isinstance(item, str):
            return "has an id that is not a text"
        require_ids([item])
        if metadata is None:
            return None
        if not isinstance(metadata, bytes):
            return "has metadata that are not bytes"
        list_entries(parse_metadata(item, metadata))
    except BadValueError as error:
        return f"cannot be one of ours: {error.message}"
    except UnavailableError:
        return "has metadata that are no JSON object"
    return None


def _find_vector_problem(vector: object, spec: IndexSpec, vector_bytes: int) -> str | None:
    if not isinstance(vector, bytes) or len(vector) != vector_bytes:
        return f"has no vector of {vector_bytes} bytes"
    if spec.has_originals and not np.isfinite(np.frombuffer(vector, spec.stored_dtype)).all():
        return "has a vector with NaN or inf"
    return None
