"""Filling of a column of vectors from another column of the same table, and samples of vectors for a fit.

Full vectors are reduced by a chain; texts are encoded, see `lathe.service.index.pgvector.move`.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from lathe.service.errors import BadValueError, ConflictError
from lathe.service.index.pgvector.column_types import FLOAT_TYPES, VectorType
from lathe.service.index.pgvector.connection import Connection
from lathe.service.index.pgvector.table import (
    Column,
    PgvectorTable,
    VectorColumn,
    decode_vectors,
    encode_vectors,
    ensure_column,
    format_type,
    get_column,
)
from lathe.service.index.reducer import Vectors
from lathe.transforms.progress import Progress

BATCH_ROWS = 1024
"""Number of rows whose vectors are read and reduced at once, and written in one transaction."""
STAGE = sql.Identifier(f"lathe_vectors_{secrets.token_hex(6)}")
"""Temporary table that takes the vectors of a batch; a table of the user's of that name would be hidden."""

Key = tuple[str, ...]
"""Values of the primary key of a row, as text."""
Mask = NDArray[np.bool_]
Convert = Callable[[Sequence[Key], Sequence[Any]], tuple[Mask, Vectors]]
"""Function of keys and values of rows that returns which of them have a direction, `(n,)`, and the vectors of those."""


@dataclass(frozen=True)
class FillCounts:
    """Numbers of rows of a filling.

    Attributes:
        written: rows that got a vector.
        empty: rows without a value to make a vector of.
        zero: rows whose value has no direction, and that got none.
    """

    written: int
    empty: int
    zero: int


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
    column = get_column(table, name, FLOAT_TYPES, "the full vectors", "column")
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
) -> FillCounts:
    """Reduce the vectors in one column of a table into another, for rows that lack them there. Return the numbers of
    rows written and left out.

    Zero vectors have no direction and are left out.

    Args:
        connection: open connection.
        full: column of full vectors.
        into: column of reduced vectors, created if it is missing.
        reduce: maps full vectors `(n, d)` to reduced ones `(n, k)`.
        on_ready: called once the column is there and takes these vectors, before the first is written.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        BadValueError: as `ColumnFilling`, or if a vector has another number of dimensions than the others or gives no
            finite result.
        ConflictError: as `ensure_column` and `ColumnFilling.fill`.
    """

    def convert(keys: Sequence[Key], fields: Sequence[bytes]) -> tuple[Mask, Vectors]:
        try:
            vectors = decode_vectors(fields, full.kind, full.dimensions)
        except BadValueError as error:
            raise BadValueError(
                f"the row {name_row(keys, int(error.param or 0))} has {error.message}", "column"
            ) from None
        directed = np.asarray(vectors.any(axis=1))
        reduced = reduce(vectors[directed]) if directed.any() else np.empty((0, into.dimensions), np.float32)
        finite = np.isfinite(reduced).all(axis=1)
        if not finite.all():
            key = name_row(keys, int(directed.nonzero()[0][(~finite).argmax()]))
            raise BadValueError(f"the vector of the row {key} is too large for the chain to map in float32")
        return directed, reduced

    filling = ColumnFilling(connection, full.table, full.column, into, BATCH_ROWS)
    ensure_column(connection, full.table, into)
    on_ready()
    return filling.fill(convert, on_progress)


