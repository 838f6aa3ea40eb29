"""The tables of a record, and its settings in them."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.errors import UnavailableError
from service.index.fields import Value
from service.index.filters import Condition
from service.index.spec import IndexSpec, spec_of

SCHEMA_VERSION = 1
APPLICATION_ID = 0x4C617468
PAGE_BYTES = 8192
"""Five vectors of 384 floats to a page; with SQLite's 4096 a quarter of the file stays empty."""
BUSY_SECONDS = 10
SIDES = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
STEPS_BETWEEN = 10_000
"""Of SQLite's virtual machine, from one question whether to go on to the next."""
NOT_DAMAGE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN")
"""Errors of a check that say nothing of the file."""
PARAMETERS_MOST = 8192
"""Of one statement; SQLite takes 32,766."""

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


def read_meta(db: sqlite3.Connection, key: str) -> Any:
    """A value of the meta table; None if there is none."""
    found = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if found is None else json.loads(found[0])


def put_meta(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Write values of the meta table; None removes one."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])


def read_spec(db: sqlite3.Connection) -> IndexSpec:
    """The settings.

    Raises:
        UnavailableError: if no index can have them.
    """
    try:
        return spec_of(read_meta(db, "spec"))
    except ValueError as error:
        raise UnavailableError(str(error), code="corrupt_index") from error


def put_spec(db: sqlite3.Connection, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> None:
    """Write the settings and the one chain they need."""
    put_meta(db, {"spec": spec.json()})
    db.execute("DELETE FROM chains")
    if artifact is not None:
        db.execute("INSERT INTO chains VALUES (?, ?, ?)", (spec.chain, *artifact))


def where(condition: Condition) -> tuple[str, tuple[Value, ...]]:
    """A condition on the table of fields, and what its question marks stand for."""
    if condition.test == "exists":
        return "name = ?", (condition.field,)
    if condition.test == "in":
        return f"name = ? AND value IN ({places(condition.values)})", (condition.field, *condition.values)
    kinds = "'text'" if isinstance(condition.values[0], str) else "'integer', 'real'"
    return f"name = ? AND value {SIDES[condition.test]} ? AND typeof(value) IN ({kinds})", (
        condition.field,
        *condition.values,
    )


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a record that is there, for reading alone."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def require_readable(path: Path) -> None:
    """Raise `UnavailableError` unless the file is a record this Lathe can read.

    SQLite opens its files by their paths, and follows links: there must be none. The folder is the server's own, so
    that nobody else puts one there afterwards.
    """
    for found in (path.parent, *(path.with_name(path.name + side) for side in ("", "-wal", "-shm", "-journal"))):
        if found.is_symlink():
            raise UnavailableError(
                f"{found.name} is a link, and links in a state folder are not followed: put what it points to there",
                code="corrupt_index",
            )
    try:
        connection = connect_read_only(path)
        try:
            application, version = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            foreign = connection.execute("SELECT name FROM sqlite_schema WHERE type IN ('trigger', 'view')").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UnavailableError(f"{path.name} cannot be read: {error}", code="corrupt_index") from error
    if application != APPLICATION_ID:
        raise UnavailableError(f"{path.name} is not the record of an index", code="corrupt_index")
    if foreign is not None:  # they would do with a write, or a read, whatever somebody else had in mind
        raise UnavailableError(f"{path.name} holds a trigger or view, and no record does", code="corrupt_index")
    if version > SCHEMA_VERSION:
        raise UnavailableError(
            f"{path.name} is of schema {version}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe to use it",
            code="newer_schema",
        )


def find_damage(path: Path, stop: Callable[[], bool] = lambda: False) -> str | None:
    """Check the structure of a record by SQLite's `quick_check`, which reads the whole file; others go on using it.

    Args:
        path: of the record.
        stop: asked every few milliseconds whether to give up; nothing is known then.

    Returns:
        The first thing wrong; None if nothing is, or the check was stopped.
    """
    try:
        connection = connect_read_only(path)
        try:
            connection.set_progress_handler(lambda: int(stop()), STEPS_BETWEEN)
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error as error:
        said = getattr(error, "sqlite_errorname", "")
        return None if stop() or said.startswith(NOT_DAMAGE) else str(error)
    return None if found == "ok" else " ".join(found.split())


def parts(values: list[Any]) -> Iterator[list[Any]]:
    """Values in parts that one statement takes."""
    for start in range(0, len(values), PARAMETERS_MOST):
        yield values[start : start + PARAMETERS_MOST]


def places(values: Sequence[Any]) -> str:
    """As many question marks."""
    return ",".join("?" * len(values))
