"""Reduction of a column of full vectors by a chain into a smaller column of the same table, and samples for a fit."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from psycopg import sql

from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.service.index.pgvector.column_types import VectorType
from lathe.service.index.pgvector.connection import Connection
from lathe.service.index.pgvector.table import (
    Column,
    PgvectorTable,
    VectorColumn,
    decode_vectors,
    encode_vectors,
    ensure_column,
    format_type,
)
from lathe.service.index.reducer import Vectors
from lathe.transforms.progress import Progress

BATCH_ROWS = 1024
"""Number of rows that are read, reduced and written in one transaction."""
STAGE = sql.Identifier(f"lathe_reduced_{secrets.token_hex(6)}")
"""Temporary table that takes the reduced vectors of a batch; a table of the user's of that name would be hidden."""

Key = tuple[str, ...]
"""Values of the primary key of a row, as text."""


@dataclass(frozen=True)
class _FullVectors:
    """Column of full vectors in a table with a primary key."""

    table: PgvectorTable
    column: Column
    kind: VectorType
    dimensions: int


def find_full_vectors(connection: Connection, table: PgvectorTable, name: str) -> _FullVectors:
    """Return a table's column of full vectors, with its type and number of dimensions.

    The dimensions are those of the first vector if the column's type declares none.

    Raises:
        UnknownNameError: if the table has no such column.
        BadValueError: if it is not of `vector` or `halfvec`, or declares no dimensions and holds no vector.
    """
    if name not in table.columns:
        raise UnknownNameError(f"the table {table.name} has no column {name}; it has {', '.join(table.columns)}")
    column = table.columns[name]
    if column.kind not in ("vector", "halfvec"):
        raise BadValueError(
            f"the column {name} of {table.name} is of type {column.written}; it must be vector or halfvec",
            param="column",
        )
    dimensions = column.dimensions
    if dimensions is None:
        query = sql.SQL("SELECT vector_dims({}) FROM {} WHERE {} IS NOT NULL LIMIT 1").format(
            sql.Identifier(name), table.name.identifier, sql.Identifier(name)
        )
        first_row = connection.execute(query).fetchone()
        if first_row is None:
            raise BadValueError(f"no row of {table.name} has a vector in {name}", param="column")
        dimensions = int(first_row[0])
    return _FullVectors(table, column, "halfvec" if column.kind == "halfvec" else "vector", dimensions)


def read_sample(connection: Connection, full: _FullVectors, rows: int) -> Iterator[Vectors]:
    """Yield the vectors of up to `rows` random rows of a table, in batches `(n, d)`. Rows without a vector are left
    out.
    """
    # Sorting addresses instead of vectors keeps the sort small; in a partitioned table an address is unique only
    # within its partition. OFFSET 0 keeps the lookup by address, where a join would read the whole table again.
    query = sql.SQL(
        "SELECT found.{column} FROM (SELECT tableoid, ctid FROM {table} WHERE {column} IS NOT NULL "
        "ORDER BY random() LIMIT {rows}) AS chosen CROSS JOIN LATERAL (SELECT {column} FROM {table} AS t "
        "WHERE t.tableoid = chosen.tableoid AND t.ctid = chosen.ctid OFFSET 0) AS found"
    ).format(column=sql.Identifier(full.column.name), table=full.table.name.identifier, rows=sql.Literal(rows))
    with connection.transaction(), connection.cursor("lathe_sample", binary=True) as cursor:
        cursor.execute(query)
        while fields := [row[0] for row in cursor.fetchmany(BATCH_ROWS)]:
            yield decode_vectors(fields, full.kind, full.dimensions)


def reduce_column(
    connection: Connection,
    full: _FullVectors,
    into: VectorColumn,
    reduce: Callable[[Vectors], Vectors],
    on_ready: Callable[[], object],
    on_progress: Progress,
) -> tuple[int, int, int]:
    """Reduce the vectors in one column of a table into another, for rows that lack them there. Return the numbers of
    rows reduced, of rows without a full vector, and of zero vectors, which have no direction and are left out.

    Rows are reduced in order of the primary key. Each batch is a transaction that locks its rows, so a row that is
    changed meanwhile waits and is not lost. A second run continues after the rows that are written, and reduces rows
    added since.

    Args:
        connection: open connection.
        full: column of full vectors.
        into: column of reduced vectors, created if it is missing.
        reduce: maps full vectors `(n, d)` to reduced ones `(n, k)`.
        on_ready: called once the column is there and takes these vectors, before the first is written.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        BadValueError: if the table has no primary key, or a vector has another number of dimensions than the others
            or gives no finite result.
        ConflictError: if the column `into` has another type, or vectors of another space, or if a row that was updated
            has no reduced vector then, as a trigger or a policy may want it.
    """
    table = full.table
    if not table.key:
        raise BadValueError(f"the table {table.name} has no primary key, by which rows are found again", param="table")
    ensure_column(connection, table, into)
    on_ready()
    statements = _build_statements(full, into)
    connection.execute(statements.create_stage)
    total, without = connection.execute(statements.count).fetchone() or (0, 0)
    seen = zero = 0
    last: Key | None = None
    while True:
        with connection.transaction():
            keys, vectors = _read_batch(connection, full, statements, last)
            if not keys:
                return seen - zero, without, zero
            directed = np.asarray(vectors.any(axis=1))
            rows = [key for key, kept in zip(keys, directed, strict=True) if kept]
            if rows:
                reduced = reduce(vectors[directed])
                _require_finite(reduced, rows)
                _copy_reduced(connection, statements, rows, encode_vectors(reduced, into.kind))
                updated = connection.execute(statements.update).fetchall()
                if (written := sum(row[0] for row in updated)) != len(rows):
                    raise ConflictError(
                        f"PostgreSQL wrote {written:,} of {len(rows):,} reduced vectors of {table.name}: a trigger or "
                        "a policy keeps the others out"
                    )
        last = keys[-1]
        seen, zero = seen + len(keys), zero + len(keys) - len(rows)
        on_progress(min(seen / max(total, 1), 1.0), f"{seen:,} of {total:,} rows")


