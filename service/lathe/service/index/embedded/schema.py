"""Tables of a record, with the settings stored in them."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lathe.service.errors import UnavailableError
from lathe.service.index.fields import Value
from lathe.service.index.filters import Condition
from lathe.service.index.spec import IndexSpec, parse_spec

SCHEMA_VERSION = 1
"""Version of the tables; records of newer versions are rejected."""
APPLICATION_ID = 0x4C617468
"""SQLite application id of a record, the ASCII codes of "Lath"."""
PAGE_BYTES = 8192
"""Page size of SQLite: five vectors of 384 floats; with the default of 4096 a quarter of the file stays empty."""
BUSY_SECONDS = 10
"""Number of seconds to wait for a lock of SQLite."""
SIDES = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
"""SQL operator of each range test."""
STEPS_BETWEEN = 10_000
"""Number of steps of SQLite's virtual machine between calls of a progress handler."""
NOT_DAMAGE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN")
"""Names of errors during a check that do not mean that the file is damaged."""
MAX_PARAMETERS = 8192
"""Maximum number of parameters of one statement; SQLite allows 32,766."""

TABLES = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (label INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata BLOB);
CREATE TABLE vectors_1 (label INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE fields (name TEXT, value, label INTEGER, PRIMARY KEY (name, value, label)) WITHOUT ROWID;
CREATE TABLE tombstones (label INTEGER PRIMARY KEY, sequence INTEGER NOT NULL);
CREATE TABLE chains (chain TEXT PRIMARY KEY, manifest BLOB NOT NULL, tensors BLOB NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
"""SQL that creates the tables of a new record."""


def read_meta(db: sqlite3.Connection, key: str) -> Any:
    """Return a value of the meta table; None if the key is missing."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if found is None else json.loads(found[0])


def write_meta_values(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Write values to the meta table; None is stored as a value that reads like a missing key."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])


def read_spec(db: sqlite3.Connection) -> IndexSpec:
    """Read and validate the settings.

    Raises:
        UnavailableError: if no index can have these settings.
    """
    try:
        return parse_spec(read_meta(db, "spec"))
    except ValueError as error:
        raise UnavailableError(str(error), code="corrupt_index") from error


def write_spec(db: sqlite3.Connection, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> None:
    """Write the settings, and replace all stored chains by the given one."""
    write_meta_values(db, {"spec": spec.to_json()})
    db.execute("DELETE FROM chains")
    if artifact is not None:
        db.execute("INSERT INTO chains VALUES (?, ?, ?)", (spec.chain, *artifact))


def build_where(condition: Condition) -> tuple[str, tuple[Value, ...]]:
    """Translate a condition into an SQL clause on the table `fields`, and its parameters.

    A range compares a text with texts only, and a number with numbers only.
    """
    if condition.test == "exists":
        return "name = ?", (condition.field,)
    if condition.test == "in":
        return f"name = ? AND value IN ({placeholders(condition.values)})", (condition.field, *condition.values)
    kinds = "'text'" if isinstance(condition.values[0], str) else "'integer', 'real'"
    return f"name = ? AND value {SIDES[condition.test]} ? AND typeof(value) IN ({kinds})", (
        condition.field,
        *condition.values,
    )


def _connect_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def require_readable(path: Path) -> None:
    """Raise `UnavailableError` unless the file is a record that this version of Lathe can read.

    Newer schemas and files with triggers or views are rejected. Symbolic links are too, because SQLite opens its files
    by path and follows links. The folder belongs to the server, so no other user can put a link there afterwards.
    """
    for found in (path.parent, *(path.with_name(path.name + side) for side in ("", "-wal", "-shm", "-journal"))):
        if found.is_symlink():
            raise UnavailableError(
                f"{found.name} is a link, and links in a state folder are not followed: put what it points to there",
                code="corrupt_index",
            )
    try:
        connection = _connect_read_only(path)
        try:
            application, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            program = connection.execute("SELECT name FROM sqlite_schema WHERE type IN ('trigger', 'view')").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UnavailableError(f"{path.name} cannot be read: {error}", code="corrupt_index") from error
    if application != APPLICATION_ID:
        raise UnavailableError(f"{path.name} is not the record of an index", code="corrupt_index")
    if program is not None:  # SQLite would run it on a read or write
        raise UnavailableError(f"{path.name} holds a trigger or view, which no record has", code="corrupt_index")
    if version > SCHEMA_VERSION:
        raise UnavailableError(
            f"{path.name} is of schema {version}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe to use it",
            code="newer_schema",
        )


def find_damage(path: Path, stop: Callable[[], bool] = lambda: False) -> str | None:
    """Check a record with SQLite's `quick_check`, which reads the whole file; the record can be used meanwhile.

    Args:
        path: path of the record.
        stop: called every few milliseconds; the check is given up once it returns true.

    Returns:
        The first problem found; None if there is none, or the check was stopped or could not be done.
    """
    try:
        connection = _connect_read_only(path)
        try:
            connection.set_progress_handler(lambda: int(stop()), STEPS_BETWEEN)
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        return None if stop() or name.startswith(NOT_DAMAGE) else str(error)
    return None if found == "ok" else " ".join(found.split())


def slice_parameters(values: list[Any]) -> Iterator[list[Any]]:
    """Yield the values in slices that fit into one statement."""
    for start in range(0, len(values), MAX_PARAMETERS):
        yield values[start : start + MAX_PARAMETERS]


def placeholders(values: Sequence[Any]) -> str:
    """Return one SQL placeholder (`?`) per value, separated by commas, for an `IN` clause."""
    return ",".join("?" * len(values))
