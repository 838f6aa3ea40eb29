"""Filling of a column of vectors from another column of the same table, and samples of vectors for a fit.

Full vectors are reduced by a chain; texts are encoded, see `lathe.service.index.pgvector.move`.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from lathe.service.errors import BadValueError, ConflictError
from lathe.service.index.pgvector import FLOAT_TYPES, VectorType
from lathe.service.index.pgvector.connection import Connection, retry_conflicts
from lathe.service.index.pgvector.table import (
    Column,
    PgvectorTable,
    VectorColumn,
    decode_vectors,
    encode_vectors,
    ensure_column,
    ensure_digests,
    format_type,
    get_column,
    name_digests,
)
from lathe.service.index.reducer import Vectors
from lathe.transforms.progress import Progress

REDUCE_ROWS = 1024
"""Number of rows whose vectors are read and reduced at once, and written in one transaction."""
MAX_BATCH_BYTES = 32 * 2**20
"""Bytes of values that are read at once, however few rows they are; a larger value is read alone."""
MAX_PASSES = 20
"""Number of passes over a table, after which rows that change meanwhile are left to the next run."""
STAGE = sql.Identifier(f"lathe_vectors_{secrets.token_hex(6)}")
"""Temporary table that takes the vectors of a batch; a table of the user's of that name would be hidden."""

Key = tuple[str, ...]
"""Values of the primary key of a row, as text."""
Mask = NDArray[np.bool_]
Convert = Callable[[Sequence[Any]], tuple[Mask, Vectors]]
"""Function of values that returns which of them have a direction, `(n,)`, and the vectors of those, `(k, d)`."""


@dataclass(frozen=True)
class FillCounts:
    """Numbers of rows of a filling.

    Attributes:
        written: rows that got a vector.
        empty: rows without a value to make a vector of.
        zero: rows whose value has no direction, and that got none.
        changing: whether rows changed in each of `MAX_PASSES` passes, so that some may have no vector yet.
        refused: why no vector can be made of a row's value, by the key of the row.
    """

    written: int
    empty: int
    zero: int
    changing: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)


class _Row(NamedTuple):
    """Row that takes a vector, as it was read.

    Attributes:
        version: number of the transaction that wrote this version of the row.
        is_stale: whether the row has a vector of another value.
    """

    key: Key
    version: str
    is_stale: bool
    value: Any


class _UpdatedRow(NamedTuple):
    """Row after its vector was written, as triggers and policies have left it. NULL in SQL is None.

    Attributes:
        has_vector: whether a vector was to be written, rather than a stale one removed.
        is_kept: whether the row has a vector now if one was to be written, and none otherwise.
        is_of_value: whether the digest that was written is still of the row's value.
    """

    has_vector: bool
    is_kept: bool | None
    is_of_value: bool | None


@dataclass(frozen=True)
class FullVectors:
    """Column of full vectors in a table with a primary key."""

    table: PgvectorTable
    column: Column
    kind: VectorType
    dimensions: int


def find_full_vectors(connection: Connection, table: PgvectorTable, name: str, option: str = "column") -> FullVectors:
    """Return a table's column of full vectors, with its type and number of dimensions.

    If the column's type declares no dimensions, they are the first vector's. Errors name the option without dashes.

    Raises:
        UnknownNameError: if the table has no such column.
        BadValueError: if it is not of `vector` or `halfvec`, or declares no dimensions and holds no vector.
    """
    column = get_column(table, name, FLOAT_TYPES, "the full vectors", option)
    dimensions = column.dimensions
    if dimensions is None:
        query = sql.SQL("SELECT vector_dims({}) FROM {} WHERE {} IS NOT NULL LIMIT 1").format(
            sql.Identifier(name), table.name.identifier, sql.Identifier(name)
        )
        first_row = connection.execute(query).fetchone()
        if first_row is None:
            raise BadValueError(f"no row of {table.name} has a vector in {name}", param=option)
        dimensions = int(first_row[0])
    return FullVectors(table, column, "halfvec" if column.kind == "halfvec" else "vector", dimensions)


