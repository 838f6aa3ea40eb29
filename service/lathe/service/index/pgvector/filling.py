"""Filling of a column of vectors from another column of the same PostgreSQL table, and samples of vectors for a fit.

    primary key │ source column          │ column of vectors  │ column of digests
    ────────────┼────────────────────────┼────────────────────┼──────────────────────────────
    key         │ value ──── convert ────┼─► vector           │ hash of the converted value

A value is a full vector, which a chain of transforms reduces, or a text, which is encoded (see
`lathe.service.index.pgvector.move`). Empty rows have NULL or a blank text. A vector is stale if the digest differs from
the hash of the present value. A row needs a vector if it is not empty, and has no vector or a stale one.

`ColumnFilling.fill` makes passes over the table. A pass reads the rows that need a vector, batch by batch:

    _read_batch ──► _convert ──► _write_batch
    rows by key     vectors      COPY into a temporary table, then UPDATE the rows that did not change meanwhile
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
"""Maximum bytes of the values of a batch, unless a single value is larger."""
MAX_PASSES = 20
"""Maximum number of passes over a table. Rows that still change then are left to the next run."""
STAGE = sql.Identifier(f"lathe_vectors_{secrets.token_hex(6)}")
"""Temporary table for the vectors of a batch. Its name is random, as it would hide a user's table of the same name."""

Key = tuple[str, ...]
"""Values of the primary key of a row, as text."""
Mask = NDArray[np.bool_]
Convert = Callable[[Sequence[Any]], tuple[Mask, Vectors]]
"""Function that converts n values to a mask `(n,)` of the nonzero vectors, and the nonzero vectors `(k, d)`."""


@dataclass(frozen=True)
class FillCounts:
    """Numbers of rows of a filling.

    Attributes:
        written: rows that got a vector.
        empty: rows without a value, or with a blank text.
        zero: rows whose vector is zero and was not written.
        changing: whether rows changed in each of `MAX_PASSES` passes, so that some may have no vector yet.
        refused: why the value of a row cannot be converted, by the key of the row.
    """

    written: int
    empty: int
    zero: int
    changing: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)


class _Row(NamedTuple):
    """Row that needs a vector, as it was read.

    Attributes:
        key: primary key.
        version: number of the transaction that wrote this version of the row.
        is_stale: whether the row has the vector of an earlier value.
        value: value to convert.
    """

    key: Key
    version: str
    is_stale: bool
    value: Any


class _UpdatedRow(NamedTuple):
    """Row after its vector was written or removed, and after triggers and policies ran. NULL in SQL is None.

    Attributes:
        has_new_vector: whether a vector was written; otherwise a stale vector was removed.
        is_as_written: whether the row now has a vector if one was written, and none if it was removed.
        digest_matches: whether the digest that was written is the hash of the row's value now.
    """

    has_new_vector: bool
    is_as_written: bool | None
    digest_matches: bool | None


@dataclass(frozen=True)
class FullVectors:
    """Column of full vectors in a table with a primary key.

    Attributes:
        table: the table.
        column: the column.
        kind: type of its vectors.
        dimensions: dimensions of its vectors.
    """

    table: PgvectorTable
    column: Column
    kind: VectorType
    dimensions: int


def find_full_vectors(connection: Connection, table: PgvectorTable, name: str, option: str = "column") -> FullVectors:
    """Find a table's column of full vectors, with the type and dimensions of its vectors.

    If the column's type declares no dimensions, the dimensions of its first vector count. Errors name `option`, the
    command's option without dashes.

    Raises:
        UnknownNameError: if the table has no such column.
        BadValueError: if the column is not of type `vector` or `halfvec`, or declares no dimensions and holds no
            vector.
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
    connection: Connection, full: FullVectors, rows: int, expressions: Sequence[sql.Composable] = ()
) -> Iterator[tuple[Vectors, list[tuple[Any, ...]]]]:
    """Sample up to `rows` rows of a table that have a vector, and yield batches of their vectors and further values.

    Args:
        connection: open connection.
        full: column of vectors.
        rows: maximum number of rows.
        expressions: SQL expressions of a row whose values are yielded with the vector.

    Yields:
        The vectors `(n, d)` of a batch, and for each row a tuple of the values of the expressions.
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
        values=sql.SQL(", ").join([sql.Identifier(full.column.name), *expressions]),
    )
    with connection.transaction(), connection.cursor("lathe_sample", binary=True) as cursor:
        cursor.execute(query)
        while batch := cursor.fetchmany(REDUCE_ROWS):
            yield decode_vectors([row[0] for row in batch], full.kind, full.dimensions), [row[1:] for row in batch]


