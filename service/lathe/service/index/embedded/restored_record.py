"""Checks of the record in a backup, which may come from somebody else, before it becomes an index.

What a record of ours can never hold is refused by name, as it would fail every later request. All rows are read.
"""

import sqlite3
from collections.abc import Iterator

import numpy as np

from lathe.service.errors import BadValueError, UnavailableError
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.fields import list_entries
from lathe.service.index.items import METADATA_BYTES, parse_metadata, require_ids
from lathe.service.index.reducer import Reducer
from lathe.service.index.spec import IndexSpec

CHECKED_ROWS = 4096
"""Number of rows that are read at once."""

ODD_FIELDS = """SELECT 1 FROM fields WHERE typeof(name) != 'text'
 OR NOT (typeof(value) IN ('text', 'integer', 'real') OR value IN (x'', x'00', x'01', x'02')) LIMIT 1"""
"""SQL that finds an entry for filters that no metadata can have."""

ODD_TOMBSTONES = "SELECT 1 FROM tombstones WHERE label NOT BETWEEN 1 AND ? OR sequence NOT BETWEEN 1 AND ? LIMIT 1"
"""SQL that finds a tombstone of a label that was never given, or of a write that never was."""

BURIED_ITEMS = "SELECT 1 FROM tombstones JOIN items USING (label) LIMIT 1"
"""SQL that finds a tombstone of an item that exists."""


def require_sound_record(record: IndexRecord) -> None:
    """Raise an error with the first problem unless a record holds what an index can serve.

    Its tables were compared when it was opened. Here are checked: SQLite's own integrity check, the settings and the
    chain, counters, tombstones, entries for filters, and each item's id, metadata and vector.

    Raises:
        UnavailableError: if the record is damaged.
        ArtifactError: if its chain is.
    """
    try:
        problem = str(record.writer.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if problem == "ok":
            problem = _find_problem(record) or "ok"
    except sqlite3.Error as error:  # text that is not UTF-8, for instance
        problem = str(error)
    if problem != "ok":
        raise UnavailableError(f"the record is damaged: {problem}", code="corrupt_index")


def _find_problem(record: IndexRecord) -> str | None:
    """Return what an index could not serve, None if there is nothing."""
    spec, (sequence, last_label) = record.spec, record.read_counters()
    vector_bytes = _measure_vectors(record, spec)
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
            (ODD_FIELDS, (), "an entry for filters that no metadata has"),
            (ODD_TOMBSTONES, (last_label, sequence), "a tombstone of no label or write"),
            (BURIED_ITEMS, (), "a tombstone of an item that exists"),
        ):
            if db.execute(query, values).fetchone() is not None:
                return f"it has {what}"
        for label, item, metadata, vector in _read_items(db, spec):
            if problem := _find_item_problem(item, metadata) or _find_vector_problem(vector, spec, vector_bytes):
                return f"the item {item!r:.80} {problem}"
            if not 1 <= label <= last_label:
                return f"the item {item!r:.80} has the label {label}; the last one given is {last_label}"
    return None


def _measure_vectors(record: IndexRecord, spec: IndexSpec) -> int:
    """Return the number of bytes of each stored vector or code, after loading the chain.

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


def _read_items(db: sqlite3.Connection, spec: IndexSpec) -> Iterator[tuple[int, object, object, object]]:
    """Yield label, id, metadata and vector of all items.

    The vector is None if it is missing.
    """
    cursor = db.execute(
        f"SELECT label, id, metadata, vector FROM items LEFT JOIN vectors_{spec.vectors} USING (label) ORDER BY label"
    )
    while found := cursor.fetchmany(CHECKED_ROWS):
        yield from found


def _find_item_problem(item: object, metadata: object) -> str | None:
    try:
        if not isinstance(item, str):
            return "has an id that is no text"
        require_ids([item])
        if metadata is None:
            return None
        if not isinstance(metadata, bytes) or len(metadata) > METADATA_BYTES:
            return "has metadata that are no bytes, or too many"
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
