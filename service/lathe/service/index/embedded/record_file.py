"""SQLite file of a record: its tables, the settings stored in them, and its connections."""

import json
import queue
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from lathe.service.errors import TooLargeError, UnavailableError
from lathe.service.index.spec import IndexSpec, parse_spec
from lathe.transforms.files import parse_json

SCHEMA_VERSION = 1
"""Version of the tables; records of newer versions are rejected."""
APPLICATION_ID = 0x4C617468
"""SQLite application id of a record, the ASCII codes of "Lath"."""
PAGE_BYTES = 8192
"""Page size of SQLite: five vectors of 384 floats; with the default of 4096 a quarter of the file stays empty."""
BUSY_SECONDS = 10
"""Number of seconds to wait for a lock of SQLite."""
STEPS_BETWEEN = 10_000
"""Number of steps of SQLite's virtual machine between calls of a progress handler."""
MAX_PARAMETERS = 8192
"""Maximum number of parameters of one statement; SQLite allows 32,766."""

MAX_COUNTER = 2**53
"""Maximum number of writes, and of labels: integers that SQLite and every reader of JSON hold exactly."""
MAX_CHAIN_BYTES = 2**29
"""Maximum size of the tensors of an index's chain, in bytes, for 11,000 dimensions reduced to as many."""
MAX_ENTRIES = 100
"""Maximum number of tables and indexes that are read of a file's schema. A record has less than 20."""

VECTORS_TABLE = "CREATE TABLE {name} (label INTEGER PRIMARY KEY, vector BLOB NOT NULL)"
"""SQL that creates a table of original vectors, `vectors_<n>`."""

