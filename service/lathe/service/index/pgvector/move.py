"""Move of a table to vectors by another encoder, in a second column, while the first one is searched.

A column holds vectors of one space, and a search names its column. So no search compares vectors of two encoders, and
you can go back to the old column for as long as it is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

import numpy as np
from psycopg import errors, sql

from lathe.service.errors import BadValueError
from lathe.service.index.pgvector import FLOAT_TYPES, MAX_INDEXED, VectorType
from lathe.service.index.pgvector.connection import Connection, retry_conflicts
from lathe.service.index.pgvector.filling import ColumnFilling, FillCounts, Mask
from lathe.service.index.pgvector.table import (
    OPERATOR_CLASSES,
    TRIGGER,
    Column,
    PgvectorTable,
    TableName,
    VectorColumn,
    ensure_column,
    ensure_digests,
    find_indexes,
    format_index_statement,
    get_column,
    get_table,
    name_digests,
    parse_table_name,
)
from lathe.service.index.reducer import Vectors
from lathe.training.errors import NotFiniteError, TextError, TooLongError, UnknownTokenError
from lathe.training.settings import Metric
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality.metrics import normalized_rows

ENCODE_ROWS = 256
"""Number of rows that are encoded at once and written in one transaction: what a kill costs."""
LOCK_SECONDS = 4
"""Seconds that a change of the table waits for other sessions, because all searches wait behind it."""
CHECK_SECONDS = 2
"""Seconds after which PostgreSQL notices that the command was killed, and ends its statement."""
COMPARED_ROWS = 32
"""Number of rows whose vectors must agree with the encoder's vectors, for a column that names no space."""
MIN_COSINE = 0.99
"""Cosine from which on two vectors of one text are of the same encoder, whatever its dtype and the column's."""
MIN_AGREEING = 0.75
"""Share of these rows that must agree."""
OPERATORS: dict[Metric, str] = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}
"""Operator of a search, by metric."""
TEXT_TYPES = ("text", "varchar", "bpchar", "citext")
"""Types of a column of texts."""
REFUSALS = (TooLongError, NotFiniteError, UnknownTokenError, TextError)
"""Errors of an encoder that refuses a text."""


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


def find_columns(connection: Connection, name: str, text: str, old: str) -> tuple[PgvectorTable, Column, OldColumn]:
    """Return a table with its column of texts and its column of present vectors.

    Metric and parameters of the present vectors come from their index. Without an index, they are cosine and the
    defaults.

    Raises:
        UnknownNameError: if there is no such table or column.
        BadValueError: if a column is of another type, or the texts are generated from other columns.
    """
    table = get_table(connection, parse_table_name(name))
    texts = get_column(table, text, TEXT_TYPES, "the texts", "text")
    if texts.is_generated:
        raise BadValueError(
            f"PostgreSQL generates the column {text} of {name} from others, so that no trigger sees it change: name a "
            "column that is written",
            param="text",
        )
    column = get_column(table, old, FLOAT_TYPES, "the present vectors", "column")
    metrics = {f"{column.kind}_{operators}": metric for metric, operators in OPERATOR_CLASSES.items()}
    for index in find_indexes(connection, table, old):
        if index.valid and index.operators in metrics:
            parameters = index.parameters if index.method == "hnsw" else ()
            return table, texts, OldColumn(column, metrics[index.operators], parameters)
    return table, texts, OldColumn(column, "cosine", ())


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
    """Encode the texts of all rows into a second column, build its index, and return the numbers of rows.

    Others search and write meanwhile. A second run continues: it finds rows that were added, and rows whose text
    differs from the encoded one. A trigger empties the new vector of such a row at once. The index is built without a
    lock. Texts that the encoder refuses are left out, and named by the counts.

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
        BadValueError: as `ColumnFilling`.
        ConflictError: as `ensure_column` and `ColumnFilling.fill`, or if another session holds the table.
    """
    if into.name == old.column.name:
        raise BadValueError(f"the present vectors are in {into.name} too: name another column with --into", "into")
    filling = ColumnFilling(connection, table, text, into, ENCODE_ROWS, REFUSALS)
    parts = _list_parts(connection, table)
    _limit_waiting(connection, table, into)

    def agrees() -> bool:
        """Return whether the vectors that the column already has, such as an old column's, are the encoder's."""
        texts, stored = filling.read_filled(COMPARED_ROWS)
        if not texts:
            return False
        cosines = (normalized_rows(encode(texts), np.float32) * normalized_rows(stored, np.float32)).sum(1)
        # A few may be of a text that has changed since.
        return float((cosines >= MIN_COSINE).double().mean()) >= MIN_AGREEING

    with connection.transaction():
        ensure_column(connection, table, into, agrees)
        ensure_digests(connection, table, into.name)
        _watch_texts(connection, table, text, into)
    connection.execute("SET lock_timeout = 0")  # from here on, others do not wait behind this session
    on_ready()

    def convert(texts: Sequence[str]) -> tuple[Mask, Vectors]:
        vectors = normalized_rows(encode(texts), np.float32).numpy()
        directed = np.asarray(vectors.any(axis=1))
        return directed, vectors[directed]

    counts = filling.fill(convert, part_of(on_progress, 0.0, 0.9))
    on_progress(0.9, f"building the index of {into.name}; rows are searched and written meanwhile")
    for part in parts:
        build = partial(_build_index, connection, part, old, into, part is table and len(parts) > 1)
        retry_conflicts(build, lambda message: on_progress(0.9, message))
    late = filling.fill(convert, part_of(on_progress, 0.99, 1.0))  # written while the index was built
    return replace(late, written=counts.written + late.written)


