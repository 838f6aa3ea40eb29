"""Move of a table to vectors by another encoder, in a second column, while the first one is searched.

A column holds vectors of one space, and a search names its column. So no search compares vectors of two encoders, and
the old column is the way back for as long as it is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from psycopg import errors, sql

from lathe.service.errors import BadValueError
from lathe.service.index.pgvector.column_types import FLOAT_TYPES, MAX_INDEXED, VectorType
from lathe.service.index.pgvector.connection import Connection
from lathe.service.index.pgvector.filling import ColumnFilling, FillCounts, Key, Mask, name_row
from lathe.service.index.pgvector.table import (
    MAX_NAME_BYTES,
    OPERATOR_CLASSES,
    Column,
    PgvectorTable,
    VectorColumn,
    ensure_column,
    find_indexes,
    format_index_statement,
    get_column,
)
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import Metric
from lathe.training.errors import NotFiniteError
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality.metrics import normalized_rows

BATCH_ROWS = 256
"""Number of rows that are encoded at once and written in one transaction: what a kill costs."""
LOCK_SECONDS = 4
"""Seconds that a change of the table waits for other sessions, because all searches wait behind it."""
CHECK_SECONDS = 2
"""Seconds after which PostgreSQL notices that the command was killed, and ends its statement."""
COMPARED_ROWS = 32
"""Number of rows whose vectors must agree with those of the encoder, for a column that names no space."""
MIN_COSINE = 0.99
"""Cosine from which on two vectors of one text are of the same encoder, whatever its dtype and the column's."""
MIN_AGREEING = 0.75
"""Share of these rows that must agree."""
OPERATORS: dict[Metric, str] = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}
"""Operator of a search, by metric."""
TEXT_TYPES = ("text", "varchar", "bpchar", "citext")
"""Types of a column of texts."""
FORGET = "lathe_forget_"
"""Begin of the names of the trigger that empties the new vector of a row whose text changes, and of its function."""


@dataclass(frozen=True)
class OldColumn:
    """Column of the present vectors, and how its index compares them.

    Attributes:
        parameters: of its HNSW index, such as `m=16`; empty for the defaults.
    """

    column: Column
    metric: Metric
    parameters: tuple[str, ...]

    def choose_type(self, dimensions: int) -> VectorType:
        """Return the type of a column of other vectors: that of this one, or `halfvec` if only that can be indexed."""
        whole = self.column.kind == "vector" and dimensions <= MAX_INDEXED["vector"]
        return "vector" if whole else "halfvec"


def find_text_column(table: PgvectorTable, name: str) -> Column:
    """Return a table's column of texts. Raise `UnknownNameError` if there is none of that name, and `BadValueError` if
    it is of another type.
    """
    return get_column(table, name, TEXT_TYPES, "the texts", "text")


def find_old_column(connection: Connection, table: PgvectorTable, name: str) -> OldColumn:
    """Return a table's column of present vectors, with metric and parameters of its index. Without an index, they are
    cosine and the defaults. Raises as `find_text_column`.
    """
    column = get_column(table, name, FLOAT_TYPES, "the present vectors", "column")
    metrics = {f"{column.kind}_{operators}": metric for metric, operators in OPERATOR_CLASSES.items()}
    for index in find_indexes(connection, table, name):
        if index.valid and index.operators in metrics:
            return OldColumn(column, metrics[index.operators], index.parameters if index.method == "hnsw" else ())
    return OldColumn(column, "cosine", ())


def move_table(
    connection: Connection,
    table: PgvectorTable,
    text: Column,
    old: OldColumn,
    into: VectorColumn,
    encode: Callable[[Sequence[str]], Vectors],
    on_ready: Callable[[], object],
    on_progress: Progress,
) -> FillCounts:
    """Encode the texts of all rows into a second column, and build its index, while others search and write. Return the
    numbers of rows.

    A second run continues. Rows that are added, or whose text changes, are found again: a trigger empties their new
    vector. The index is built without a lock.

    Args:
        connection: open connection.
        table: the table.
        text: column of the texts.
        old: column of the present vectors, which stays as it is.
        into: column of the new vectors, created if it is missing.
        encode: maps texts to vectors `(n, d)`.
        on_ready: called once the column is there and takes these vectors, before the first is written.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        BadValueError: as `ColumnFilling`, or if a text gives no finite vector.
        ConflictError: as `ensure_column` and `ColumnFilling.fill`, or if another session holds the table.
    """
    if into.name == old.column.name:
        raise BadValueError(f"the present vectors are in {into.name} too: name another column with --into", "into")
    filling = ColumnFilling(connection, table, text, into, BATCH_ROWS)
    _limit_waiting(connection, table, into)

    def agrees() -> bool:
        """Return whether vectors that are there, such as those of an old column on the way back, are the encoder's."""
        texts, stored = filling.read_filled(COMPARED_ROWS)
        if not texts:
            return False
        cosines = (normalized_rows(encode(texts), np.float32) * normalized_rows(stored, np.float32)).sum(1)
        # A few may be of a text that has changed since.
        return float((cosines >= MIN_COSINE).double().mean()) >= MIN_AGREEING

    ensure_column(connection, table, into, agrees)
    _watch_texts(connection, table, text, into)
    connection.execute("SET lock_timeout = 0")  # from here on, others do not wait behind this session
    on_ready()

    def convert(keys: Sequence[Key], texts: Sequence[str]) -> tuple[Mask, Vectors]:
        try:
            vectors = normalized_rows(encode(texts), np.float32).numpy()
        except NotFiniteError as error:
            raise error.at(f"the text of the row {name_row(keys, error.position or 0)}") from None
        directed = np.asarray(vectors.any(axis=1))
        return directed, vectors[directed]

    counts = filling.fill(convert, part_of(on_progress, 0.0, 0.9))
    on_progress(0.9, f"building the index of {into.name}; rows are searched and written meanwhile")
    _build_index(connection, table, old, into)
    late = filling.fill(convert, part_of(on_progress, 0.99, 1.0))  # written while the index was built
    return FillCounts(counts.written + late.written, late.empty, late.zero)