TABLES = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (label INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata BLOB);
{VECTORS_TABLE.format(name="vectors_1")};
CREATE TABLE fields (name TEXT, value, label INTEGER, PRIMARY KEY (name, value, label)) WITHOUT ROWID;
CREATE TABLE tombstones (label INTEGER PRIMARY KEY, sequence INTEGER NOT NULL);
CREATE TABLE chains (chain TEXT PRIMARY KEY, manifest BLOB NOT NULL, tensors BLOB NOT NULL);
CREATE TABLE calibrations (
    space_id TEXT PRIMARY KEY, content BLOB NOT NULL, model BLOB NOT NULL, vectors BLOB NOT NULL
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
"""SQL that creates the tables of a new record."""


class RecordFile:
    """SQLite file of a record, for any number of concurrent readers and one writer at a time.

    Raises:
        UnavailableError: if the file is not a record that can be read.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self.writing = threading.Lock()
        self.closed = False
        _require_readable(path)
        self.writer = self.connect()
        status = path.stat()
        self.identity = status.st_dev, status.st_ino
        if not read_only:
            self.writer.execute("PRAGMA journal_mode = WAL")  # a restored copy is in no mode yet

    def connect(self) -> sqlite3.Connection:
        """Open a new SQLite connection to the record that any thread may use and that syncs each commit to disk."""
        mode = "ro" if self.read_only else "rw"
        # `isolation_level=None`, or Python's module would begin transactions itself. A pooled connection is used by
        # several threads, one after another.
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def close(self) -> None:
        """Close all connections. The last one moves SQLite's write-ahead log into the file."""
        self.closed = True
        while not self.idle.empty():
            self.idle.get().close()
        self.writer.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a SQLite connection for reading, which sees all committed writes. It is pooled for later blocks.

        Raises:
            sqlite3.ProgrammingError: after `close`.
        """
        if self.closed:
            raise sqlite3.ProgrammingError("the record is closed")
        try:
            connection = self.idle.get_nowait()
        except queue.Empty:
            connection = self.connect()

        try:
            yield connection
        finally:
            if self.closed:  # since the block began
                connection.close()
            else:
                self.idle.put(connection)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Yield a SQLite connection in a read transaction, so that all statements of the block see the same state."""
        with self.reading() as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("COMMIT")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the writing connection in a transaction, alone among threads, and commit to disk after the block.

        A block that raises is rolled back.

        Raises:
            UnavailableError: if the file was deleted or replaced since it was opened: what is written to the open file
                would be lost.
        """
        with self.writing:
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                yield self.writer
                self._require_in_place()
                self.writer.execute("COMMIT")
            except BaseException:
                if self.writer.in_transaction:  # SQLite itself rolls back when the disk is full
                    self.writer.execute("ROLLBACK")
                raise

    def _require_in_place(self) -> None:
        """Raise `UnavailableError` if the record's file was deleted or replaced since it was opened."""
        try:
            status = self.path.stat()
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self.identity:
            raise UnavailableError(
                f"the record of the index {self.path.parent.name} was deleted or replaced while the server has it "
                "open: nothing is written to it any more; restore it, then start the server again",
                code="state_unwritable",
            )


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a SQLite connection to a record that can only read, and return it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def _require_readable(path: Path) -> None:
    """Raise `UnavailableError` unless the file is an index record that this version of Lathe can read safely.

    Newer schemas are rejected, and files that have other tables than `TABLES`: SQLite would run a trigger, a view, a
    check or a generated column of somebody else on a read or write. Symbolic links are too, because SQLite opens its
    files by path and follows links. The folder belongs to the server, so no other user can put a link there afterwards.
    """
    for file in (path.parent, *(path.with_name(path.name + side) for side in ("", "-wal", "-shm", "-journal"))):
        if file.is_symlink():
            raise UnavailableError(
                f"{file.name} is a link, and links in a state folder are not followed: put what it points to there",
                code="corrupt_index",
            )
    try:
        connection = connect_read_only(path)
        try:
            application, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            query = f"SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT {MAX_ENTRIES}"
            entries = {tuple(row) for row in connection.execute(query)}
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UnavailableError(f"{path.name} cannot be read: {error}", code="corrupt_index") from error

    if application != APPLICATION_ID:
        raise UnavailableError(f"{path.name} is not the record of an index", code="corrupt_index")
    if version > SCHEMA_VERSION:
        raise UnavailableError(
            f"{path.name} is of schema {version}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe to use it",
            code="newer_schema",
        )
    if version < 1:
        raise UnavailableError(f"{path.name} is of schema {version}; schemas begin with 1", code="corrupt_index")
    if (problem := _find_schema_problem(entries)) is not None:
        raise UnavailableError(f"{path.name} {problem}", code="corrupt_index")


def _find_schema_problem(entries: set[tuple[str, str, str, str | None]]) -> str | None:
    """Return how the tables in `sqlite_schema` differ from a record's tables, in words, or None if they do not.

    A record has one table of vectors with any number, or two while an index moves to another encoder.
    """
    kinds = {kind for kind, *_ in entries}
    if kinds & {"trigger", "view"}:
        return "holds a trigger or view, which no record has"
    expected = _read_expected_entries()
    vectors = {entry for entry in entries if re.fullmatch(r"vectors_[1-9][0-9]{0,9}", entry[1])}
    if not 1 <= len(vectors) <= 2:
        return f"has {len(vectors)} tables of vectors; a record has 1 or 2"

    expected |= {("table", entry[1], entry[1], VECTORS_TABLE.format(name=entry[1])) for entry in vectors}
    for _, name, _, _ in sorted(entries - expected, key=str):
        return f"has another table or index {name[:80]!r} than a record"
    for _, name, _, _ in sorted(expected - entries, key=str):
        return f"lacks the table {name!r}"
    return None


@cache
def _read_expected_entries() -> frozenset[tuple[str, str, str, str | None]]:
    """Return the rows (type, name, table, SQL) of `sqlite_schema` that every record has, without tables of vectors."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        entries = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    return frozenset(tuple(entry) for entry in entries if entry[1] != "vectors_1")


def read_meta(db: sqlite3.Connection, key: str) -> Any:
    """Return the JSON value of a key in the record's meta table, or None if the key is missing.

    Raises:
        UnavailableError: if the value is damaged.
    """
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    try:
        return None if row is None else parse_json(row[0])
    except ValueError as error:
        raise UnavailableError(f"the record's {key[:80]} cannot be read: {error}", code="corrupt_index") from error


def read_counter(db: sqlite3.Connection, key: str) -> int:
    """Return the counter `sequence` (number of the last write) or `last_label` of the meta table.

    It must be from 0 to `MAX_COUNTER`.

    Raises:
        UnavailableError: if the value is not such a number.
    """
    counter = read_meta(db, key)
    if type(counter) is not int or not 0 <= counter <= MAX_COUNTER:
        raise UnavailableError(
            f"the record's {key} is {counter!r:.80}; it must be a number from 0 to {MAX_COUNTER}", code="corrupt_index"
        )
    return counter


def write_meta_values(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Write values to the meta table as JSON, replacing values of the same keys. A null reads like a missing key."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])


def read_spec(db: sqlite3.Connection) -> IndexSpec:
    """Read the index's settings from the record, validate them, and return them.

    Raises:
        UnavailableError: if no index can have these settings.
    """
    try:
        return parse_spec(read_meta(db, "spec") or {})
    except ValueError as error:
        raise UnavailableError(str(error), code="corrupt_index") from error


def write_spec(db: sqlite3.Connection, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> None:
    """Write an index's settings, and replace the stored chain of transforms.

    Args:
        db: connection in a transaction.
        spec: the settings.
        artifact: manifest and tensors of the chain; None for raw vectors.

    Raises:
        TooLargeError: if the chain has more than `MAX_CHAIN_BYTES`; no backup could be restored.
    """
    write_meta_values(db, {"spec": spec.to_json()})
    db.execute("DELETE FROM chains")
    if artifact is not None:
        if len(artifact[1]) > MAX_CHAIN_BYTES:
            raise TooLargeError(f"the chain of an index may have at most {MAX_CHAIN_BYTES:,} bytes", param="chain")
        db.execute("INSERT INTO chains VALUES (?, ?, ?)", (spec.chain, *artifact))


def slice_parameters(values: list[Any]) -> Iterator[list[Any]]:
    """Yield the values in lists of at most 8,192, so that each list fits into one SQL statement."""
    for start in range(0, len(values), MAX_PARAMETERS):
        yield values[start : start + MAX_PARAMETERS]


def placeholders(values: Sequence[Any]) -> str:
    """Return one SQL placeholder (`?`) per value, separated by commas, for an `IN` clause."""
    return ",".join("?" * len(values))