class ColumnFilling:
    """Filling of a column of vectors from another column of the same table, for rows that lack a vector there.

    Rows are read in order of the primary key, converted, and written in a transaction a batch. No row is locked while
    it is converted. One that another session changes meanwhile is not written, and read again in the next pass. So a
    second run continues after the rows that are written, and fills rows added since.

    Args:
        connection: open connection.
        table: the table.
        source: column to make vectors of: `vector` or `halfvec`, which is read in binary, or texts.
        into: column of vectors; it must exist before `fill`.
        batch_rows: number of rows of a batch.

    Raises:
        BadValueError: if the table has no primary key.
    """

    def __init__(
        self, connection: Connection, table: PgvectorTable, source: Column, into: VectorColumn, batch_rows: int
    ) -> None:
        if not table.key:
            raise BadValueError(f"the table {table.name} has no primary key, by which rows are found again", "table")
        self.connection = connection
        self.table = table
        self.into = into
        comma = sql.SQL(", ")
        self.keys = [sql.Identifier("t", name) for name in table.key]  # a bare name would mean its text in ORDER BY
        self.kinds = [sql.SQL(table.columns[name].written) for name in table.key]  # as the catalogue spells them
        staged = [sql.Identifier(f"key{position}") for position in range(len(self.keys))]
        value: sql.Composable = sql.Identifier("t", source.name)
        given = sql.SQL("{} IS NOT NULL").format(value)
        if source.kind not in FLOAT_TYPES:
            value = sql.SQL("CAST({} AS text)").format(value)
            given = sql.SQL("btrim({}, E' \\t\\r\\n') <> ''").format(value)  # NULL is neither
        self.parts: dict[str, sql.Composable] = {
            "table": table.name.identifier,
            "value": value,
            "given": given,
            "into": sql.Identifier(into.name),
            "kind": format_type(into.kind, into.dimensions),
            "stage": STAGE,
            "keys": comma.join(self.keys),
            "texts": comma.join(sql.SQL("CAST({} AS text)").format(key) for key in self.keys),
            "declared": comma.join(sql.SQL("{} text").format(name) for name in staged),
            # xmin names the transaction that wrote this version of the row: any change gives another one.
            "same": sql.SQL(" AND ").join(
                sql.SQL("{} = CAST(r.{} AS {})").format(*pair)
                for pair in zip(self.keys, staged, self.kinds, strict=True)
            )
            + sql.SQL(" AND t.xmin::text = r.version"),
            "rows": sql.Literal(batch_rows),
        }

    def fill(self, convert: Convert, on_progress: Progress) -> FillCounts:
        """Fill the column in passes over the table, until a pass finds nothing to write. Return the numbers of rows.

        Args:
            convert: function of keys and values of rows that returns which of them have a direction, `(n,)`, and the
                vectors of those, `(k, d)`.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            ConflictError: if a row that was updated has no vector then, as a trigger or a policy may want it.
        """
        self._execute(
            "CREATE TEMP TABLE IF NOT EXISTS {stage} ({declared}, version text, vector {kind}) ON COMMIT DELETE ROWS"
        )
        counts = (
            "SELECT count(*) FILTER (WHERE {given} AND {into} IS NULL), count(*) FILTER (WHERE ({given}) IS NOT TRUE)"
        )
        total, empty = self._execute(counts + " FROM {table} AS t")[0]
        written = 0
        while True:
            before, zero, last, changed = written, 0, None, 0
            while batch := self._read_batch(last):
                last = batch[-1][:-2]
                keys = [row[:-2] for row in batch]
                directed, vectors = convert(keys, [row[-1] for row in batch])
                zero += len(batch) - len(vectors)
                if len(vectors):
                    rows = [row[:-1] for row, kept in zip(batch, directed, strict=True) if kept]
                    count = self._write_batch(rows, encode_vectors(vectors, self.into.kind))
                    written, changed = written + count, changed + len(rows) - count
                on_progress(min((written + zero) / max(total, 1), 1.0), f"{written:,} of {total:,} rows")
            if written == before and not changed:
                return FillCounts(written, empty, zero)
            total = max(total, written)

    def read_filled(self, rows: int) -> tuple[list[Any], Vectors]:
        """Return the values of up to `rows` random rows that have a vector, and these vectors `(n, d)`."""
        found = self._execute(
            "SELECT {value}, {into} FROM {table} AS t WHERE {given} AND {into} IS NOT NULL ORDER BY random() LIMIT "
            "{count}",
            count=sql.Literal(rows),
        )
        vectors = decode_vectors([row[1] for row in found], self.into.kind, self.into.dimensions)
        return [row[0] for row in found], vectors

    def _read_batch(self, last: Key | None) -> list[tuple[Any, ...]]:
        """Read the next rows that lack a vector, after the key `last`. Return for each the parts of its key as texts,
        its version, and its value.
        """
        after: sql.Composable = sql.SQL("")
        if last is not None:
            values = [
                sql.SQL("CAST({} AS {})").format(sql.Literal(value), kind)
                for value, kind in zip(last, self.kinds, strict=True)
            ]
            after = sql.SQL("AND ({keys}) > ({values})").format(
                keys=self.parts["keys"], values=sql.SQL(", ").join(values)
            )
        return self._execute(
            "SELECT {texts}, t.xmin::text, {value} FROM {table} AS t WHERE {given} AND {into} IS NULL {after} "
            "ORDER BY {keys} LIMIT {rows}",
            after=after,
        )

    def _write_batch(self, rows: Sequence[tuple[str, ...]], fields: Sequence[bytes]) -> int:
        """Write encoded vectors of rows, given as keys with versions, in one transaction. Return the number of rows
        written: those that were changed meanwhile are not.
        """
        with self.connection.transaction():
            copy_rows = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(STAGE)
            with self.connection.cursor() as cursor, cursor.copy(copy_rows) as copy:
                for row, field in zip(rows, fields, strict=True):
                    copy.write_row((*(part.encode() for part in row), field))
            updated = self._execute(
                "UPDATE {table} AS t SET {into} = r.vector FROM {stage} AS r WHERE {same} "
                "RETURNING t.{into} IS NOT NULL"
            )
            written = sum(bool(row[0]) for row in updated)
            (left,) = self._execute("SELECT count(*) FROM {table} AS t JOIN {stage} AS r ON {same}")[0]
            if kept_out := len(updated) - written + left:
                raise ConflictError(
                    f"PostgreSQL wrote {written:,} of {written + kept_out:,} vectors of {self.table.name}: a trigger "
                    "or a policy keeps the others out"
                )
        return written

    def _execute(self, statement: str, **parts: sql.Composable) -> list[tuple[Any, ...]]:
        """Execute a statement with the names of the table in it, and return its rows, if it has any, in binary."""
        composed = sql.SQL(statement).format(**self.parts, **parts)
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(composed)
            return [] if cursor.description is None else cursor.fetchall()


def name_row(keys: Sequence[Key], row: int) -> str:
    """Return the key of a row as text for messages."""
    return ", ".join(keys[row])