def write_statements(
    connection: Connection, table: PgvectorTable, text: Column, old: OldColumn, into: VectorColumn, by: str
) -> list[str]:
    """Return SQL statements that switch to the new column, go back, and clean up, each after a comment on its use.

    `by` says what makes the vectors of a query.
    """

    def write(statement: str, column: str) -> str:
        return (
            sql.SQL(statement)
            .format(
                table=table.name.identifier,
                keys=sql.SQL(", ").join(map(sql.Identifier, table.key)),
                operator=sql.SQL(OPERATORS[old.metric]),
                column=sql.Identifier(column),
                function=sql.Identifier(table.schema, _name_function(table, text, column)),
                digests=sql.Identifier(name_digests(column)),
            )
            .as_string(connection)
        )

    drop = "DROP FUNCTION IF EXISTS {function} CASCADE; ALTER TABLE {table} DROP COLUMN IF EXISTS {digests}"
    search = "SELECT {keys} FROM {table} ORDER BY {column} {operator} $1 LIMIT 10;"
    return [
        f"-- the switch: search this column from now on, with queries by {by}",
        write(search, into.name),
        "-- to roll back, with queries by the encoder of before",
        write(search, old.column.name),
        "-- once the application writes the new vectors itself; until then the same command encodes rows written since",
        write(drop + ";", into.name),
        "-- once no search needs the old vectors",
        write(drop + ", DROP COLUMN {column};", old.column.name),
    ]


def _limit_waiting(connection: Connection, table: PgvectorTable, into: VectorColumn) -> None:
    """Let the session wait for others at most `LOCK_SECONDS`, end with its command, and fill the column alone."""
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
    try:  # PostgreSQL 13 does not have it
        connection.execute(f"SET client_connection_check_interval = '{CHECK_SECONDS}s'")
    except errors.UndefinedObject:
        pass
    connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, %s))", (into.name, table.oid))


def _watch_texts(connection: Connection, table: PgvectorTable, text: Column, into: VectorColumn) -> None:
    """Add the trigger that empties a row's new vector if its text changes and no new vector comes with it."""
    name = _name_function(table, text, into.name)
    function = sql.Identifier(table.schema, name)
    known = "SELECT 1 FROM pg_trigger WHERE tgrelid = %s AND tgfoid = to_regproc(%s)"
    if connection.execute(known, (table.oid, function.as_string(connection))).fetchone():
        return
    # Only the column named is read from JSON, so other columns may hold what JSON cannot. Nothing here names an
    # operator of pgvector, which a restored dump would not find.
    connection.execute(
        sql.SQL(
            "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RETURN jsonb_populate_record(NEW, jsonb_build_object(TG_ARGV[0], NULL)); END $$"
        ).format(function)
    )
    connection.execute(
        sql.SQL(
            "CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW "
            'WHEN (CAST(OLD.{text} AS text) COLLATE "C" IS DISTINCT FROM CAST(NEW.{text} AS text) COLLATE "C" '
            "AND CAST(OLD.{into} AS text) = CAST(NEW.{into} AS text)) EXECUTE FUNCTION {function}({column})"
        ).format(
            name=sql.Identifier(TRIGGER + name),
            table=table.name.identifier,
            text=sql.Identifier(text.name),
            into=sql.Identifier(into.name),
            function=function,
            column=sql.Literal(into.name),
        )
    )


def _name_function(table: PgvectorTable, text: Column, column: str) -> str:
    """Return the name of the trigger function that watches a table's texts. No other columns share it."""
    named = "\0".join((table.name.table, text.name, column))
    return f"lathe_{sha256(named.encode()).hexdigest()[:24]}"


def _list_parts(connection: Connection, table: PgvectorTable) -> list[PgvectorTable]:
    """Return the partitions of a table that hold rows, and the table itself at last.

    An index of a partitioned table cannot be built without a lock. It takes over the indexes that its partitions have.
    """
    names = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.isleaf AND c.oid <> %s ORDER BY c.oid",
        (table.oid, table.oid),
    ).fetchall()
    return [*(get_table(connection, TableName(*name)) for name in names), table]


def _build_index(connection: Connection, table: PgvectorTable, old: OldColumn, into: VectorColumn, locks: bool) -> None:
    """Build the index over the new vectors, with the old one's metric and parameters, unless it exists.

    An index whose building was interrupted is dropped first. If the table has partitions with such indexes, `locks` is
    true.
    """
    for index in find_indexes(connection, table, into.name):
        if not index.valid and not locks:
            connection.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(sql.SQL(index.name)))
    statement = format_index_statement(connection, table, into, old.metric, old.parameters, concurrently=not locks)
    if not statement.startswith("--"):
        connection.execute(statement)