def read_sample(
    connection: Connection, full: FullVectors, rows: int, more: Sequence[sql.Composable] = ()
) -> Iterator[tuple[Vectors, list[tuple[Any, ...]]]]:
    """Yield up to `rows` random rows of a table that have a vector, in batches: vectors `(n, d)`, and further values.

    Args:
        connection: open connection.
        full: column of vectors.
        rows: maximum number of rows.
        more: expressions of the row whose values are yielded beside its vector.
    """
    # Sorting addresses instead of vectors keeps the sort small; in a partitioned table an address is unique only
    # within its partition. OFFSET 0 keeps the lookup by address, where a join would read the whole table again.
    query = sql.SQL(
        "SELECT found.* FROM (SELECT tableoid, ctid FROM {table} WHERE {column} IS NOT NULL "
        "ORDER BY random() LIMIT {rows}) AS chosen CROSS JOIN LATERAL (SELECT {values} FROM {table} AS t "
        "WHERE t.tableoid = chosen.tableoid AND t.ctid = chosen.ctid OFFSET 0) AS found"
    ).format(
        column=sql.Identifier(full.column.name),
        table=full.table.name.identifier,
        rows=sql.Literal(rows),
        values=sql.SQL(", ").join([sql.Identifier(full.column.name), *more]),
    )
    with connection.transaction(), connection.cursor("lathe_sample", binary=True) as cursor:
        cursor.execute(query)
        while found := cursor.fetchmany(REDUCE_ROWS):
            yield decode_vectors([row[0] for row in found], full.kind, full.dimensions), [row[1:] for row in found]


def reduce_column(
    connection: Connection,
    full: FullVectors,
    into: VectorColumn,
    reduce: Callable[[Vectors], Vectors],
    on_ready: Callable[[], object],
    on_progress: Progress,
) -> FillCounts:
    """Reduce a column's vectors into another column, and return the numbers of rows written and left out.

    Rows are reduced if they have no reduced vector, or if their full vector has changed since. Zero vectors have no
    direction and are left out. So are vectors that have another number of dimensions than the others or give no finite
    result, which the counts name.

    Args:
        connection: open connection.
        full: column of full vectors.
        into: column of reduced vectors, created if it is missing.
        reduce: maps full vectors `(n, d)` to reduced ones `(n, k)`.
        on_ready: called once the column is there and takes these vectors, before the first is written.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        BadValueError: as `ColumnFilling`.
        ConflictError: as `ensure_column` and `ColumnFilling.fill`.
    """

    def convert(fields: Sequence[bytes]) -> tuple[Mask, Vectors]:
        vectors = decode_vectors(fields, full.kind, full.dimensions)
        directed = np.asarray(vectors.any(axis=1))
        reduced = reduce(vectors[directed]) if directed.any() else np.empty((0, into.dimensions), np.float32)
        if not np.isfinite(reduced).all():
            raise BadValueError("a vector too large for the chain to map in float32")
        return directed, reduced

    filling = ColumnFilling(connection, full.table, full.column, into, REDUCE_ROWS, (BadValueError,))
    with connection.transaction():
        ensure_column(connection, full.table, into)
        ensure_digests(connection, full.table, into.name)
    on_ready()
    return filling.fill(convert, on_progress)