def reduce_column(
    connection: Connection,
    full: FullVectors,
    into: VectorColumn,
    reduce: Callable[[Vectors], Vectors],
    on_ready: Callable[[], object],
    on_progress: Progress,
) -> FillCounts:
    """Reduce a column's vectors into another column, and count the rows that are written and left out.

    Rows are reduced if they have no reduced vector, or if their full vector has changed since. Zero vectors are left
    out. So are vectors with other dimensions than the column and vectors whose reduced vector is not finite, which
    `refused` of the counts lists.

    Args:
        connection: open connection.
        full: column of full vectors.
        into: column of reduced vectors, created if it is missing.
        reduce: maps full vectors `(n, d)` to reduced vectors `(n, k)`.
        on_ready: called once when the column exists, before the first vector is written.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        BadValueError: as `ColumnFilling`.
        ConflictError: as `ensure_column` and `ColumnFilling.fill`.
    """

    def convert(encoded_vectors: Sequence[bytes]) -> tuple[Mask, Vectors]:
        vectors = decode_vectors(encoded_vectors, full.kind, full.dimensions)
        nonzero = np.asarray(vectors.any(axis=1))
        reduced = reduce(vectors[nonzero]) if nonzero.any() else np.empty((0, into.dimensions), np.float32)
        if not np.isfinite(reduced).all():
            raise BadValueError("a vector is too large: the chain's output overflows float32")
        return nonzero, reduced

    filling = ColumnFilling(connection, full.table, full.column, into, REDUCE_ROWS, (BadValueError,))
    with connection.transaction():
        ensure_column(connection, full.table, into)
        ensure_digests(connection, full.table, into.name)
    on_ready()
    return filling.fill(convert, on_progress)


