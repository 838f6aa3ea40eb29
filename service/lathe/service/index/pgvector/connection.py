"""Connection to a database with pgvector, and its errors as errors of the service, which quote no password."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from lathe.service.errors import (
    BadValueError,
    ConflictError,
    ForbiddenError,
    NotSupportedError,
    ServiceError,
    UnavailableError,
)

MIN_VERSION = (0, 7)
"""First version of pgvector with `halfvec`, indexes over `bit`, `binary_quantize` and `subvector`."""
Connection = psycopg.Connection[Any]
"""Connection in autocommit mode; a transaction is a block of `connection.transaction()`."""
DEFAULTS = {"connect_timeout": 10, "application_name": "lathe"}
"""Settings of a connection that its connection string may replace."""
CONFLICTS = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
"""Errors by which PostgreSQL ends a transaction that would succeed if it were alone."""
MAX_TRIES = 8
"""Number of times that such a transaction is tried."""
FIRST_PAUSE = 0.2
"""Maximum seconds before the second try; each further pause may be twice as long."""
Result = TypeVar("Result")


@contextmanager
def open_database(url: str | None) -> Iterator[Connection]:
    """Yield a connection to a PostgreSQL database with pgvector, and convert errors of PostgreSQL in the block.

    They become a `ServiceError`, which quotes no password.

    Args:
        url: connection string of libpq, as URL or as `key=value` pairs; None for the environment (`PGHOST`,
            `PGDATABASE`, `PGUSER`, `PGPASSWORD`, …). What the string leaves out comes from the environment too.

    Raises:
        BadValueError: if the connection string cannot be parsed, or a row cannot be stored.
        NotSupportedError: if the database lacks the extension, or its version is too old.
        ServiceError: if the database cannot be reached, read or written.
    """
    try:
        # Names, keys and texts are exchanged in UTF-8, whatever the encoding of the database.
        settings: dict[str, Any] = DEFAULTS | conninfo_to_dict(url or "") | {"client_encoding": "utf8"}
    except psycopg.ProgrammingError:  # its message can quote the password
        raise BadValueError(
            "the connection string cannot be parsed; it is postgresql://USER@HOST:PORT/DATABASE or host=… dbname=…",
            param="postgres_url",
        ) from None
    password = str(settings.get("password") or os.environ.get("PGPASSWORD") or "")
    try:
        with psycopg.connect(**settings, autocommit=True) as connection:
            _use_extension(connection)
            connection.execute("SET extra_float_digits = 3")  # keys are exchanged as text
            yield connection
    except psycopg.Error as error:
        converted = _convert_postgres_error(error)
        message = converted.message.replace(password, "***") if password else converted.message
        raise type(converted)(message, code=converted.code) from None


def retry_conflicts(action: Callable[[], Result], on_wait: Callable[[str], object]) -> Result:
    """Call `action`, again after a pause if another session is in its way, and return its result.

    `action` must leave nothing behind if it fails.

    Args:
        action: statement or transaction.
        on_wait: called with a message before each pause.
    """
    for tries in range(1, MAX_TRIES):
        try:
            return action()
        except CONFLICTS as error:
            on_wait(f"{error.diag.message_primary}: try {tries + 1} of {MAX_TRIES}")
            time.sleep(random.uniform(0.25, 0.5) * FIRST_PAUSE * 2**tries)  # noqa: S311
    return action()


def disable_triggers(connection: Connection) -> None:
    """Prevent the triggers of applications from firing in this session.

    Raises:
        ForbiddenError: if the role may not do so.
    """
    try:
        connection.execute("SET session_replication_role = replica")
    except errors.InsufficientPrivilege:
        raise ForbiddenError(
            "--disable-triggers takes a role that may set session_replication_role: a superuser, or, since PostgreSQL "
            "15, one that was granted it (GRANT SET ON PARAMETER session_replication_role TO …)"
        ) from None


def _convert_postgres_error(error: psycopg.Error) -> ServiceError:
    """Return the service's error for an error of PostgreSQL. Its message may quote the password."""
    where = f" ({error.diag.context})" if error.diag.context else ""
    message = error.diag.message_primary or str(error).partition("\n")[0]
    match error:
        case errors.DiskFull():
            return UnavailableError(
                "the disk of the database is full; batches written before stay, and the same command continues",
                code="disk_full",
            )
        case errors.ReadOnlySqlTransaction():
            return ConflictError("the database is read-only: connect to the primary server, with write access")
        case errors.InsufficientPrivilege():
            return ForbiddenError(f"PostgreSQL refuses: {message}")
        case errors.CharacterNotInRepertoire() | errors.UntranslatableCharacter():
            return BadValueError(f"the database holds a text that is not in UTF-8, or cannot be: {message}")
        case psycopg.DataError():
            return BadValueError(f"PostgreSQL cannot store a row: {message}{where}")
        case _ if isinstance(error, (*CONFLICTS, errors.QueryCanceled)):
            return ConflictError(
                f"PostgreSQL ended a statement ({message}): another session holds the table, or a limit is too low; "
                "batches written before stay, and the same command continues"
            )
        case psycopg.OperationalError():
            return UnavailableError(f"PostgreSQL cannot be reached, or ended the connection: {message}")
        case _:
            return UnavailableError(f"PostgreSQL: {message}{where}")


def _use_extension(connection: Connection) -> None:
    """Check pgvector's version, and add the extension's schema to the session's search path, for its types.

    Raises:
        NotSupportedError: if the extension is missing or too old.
    """
    extension = connection.execute(
        "SELECT extversion, set_config('search_path', concat_ws(', ', current_setting('search_path'), "
        "extnamespace::regnamespace::text), false) FROM pg_extension WHERE extname = 'vector'"
    ).fetchone()
    if extension is None:
        raise NotSupportedError(
            "the database has no extension vector (pgvector): install it on the server, then run CREATE EXTENSION "
            "vector in this database as a user who may"
        )
    version = extension[0]
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        least = ".".join(map(str, MIN_VERSION))
        raise NotSupportedError(
            f"pgvector is of version {version}, and this takes {least}: ALTER EXTENSION vector UPDATE"
        )