class ColumnFilling:
    """Filling of a column of vectors from another column of the same table.

    It fills rows that lack a vector, and those whose vector is of another value: a digest next to each vector says what
    value it was made of, whatever has changed the value since.

    Rows are read in order of the primary key, converted, and written in a transaction a batch. No row is locked while
    it is converted. One that another session changes meanwhile is not written, and read again in the next pass. So a
    second run continues after the rows that are written, and fills rows added or changed since.

    Args:
        connection: open connection.
        table: the table.
        source: column to make vectors of: `vector` or `halfvec`, which is read in binary, or texts.
        into: column of vectors; it and its digests must exist before `fill`.
        batch_rows: maximum number of rows of a batch.
        refusals: errors by which a value is refused. Its row is left out, and the others are filled.

    Attributes:
        refused: why rows were refused, by their keys. They are not tried again.

    Raises:
        BadValueError: if the table has no primary key.
    """

    def __init__(
        self,
        connection: Connection,
        table: PgvectorTable,
        source: Column,
        into: VectorColumn,
        batch_rows: int,
        refusals: tuple[type[Exception], ...],
    ) -> None:
        if not table.key:
            raise BadValueError(f"the table {table.name} has no primary key, by which rows are found again", "table")
        self.connection = connection
        self.table = table
        self.into = into
        self.batch_rows = batch_rows
        self.refusals = refusals
        self.refused: dict[Key, str] = {}
        comma = sql.SQL(", ")
        self.keys = [sql.Identifier("t", name) for name in table.key]  # a bare name would mean its text in ORDER BY
        self.kinds = [sql.SQL(table.columns[name].written) for name in table.key]  # as the catalogue spells them
        staged = [sql.Identifier(f"key{position}") for position in range(len(self.keys))]
        digest = sql.Identifier("t", name_digests(into.name))
        value: sql.Composable = sql.Identifier("t", source.name)
        if source.kind in FLOAT_TYPES:
            given = sql.SQL("{} IS NOT NULL").format(value)
            current = sql.SQL("hash_array_extended(CAST({} AS real[]), 0)").format(value)
            stale, size = "{} IS DISTINCT FROM {}", "pg_column_size(value)"
        else:
            value = sql.SQL("CAST({} AS text)").format(value)
            # NULL is neither. Nearly all texts are told by their beginning, for which a large one is not read.
            spaces = "E' \\t\\r\\n'"
            given = sql.SQL(f"(btrim(left({{0}}, 99), {spaces}) <> '' OR btrim({{0}}, {spaces}) <> '')").format(value)
            current = sql.SQL('hashtextextended({} COLLATE "C", 0)').format(value)  # others hold cases for equal
            # A vector without a digest is the application's own, or that of an old column on the way back.
            stale, size = "{} <> {}", "octet_length(value)"
        self.parts: dict[str, sql.Composable] = {
            "table": table.name.identifier,
            "value": value,
            "given": given,
            "current": current,
            "wanted": sql.SQL("{} AND ({} IS NULL OR {})").format(
                given, sql.Identifier("t", into.name), sql.SQL(stale).format(digest, current)
            ),
            "size": sql.SQL(size),
            "into": sql.Identifier(into.name),
            "digest": sql.Identifier(name_digests(into.name)),
            "kind": format_type(into.kind, into.dimensions),
            "stage": STAGE,
            "keys": comma.join(self.keys),
            "texts": comma.join(
                sql.SQL("CAST({} AS text) AS {}").format(*pair) for pair in zip(self.keys, staged, strict=True)
            ),
            "staged": comma.join(staged),
            "declared": comma.join(sql.SQL("{} text").format(name) for name in staged),
            # xmin names the transaction that wrote this version of the row: any change gives another one.
            "same": sql.SQL(" AND ").join(
                sql.SQL("{} = CAST(r.{} AS {})").format(*pair)
                for pair in zip(self.keys, staged, self.kinds, strict=True)
            )
            + sql.SQL(" AND t.xmin::text = r.version"),
            "bytes": sql.Literal(MAX_BATCH_BYTES),
        }
        self._execute(
            "CREATE TEMP TABLE IF NOT EXISTS {stage} ({declared}, version text, vector {kind}) ON COMMIT DELETE ROWS"
        )

    def fill(self, convert: Convert, on_progress: Progress) -> FillCounts:
        """Fill the column in passes over the table, until a pass finds nothing to write. Return the numbers of rows.

        A batch that meets another session in a deadlock, or the like, is tried again.

        Args:
            convert: function of values of rows that returns which of them have a direction, `(n,)`, and the vectors of
                those, `(k, d)`.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            ConflictError: if a row that was updated has no vector then, as a trigger or a policy may want it, or if its
                value changes whenever its vector is written.
        """
        counts = "SELECT count(*) FILTER (WHERE {wanted}), count(*) FILTER (WHERE ({given}) IS NOT TRUE)"
        total, empty = self._execute(counts + " FROM {table} AS t")[0]
        written, fraction = 0, 0.0

        def attempt(action: Callable[..., Any], *arguments: object) -> Any:
            return retry_conflicts(partial(action, *arguments), lambda message: on_progress(fraction, message))

        for number in range(MAX_PASSES):
            zero, last, changed, limit = 0, None, 0, self.batch_rows
            attempt(self._forget_empty)
            while batch := attempt(self._read_batch, last, limit):
                # PostgreSQL looks at as many rows, however few of them are returned.
                last, limit = batch[-1].key, min(2 * len(batch), self.batch_rows)
                rows = [row for row in batch if row.key not in self.refused]
                fields = self._convert(rows, convert) if rows else []
                pairs = list(zip(rows, fields, strict=True))
                zero += sum(encoded is None and row.key not in self.refused for row, encoded in pairs)
                # A stale vector of a row that gets no other is removed.
                staged = [(row, encoded) for row, encoded in pairs if row.is_stale or encoded is not None]
                if staged:
                    count = attempt(self._write_batch, staged, number > 1)
                    written, changed = written + count, changed + len(staged)
                fraction = min((written + zero + len(self.refused)) / max(total, 1), 1.0)
                on_progress(fraction, f"{written:,} of {max(total, written):,} rows")
            if not changed:
                break
        refused = {", ".join(key): reason for key, reason in self.refused.items()}
        return FillCounts(written, empty, zero, changed > 0, refused)

    def read_filled(self, rows: int) -> tuple[list[Any], Vectors]:
        """Return the values of up to `rows` random rows that have a vector, and these vectors `(n, d)`.

        Values that are small enough for a batch are preferred.
        """
        found = self._execute(
            "SELECT * FROM (SELECT {value} AS value, {into} FROM {table} AS t WHERE {given} AND {into} IS NOT NULL) "
            "AS filled ORDER BY {size} > {bytes} / {count}, random() LIMIT {count}",
            count=sql.Literal(rows),
        )
        values, encoded = [value for value, _ in found], [vector for _, vector in found]
        return values, decode_vectors(encoded, self.into.kind, self.into.dimensions)

    def _convert(self, rows: Sequence[_Row], convert: Convert) -> list[bytes | None]:
        """Return a field for each row: the encoded vector of its value, or None for a row that gets none.

        A row whose value is refused is found by halving, because the error may not name it, and is added to `refused`.
        """
        try:
            directed, vectors = convert([row.value for row in rows])
        except self.refusals as error:
            if len(rows) > 1:
                half = len(rows) // 2
                return self._convert(rows[:half], convert) + self._convert(rows[half:], convert)
            self.refused[rows[0].key] = str(error)
            return [None]
        encoded = iter(encode_vectors(vectors, self.into.kind))
        return [next(encoded) if has_direction else None for has_direction in directed]

    def _forget_empty(self) -> None:
        self._execute(
            "UPDATE {table} AS t SET {into} = NULL, {digest} = NULL WHERE ({given}) IS NOT TRUE AND {into} IS NOT NULL "
            "AND {digest} IS NOT NULL"
        )

    def _read_batch(self, last: Key | None, limit: int) -> list[_Row]:
        """Read up to `limit` rows that lack a vector of their value, after the key `last`, within `MAX_BATCH_BYTES`."""
        after: sql.Composable = sql.SQL("")
        if last is not None:
            values = [
                sql.SQL("CAST({} AS {})").format(sql.Literal(value), kind)
                for value, kind in zip(last, self.kinds, strict=True)
            ]
            after = sql.SQL("AND ({keys}) > ({values})").format(
                keys=self.parts["keys"], values=sql.SQL(", ").join(values)
            )
        # PostgreSQL knows the size of a large text without reading it, so only what is returned takes memory.
        found = self._execute(
            "SELECT {staged}, version, is_stale, value FROM (SELECT *, sum({size}) OVER running AS bytes, "
            "row_number() OVER running AS place FROM (SELECT {texts}, t.xmin::text AS version, "
            "{into} IS NOT NULL AS is_stale, {value} AS value FROM {table} AS t WHERE {wanted} {after} "
            "ORDER BY {keys} LIMIT {limit}) AS next_rows WINDOW running AS (ROWS UNBOUNDED PRECEDING)) AS sized "
            "WHERE place = 1 OR bytes <= {bytes}",
            after=after,
            limit=sql.Literal(limit),
        )
        return [_Row(tuple(key), version, is_stale, value) for *key, version, is_stale, value in found]

    def _write_batch(self, staged: Sequence[tuple[_Row, bytes | None]], again: bool) -> int:
        """Write encoded vectors with the digests of their values in one transaction, and return how many rows got one.

        Rows that were changed meanwhile are left alone.

        Args:
            staged: rows with their fields.
            again: whether these rows had their vectors before in this run, so that their values may change no more.
        """
        with self.connection.transaction():
            copy_rows = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(STAGE)
            with self.connection.cursor() as cursor, cursor.copy(copy_rows) as copy:
                for row, encoded in staged:
                    copy.write_row((*(part.encode() for part in row.key), row.version.encode(), encoded))
            returned = self._execute(
                "UPDATE {table} AS t SET {into} = r.vector, {digest} = {current} FROM {stage} AS r WHERE {same} "
                "RETURNING r.vector IS NOT NULL, (t.{into} IS NULL) = (r.vector IS NULL), t.{digest} = {current}"
            )
            updated = [_UpdatedRow(*fields) for fields in returned]
            kept = sum(bool(row.is_kept) for row in updated)
            (left,) = self._execute("SELECT count(*) FROM {table} AS t JOIN {stage} AS r ON {same}")[0]
            if kept_out := len(updated) - kept + left:
                raise ConflictError(
                    f"PostgreSQL wrote {kept:,} of {kept + kept_out:,} vectors of {self.table.name}: a trigger "
                    "or a policy keeps the others out"
                )
            if again and not all(row.is_of_value for row in updated):
                raise ConflictError(
                    f"a trigger of {self.table.name} changes the value of a row whenever its vector is written, so "
                    "that no vector is of the value: leave triggers out with --disable-triggers, or change that one"
                )
        return sum(bool(row.has_vector) for row in updated)

    def _execute(self, statement: str, **parts: sql.Composable) -> list[tuple[Any, ...]]:
        """Execute a statement with the names of the table in it, and return its rows, if it has any, in binary."""
        composed = sql.SQL(statement).format(**self.parts, **parts)
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(composed)
            return [] if cursor.description is None else cursor.fetchall()