def write_statements(
    connection: Connection, table: PgvectorTable, old: OldColumn, into: VectorColumn, by: str
) -> list[str]:
    """Return the lines that say how to switch, how to go back, and what to drop in the end, each an SQL statement. `by`
    says what makes the vectors of a query.
    """

    def write(statement: str, column: str = "") -> str:
        return (
            sql.SQL(statement)
            .format(
                table=table.name.identifier,
                keys=sql.SQL(", ").join(map(sql.Identifier, table.key)),
                operator=sql.SQL(OPERATORS[old.metric]),
                column=sql.Identifier(column),
                function=_name_function(table, into),
            )
            .as_string(connection)
        )

    search = "SELECT {keys} FROM {table} ORDER BY {column} {operator} $1 LIMIT 10;"
    return [
        f"-- the switch: search this column from now on, with queries by {by}",
        write(search, into.name),
        "-- the way back, with queries by the encoder of before",
        write(search, old.column.name),
        "-- once the application writes the new vectors itself; until then the same command encodes rows written since",
        write("DROP FUNCTION IF EXISTS {function} CASCADE;"),
        "-- once no search needs the old vectors",
        write("ALTER TABLE {table} DROP COLUMN {column};", old.column.name),
    ]


def _limit_waiting(connection: Connection, table: PgvectorTable, into: VectorColumn) -> None:
    """Let this session wait no longer than `LOCK_SECONDS` for others, end with its command, and be the only one that
    fills the column.
    """
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
    try:  # PostgreSQL 13 does not have it
        connection.execute(f"SET client_connection_check_interval = '{CHECK_SECONDS}s'")
    except errors.UndefinedObject:
        pass
    connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, %s))", (into.name, table.oid))


def _watch_texts(connection: Connection, table: PgvectorTable, text: Column, into: VectorColumn) -> None:
    """Add the trigger that empties the new vector of a row whose text changes, unless the change brings a new vector
    with it.
    """
    function = _name_function(table, into)
    known = "SELECT 1 FROM pg_trigger WHERE tgrelid = %s AND tgfoid = to_regproc(%s)"
    if connection.execute(known, (table.oid, function.as_string(connection))).fetchone():
        return
    parts = {
        "function": function,
        "table": table.name.identifier,
        "text": sql.Identifier(text.name),
        "column": sql.Literal(into.name),
    }
    with connection.transaction():
        # Through JSON, so that an update goes on when the column is renamed or dropped. Nothing of the trigger names
        # an operator of pgvector, which a restored dump would not find.
        connection.execute(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "IF to_jsonb(NEW) -> {column} = to_jsonb(OLD) -> {column} THEN "
                "NEW := jsonb_populate_record(NEW, jsonb_build_object({column}, NULL)); END IF; RETURN NEW; END $$"
            ).format(**parts)
        )
        connection.execute(
            sql.SQL(
                "CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW "
                "WHEN (OLD.{text} IS DISTINCT FROM NEW.{text}) EXECUTE FUNCTION {function}()"
            ).format(name=sql.Identifier(FORGET + into.name), **parts)
        )


def _name_function(table: PgvectorTable, into: VectorColumn) -> sql.Identifier:
    """Return the name of the function of the trigger that watches the texts of a table, in the schema of the table."""
    return sql.Identifier(table.schema, f"{FORGET}{table.name.table}_{into.name}"[:MAX_NAME_BYTES])


def _build_index(connection: Connection, table: PgvectorTable, old: OldColumn, into: VectorColumn) -> None:
    """Build the index over the new vectors, with the metric and parameters of the old one, unless it is there. An index
    whose building was interrupted is dropped first.
    """
    for index in find_indexes(connection, table, into.name):
        if not index.valid:
            connection.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(sql.SQL(index.name)))
    statement = format_index_statement(connection, table, into, old.metric, old.parameters, concurrently=True)
    if not statement.startswith("--"):
        connection.execute(statement)