class ColumnFilling:
    """Filling of a column of vectors from another column of the same table.

    Rows are filled that have no vector, or a stale vector. Rows are read in the order of the primary key, converted,
    and written, one transaction for each batch. No row is locked while it is converted: a row that another session
    changes meanwhile is not written, and is read again in the next pass. A second run therefore continues after the
    written rows, and fills rows that were added or changed since.

    Args:
        connection: open connection.
        table: the table.
        source: column of the values: `vector` or `halfvec`, which is read in binary, or texts.
        into: column of vectors; it and its digests must exist before `fill`.
        batch_rows: maximum number of rows of a batch.
        refusals: classes of errors by which `convert` refuses a value. Its row is left out, and other rows are filled.

    Attributes:
        refused: why rows were refused, by their keys. They are not tried again.
        parts: parts of SQL statements by name, for `_execute`.

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
            raise BadValueError(f"the table {table.name} has no primary key, which is needed: add one", "table")
        self.connection = connection
        self.table = table
        self.into = into
        self.batch_rows = batch_rows
        self.refusals = refusals
        self.refused: dict[Key, str] = {}
        comma = sql.SQL(", ")
        # In the statements, t is the user's table and r the temporary one, with the key columns key0, key1 …
        self.keys = [sql.Identifier("t", name) for name in table.key]  # ORDER BY would take a bare name for the text
        self.kinds = [sql.SQL(table.columns[name].written) for name in table.key]  # types as the catalogue spells them
        staged_keys = [sql.Identifier(f"key{position}") for position in range(len(self.keys))]
        digest = sql.Identifier("t", name_digests(into.name))
        value: sql.Composable = sql.Identifier("t", source.name)
        if source.kind in FLOAT_TYPES:
            has_value = sql.SQL("{} IS NOT NULL").format(value)
            value_hash = sql.SQL("hash_array_extended(CAST({} AS real[]), 0)").format(value)
            stale, size = "{} IS DISTINCT FROM {}", "pg_column_size(value)"
        else:
            value = sql.SQL("CAST({} AS text)").format(value)
            # For NULL this is NULL, not true. The beginning decides for nearly all texts, so large ones are not read.
            blank = "E' \\t\\r\\n'"
            has_value = sql.SQL(f"(btrim(left({{0}}, 99), {blank}) <> '' OR btrim({{0}}, {blank}) <> '')").format(value)
            value_hash = sql.SQL('hashtextextended({} COLLATE "C", 0)').format(value)  # other collations ignore case
            # A vector without a digest is not stale: the application wrote it, or the column is an old one.
            stale, size = "{} <> {}", "octet_length(value)"
        self.parts: dict[str, sql.Composable] = {
            "table": table.name.identifier,
            "value": value,
            "has_value": has_value,
            "value_hash": value_hash,
            "needs_vector": sql.SQL("{} AND ({} IS NULL OR {})").format(
                has_value, sql.Identifier("t", into.name), sql.SQL(stale).format(digest, value_hash)
            ),
            "size": sql.SQL(size),
            "into": sql.Identifier(into.name),
            "digest": sql.Identifier(name_digests(into.name)),
            "kind": format_type(into.kind, into.dimensions),
            "stage": STAGE,
            "keys": comma.join(self.keys),
            "keys_as_text": comma.join(
                sql.SQL("CAST({} AS text) AS {}").format(*pair) for pair in zip(self.keys, staged_keys, strict=True)
            ),
            "staged_keys": comma.join(staged_keys),
            "key_columns": comma.join(sql.SQL("{} text").format(name) for name in staged_keys),
            # xmin is the transaction that wrote this version of the row, so any change gives another xmin.
            "unchanged": sql.SQL(" AND ").join(
                sql.SQL("{} = CAST(r.{} AS {})").format(*pair)
                for pair in zip(self.keys, staged_keys, self.kinds, strict=True)
            )
            + sql.SQL(" AND t.xmin::text = r.version"),
            "max_bytes": sql.Literal(MAX_BATCH_BYTES),
        }
        self._execute(
            "CREATE TEMP TABLE IF NOT EXISTS {stage} ({key_columns}, version text, vector {kind}) ON COMMIT DELETE ROWS"
        )

    def fill(self, convert: Convert, on_progress: Progress) -> FillCounts:
        """Fill the column in passes over the table, until a pass finds nothing to write, and count the rows.

        A batch that fails because of another session, as in a deadlock, is tried again. Vectors of rows whose value was
        emptied are removed.

        Args:
            convert: converts n values to a mask `(n,)` of the nonzero vectors, and the nonzero vectors `(k, d)`.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            ConflictError: if a written vector is missing from its row, as because of a trigger or a policy, or if the
                value of a row changes whenever its vector is written.
        """
        counts = "SELECT count(*) FILTER (WHERE {needs_vector}), count(*) FILTER (WHERE ({has_value}) IS NOT TRUE)"
        total, empty = self._execute(counts + " FROM {table} AS t")[0]
        written, fraction = 0, 0.0

        def retry(action: Callable[..., Any], *arguments: object) -> Any:
            return retry_conflicts(partial(action, *arguments), lambda message: on_progress(fraction, message))

        for number in range(MAX_PASSES):
            zero, last_key, changed, limit = 0, None, 0, self.batch_rows
            retry(self._clear_empty_rows)
            while batch := retry(self._read_batch, last_key, limit):
                # After a batch cut short by its bytes, fewer rows are asked for: PostgreSQL reads all `limit` rows.
                last_key, limit = batch[-1].key, min(2 * len(batch), self.batch_rows)
                rows = [row for row in batch if row.key not in self.refused]
                vectors = self._convert(rows, convert) if rows else []
                pairs = list(zip(rows, vectors, strict=True))
                zero += sum(vector is None and row.key not in self.refused for row, vector in pairs)
                # A stale vector is removed if the row gets no new vector.
                staged = [(row, vector) for row, vector in pairs if row.is_stale or vector is not None]
                if staged:
                    count = retry(self._write_batch, staged, number > 1)
                    written, changed = written + count, changed + len(staged)
                fraction = min((written + zero + len(self.refused)) / max(total, 1), 1.0)
                on_progress(fraction, f"{written:,} of {max(total, written):,} rows")
            if not changed:
                break
        refused = {", ".join(key): reason for key, reason in self.refused.items()}
        return FillCounts(written, empty, zero, changed > 0, refused)

    def read_filled(self, rows: int) -> tuple[list[Any], Vectors]:
        """Read the values of up to `rows` random rows that have a vector, and these vectors `(n, d)`.

        Rows with small values are preferred, so that the values fit in a batch.
        """
        filled = self._execute(
            "SELECT * FROM (SELECT {value} AS value, {into} FROM {table} AS t WHERE {has_value} "
            "AND {into} IS NOT NULL) AS filled ORDER BY {size} > {max_bytes} / {count}, random() LIMIT {count}",
            count=sql.Literal(rows),
        )
        values, encoded = [value for value, _ in filled], [vector for _, vector in filled]
        return values, decode_vectors(encoded, self.into.kind, self.into.dimensions)

    def _convert(self, rows: Sequence[_Row], convert: Convert) -> list[bytes | None]:
        """Convert the values of rows, and return the encoded vector of each row, or None for a row that gets none.

        If a value is refused, each half of the rows is converted alone, because the error may not name the row. The
        refused row is added to `refused`.
        """
        try:
            nonzero, vectors = convert([row.value for row in rows])
        except self.refusals as error:
            if len(rows) > 1:
                half = len(rows) // 2
                return self._convert(rows[:half], convert) + self._convert(rows[half:], convert)
            self.refused[rows[0].key] = str(error)
            return [None]
        encoded = iter(encode_vectors(vectors, self.into.kind))
        return [next(encoded) if is_nonzero else None for is_nonzero in nonzero]

    def _clear_empty_rows(self) -> None:
        """Remove the vectors of rows that have no value any more, unless the application wrote the vector."""
        self._execute(
            "UPDATE {table} AS t SET {into} = NULL, {digest} = NULL WHERE ({has_value}) IS NOT TRUE "
            "AND {into} IS NOT NULL AND {digest} IS NOT NULL"
        )

    def _read_batch(self, last_key: Key | None, limit: int) -> list[_Row]:
        """Read up to `limit` rows that need a vector, in key order after `last_key`, within `MAX_BATCH_BYTES`.

        A `last_key` of None begins with the first row. A single larger value is read alone.
        """
        after: sql.Composable = sql.SQL("")
        if last_key is not None:
            values = [
                sql.SQL("CAST({} AS {})").format(sql.Literal(value), kind)
                for value, kind in zip(last_key, self.kinds, strict=True)
            ]
            after = sql.SQL("AND ({keys}) > ({values})").format(
                keys=self.parts["keys"], values=sql.SQL(", ").join(values)
            )
        # PostgreSQL knows the size of a large text without reading it, so only the returned values take memory.
        rows = self._execute(
            "SELECT {staged_keys}, version, is_stale, value FROM (SELECT *, sum({size}) OVER running AS bytes, "
            "row_number() OVER running AS place FROM (SELECT {keys_as_text}, t.xmin::text AS version, "
            "{into} IS NOT NULL AS is_stale, {value} AS value FROM {table} AS t WHERE {needs_vector} {after} "
            "ORDER BY {keys} LIMIT {limit}) AS next_rows WINDOW running AS (ROWS UNBOUNDED PRECEDING)) AS sized "
            "WHERE place = 1 OR bytes <= {max_bytes}",
            after=after,
            limit=sql.Literal(limit),
        )
        return [_Row(tuple(key), version, is_stale, value) for *key, version, is_stale, value in rows]

    def _write_batch(self, staged: Sequence[tuple[_Row, bytes | None]], was_written: bool) -> int:
        """Write encoded vectors and digests of their values in one transaction, and count the rows that got a vector.

        A vector that is missing from its row afterwards raises. Rows that were changed since they were read are not
        written.

        Args:
            staged: rows with their encoded vectors; None removes a stale vector.
            was_written: whether these rows already got a vector in an earlier pass of this run, so that a digest that
                does not match means that writing changes the value.

        Raises:
            ConflictError: if a row does not have the vector that was written, or with `was_written` if the digest of a
                row does not match its value.
        """
        with self.connection.transaction():
            copy_rows = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(STAGE)
            with self.connection.cursor() as cursor, cursor.copy(copy_rows) as copy:
                for row, vector in staged:
                    copy.write_row((*(part.encode() for part in row.key), row.version.encode(), vector))
            returned = self._execute(
                "UPDATE {table} AS t SET {into} = r.vector, {digest} = {value_hash} FROM {stage} AS r WHERE {unchanged}"
                " RETURNING r.vector IS NOT NULL, (t.{into} IS NULL) = (r.vector IS NULL), t.{digest} = {value_hash}"
            )
            updated = [_UpdatedRow(*columns) for columns in returned]
            kept = sum(bool(row.is_as_written) for row in updated)
            # An updated row has another xmin, so rows that still have the old version were not updated.
            (not_updated,) = self._execute("SELECT count(*) FROM {table} AS t JOIN {stage} AS r ON {unchanged}")[0]
            if lost := len(updated) - kept + not_updated:
                raise ConflictError(
                    f"PostgreSQL wrote {kept:,} of {kept + lost:,} vectors of {self.table.name}: a trigger or a "
                    "policy prevents the others; leave triggers out with --disable-triggers, or change the policy"
                )
            if was_written and not all(row.digest_matches for row in updated):
                raise ConflictError(
                    f"a trigger of {self.table.name} changes the value of a row whenever its vector is written, so "
                    "the vector never belongs to the value: leave triggers out with --disable-triggers, or change it"
                )
        return sum(bool(row.has_new_vector) for row in updated)

    def _execute(self, statement: str, **parts: sql.Composable) -> list[tuple[Any, ...]]:
        """Execute a statement with `parts` and further parts filled in, and return its rows in binary.

        Without rows, [].
        """
        composed = sql.SQL(statement).format(**self.parts, **parts)
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(composed)
            return [] if cursor.description is None else cursor.fetchall()