@dataclass(frozen=True)
class _Statements:
    """Statements of a reduction.

    Attributes:
        count: counts the rows to reduce, and those without a full vector.
        create_stage: creates the temporary table of keys and reduced vectors; each commit empties it.
        read: reads and locks the batch of rows to reduce after a key, None for the first: keys as text, and the full
            vector.
        update: writes the reduced vectors of the temporary table, and returns for each row whether it has one then.
    """

    count: sql.Composed
    create_stage: sql.Composed
    read: Callable[[Key | None], sql.Composed]
    update: sql.Composed


def _build_statements(full: _FullVectors, into: VectorColumn) -> _Statements:
    """Return the SQL statements of a reduction for the table, its primary key, and its columns of full and reduced
    vectors.
    """
    comma = sql.SQL(", ")
    keys = [sql.Identifier("t", name) for name in full.table.key]  # a bare name would mean its text in ORDER BY
    kinds = [sql.SQL(full.table.columns[name].written) for name in full.table.key]  # as the catalogue spells them
    staged = [sql.Identifier(f"key{position}") for position in range(len(keys))]
    pairs = zip(keys, staged, kinds, strict=True)
    parts: dict[str, sql.Composable] = {
        "table": full.table.name.identifier,
        "source": sql.Identifier(full.column.name),
        "target": sql.Identifier(into.name),
        "kind": format_type(into.kind, into.dimensions),
        "stage": STAGE,
        "keys": comma.join(keys),
        "texts": comma.join(sql.SQL("CAST({} AS text)").format(key) for key in keys),
        "declared": comma.join(sql.SQL("{} text").format(name) for name in staged),
        "same": sql.SQL(" AND ").join(sql.SQL("{} = CAST(r.{} AS {})").format(*pair) for pair in pairs),
        "rows": sql.Literal(BATCH_ROWS),
    }

    def read(last: Key | None) -> sql.Composed:
        after: sql.Composable = sql.SQL("")
        if last is not None:
            values = [
                sql.SQL("CAST({} AS {})").format(sql.Literal(value), kind)
                for value, kind in zip(last, kinds, strict=True)
            ]
            after = sql.SQL("AND ({}) > ({})").format(comma.join(keys), comma.join(values))
        return sql.SQL(
            "SELECT {texts}, {source} FROM {table} AS t WHERE {todo} {after} "
            "ORDER BY {keys} LIMIT {rows} FOR NO KEY UPDATE"
        ).format(after=after, **parts)

    parts["todo"] = sql.SQL("{source} IS NOT NULL AND {target} IS NULL").format(**parts)
    return _Statements(
        count=sql.SQL(
            "SELECT count(*) FILTER (WHERE {todo}), count(*) FILTER (WHERE {source} IS NULL) FROM {table}"
        ).format(**parts),
        create_stage=sql.SQL("CREATE TEMP TABLE {stage} ({declared}, reduced {kind}) ON COMMIT DELETE ROWS").format(
            **parts
        ),
        read=read,
        update=sql.SQL(
            "UPDATE {table} AS t SET {target} = r.reduced FROM {stage} AS r WHERE {same} "
            "RETURNING t.{target} IS NOT NULL"
        ).format(**parts),
    )


def _read_batch(
    connection: Connection, full: _FullVectors, statements: _Statements, last: Key | None
) -> tuple[list[Key], Vectors]:
    """Read and lock the next rows that lack a reduced vector, after the key `last`. Return their keys and vectors `(n,
    d)`.
    """
    with connection.cursor(binary=True) as cursor:
        rows: list[tuple[Any, ...]] = cursor.execute(statements.read(last)).fetchall()
    keys = [tuple(row[:-1]) for row in rows]
    try:
        return keys, decode_vectors([row[-1] for row in rows], full.kind, full.dimensions)
    except BadValueError as error:
        key = keys[int(error.param or 0)]
        raise BadValueError(f"the row {', '.join(key)} has {error.message}", param="column") from None


def _copy_reduced(connection: Connection, statements: _Statements, keys: list[Key], fields: list[bytes]) -> None:
    """Copy keys and encoded reduced vectors to the temporary table."""
    with (
        connection.cursor() as cursor,
        cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(STAGE)) as copy,
    ):
        for key, field in zip(keys, fields, strict=True):
            copy.write_row((*(part.encode() for part in key), field))


def _require_finite(reduced: Vectors, keys: list[Key]) -> None:
    """Raise `BadValueError` if a reduced vector holds NaN or inf. The message names the row by its key."""
    finite = np.isfinite(reduced).all(axis=1)
    if not finite.all():
        key = ", ".join(keys[int((~finite).argmax())])
        raise BadValueError(f"the vector of the row {key} is too large for the chain to map in float32")
