"""Tables and their columns of vectors: descriptions, creation, and what pgvector stores and searches in them.

Vectors are in the binary format in which PostgreSQL's COPY and pgvector exchange them.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from psycopg import sql

from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.service.index.pgvector import MAX_INDEXED, MAX_STORED, VectorType
from lathe.service.index.pgvector.connection import Connection
from lathe.service.index.reducer import Vectors
from lathe.training.settings import Metric
from lathe.transforms.codes import Binary, Quantizer

OPERATOR_CLASSES: dict[Metric, str] = {"cosine": "cosine_ops", "ip": "ip_ops", "l2": "l2_ops"}
"""End of the operator class of an index over `vector` or `halfvec`, by metric."""

TRIGGER = "~lathe_"
"""Begin of the names of this package's triggers.

PostgreSQL fires the triggers of a row in the order of their names, and these must see what an application's triggers
have written.
"""
MAX_NAME_BYTES = 63
"""Maximum bytes of a name in PostgreSQL, which cuts longer ones off."""


@dataclass(frozen=True)
class TableName:
    """Name of a table, spelled as in the catalogue.

    Attributes:
        schema: name of its schema; None for the first one of the search path that has the table.
    """

    schema: str | None
    table: str

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def identifier(self) -> sql.Identifier:
        """Name as a quoted part of a statement."""
        return sql.Identifier(self.table) if self.schema is None else sql.Identifier(self.schema, self.table)


@dataclass(frozen=True)
class Column:
    """Column of a table as the catalogue describes it.

    Attributes:
        kind: name of its type, such as `vector`.
        written: its type as SQL, such as `vector(384)`.
        dimensions: length of the type; None if it has none.
        is_generated: whether PostgreSQL computes its values from other columns.
    """

    name: str
    kind: str
    written: str
    dimensions: int | None
    comment: str | None
    is_generated: bool


@dataclass(frozen=True)
class VectorColumn:
    """Column of vectors as a command wants it.

    Attributes:
        comment: names the space of the vectors.

    Raises:
        BadValueError: if the column has more dimensions than pgvector can store.
    """

    name: str
    kind: VectorType
    dimensions: int
    comment: str

    def __post_init__(self) -> None:
        if self.kind != "bit" and self.dimensions > MAX_STORED:
            raise BadValueError(
                f"pgvector stores at most {MAX_STORED:,} dimensions, and {self.name} has {self.dimensions:,}"
            )


@dataclass(frozen=True)
class PgvectorTable:
    """Existing table.

    Attributes:
        oid: its number in the catalogue.
        schema: name of its schema.
        key: names of the columns of the primary key, in its order; empty without one.
    """

    name: TableName
    oid: int
    schema: str
    columns: dict[str, Column]
    key: tuple[str, ...]


def parse_table_name(written: str) -> TableName:
    """Parse `TABLE` or `SCHEMA.TABLE`, and return the table name.

    Raises:
        BadValueError: if a part is empty or too long.
    """
    schema, dot, table = written.rpartition(".")
    if not table or (dot and not schema):
        raise BadValueError(f"--table takes TABLE or SCHEMA.TABLE, got {written!r}", param="table")
    _require_name_length(table)
    return TableName(schema or None, table)


def _require_name_length(name: str) -> None:
    if len(name.encode()) > MAX_NAME_BYTES:
        raise BadValueError(f"names in PostgreSQL have at most {MAX_NAME_BYTES} bytes: {name!r} has more")


def find_table(connection: Connection, name: TableName) -> PgvectorTable | None:
    """Look up a table in the database. Return its columns and primary key, or None if there is no such table."""
    oid_row = connection.execute(
        "SELECT c.oid, n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relname = %s AND c.relkind IN ('r', 'p') AND "
        "CASE WHEN %s::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = %s END",
        (name.table, name.schema, name.schema),
    ).fetchone()
    if oid_row is None:
        return None
    columns = connection.execute(
        "SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), nullif(a.atttypmod, -1), "
        "col_description(a.attrelid, a.attnum), a.attgenerated <> '' FROM pg_attribute a "
        "JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped "
        "ORDER BY a.attnum",
        oid_row[:1],
    ).fetchall()
    key = connection.execute(
        "SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k (attnum, place) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
        "WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.place",
        oid_row[:1],
    ).fetchall()
    described = {row[0]: Column(*row) for row in columns}
    return PgvectorTable(name, oid_row[0], oid_row[1], described, tuple(row[0] for row in key))


def get_table(connection: Connection, name: TableName) -> PgvectorTable:
    """Look up a table in the database, and return its columns and primary key.

    Raises:
        UnknownNameError: if there is no such table.
    """
    table = find_table(connection, name)
    if table is None:
        raise UnknownNameError(
            f"the database has no table {name}; upper and lower case differ here, and views are not tables",
            param="table",
        )
    return table


def get_column(table: PgvectorTable, name: str, kinds: Sequence[str], what: str, option: str) -> Column:
    """Return a table's column by its name.

    Args:
        table: the table.
        name: name of the column.
        kinds: types that it may have.
        what: what the column holds, for messages.
        option: name of the option that names it, without dashes.

    Raises:
        UnknownNameError: if the table has no such column.
        BadValueError: if it is of another type.
    """
    if name not in table.columns:
        raise UnknownNameError(
            f"the table {table.name} has no column {name}; it has {', '.join(table.columns)}: name that of {what} with "
            f"--{option}"
        )
    column = table.columns[name]
    if column.kind not in kinds:
        raise BadValueError(
            f"the column {name} of {table.name} is of type {column.written}; it must be {' or '.join(kinds)}",
            param=option,
        )
    return column


def describe_space(space_id: str, chain: str, column_type: VectorType) -> str:
    """Return the comment for a column of vectors, which names their space id and chain of transforms."""
    what = "signs of vectors" if column_type == "bit" else "vectors"
    return f"{what} in the space {space_id}, chain {chain} (written by lathe)"


def format_type(kind: VectorType, dimensions: int) -> sql.Composed:
    """Return a type of vectors with its dimensions as SQL, such as `vector(384)`."""
    return sql.SQL("{}({})").format(sql.SQL(kind), sql.Literal(dimensions))


def ensure_column(
    connection: Connection, table: PgvectorTable, wanted: VectorColumn, agrees: Callable[[], bool] = lambda: False
) -> None:
    """Add a column of vectors to a table, or check that the existing one has vectors of the same type and space.

    The column gets a comment that names the space of its vectors.

    Args:
        connection: open connection.
        table: the table.
        wanted: the column.
        agrees: whether a column whose comment names no space has vectors of the wanted one; called if it has any.

    Raises:
        BadValueError: if the column's name is too long for PostgreSQL.
        ConflictError: if the column has another type or number of dimensions, or vectors of another space.
    """
    _require_name_length(wanted.name)
    existing = table.columns.get(wanted.name)
    place = sql.SQL("{}.{}").format(table.name.identifier, sql.Identifier(wanted.name))
    remark = sql.SQL("COMMENT ON COLUMN {} IS {}").format(place, sql.Literal(wanted.comment))
    if existing is None:
        add = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
            table.name.identifier, sql.Identifier(wanted.name), format_type(wanted.kind, wanted.dimensions)
        )
        with connection.transaction():
            connection.execute(add)
            connection.execute(remark)
        return
    label = f"the column {wanted.name} of {table.name}"
    if existing.is_generated:
        raise BadValueError(f"{label} is generated by PostgreSQL, which takes no vectors for it: name another column")
    if (existing.kind, existing.dimensions) != (wanted.kind, wanted.dimensions):
        raise ConflictError(
            f"{label} is of type {existing.written}, and these vectors take {wanted.kind}({wanted.dimensions}): name "
            "another column, or drop this one"
        )
    if existing.comment == wanted.comment:
        return
    if existing.comment is None and (not _has_values(connection, table, wanted.name) or agrees()):
        connection.execute(remark)
        return
    raise ConflictError(
        f"{label} holds vectors of another space ({existing.comment or 'its comment names none'}; these are of "
        f"{wanted.comment}): name another column, or drop it"
    )


def ensure_digests(connection: Connection, table: PgvectorTable, column: str) -> None:
    """Add the column with a digest of what each vector of a column was made of, unless the table has it.

    Raises:
        BadValueError: if the column's name is too long for PostgreSQL.
    """
    digests = name_digests(column)
    _require_name_length(digests)
    if digests not in table.columns:  # asked first, as the statement would wait for all searches
        add = sql.SQL("ALTER TABLE {} ADD COLUMN {} bigint")
        connection.execute(add.format(table.name.identifier, sql.Identifier(digests)))


def name_digests(column: str) -> str:
    """Return the name of the column with a digest of the value that each vector of a column was made of."""
    return f"lathe_digest_{column}"


def find_fired_triggers(connection: Connection, table: PgvectorTable, column: str) -> list[str]:
    """Return the names of the triggers that an update of a column fires in this session, with their functions."""
    rows = connection.execute(
        "SELECT DISTINCT format('%%I (%%s)', g.tgname, g.tgfoid::regproc) FROM pg_trigger g LEFT JOIN pg_attribute a "
        "ON a.attrelid = g.tgrelid AND a.attname = %s WHERE (g.tgrelid = %s OR g.tgrelid IN "
        "(SELECT relid FROM pg_partition_tree(%s))) AND NOT g.tgisinternal AND g.tgtype & 16 > 0 "
        "AND (g.tgattr::text = '' OR a.attnum = ANY (g.tgattr)) AND NOT starts_with(g.tgname, %s) AND g.tgenabled IN "
        "('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END) ORDER BY 1",
        (column, table.oid, table.oid, TRIGGER),
    )
    return [name for (name,) in rows]


def require_searchable(chain: str, quantizer: Quantizer | None, column_type: VectorType, metric: Metric) -> None:
    """Raise `BadValueError` if pgvector cannot search what a chain of transforms gives in a column of `column_type`.

    pgvector compares no codes except signs in a column of type bit, and these only by cosine.
    """
    if quantizer is not None and not (isinstance(quantizer, Binary) and column_type == "bit"):
        advice = "--column-type bit can" if isinstance(quantizer, Binary) else "take a chain without one"
        raise BadValueError(
            f"the chain {chain} ends in a quantizer ({quantizer.kind}), whose codes pgvector cannot compare: {advice}",
            param="chain",
        )
    if column_type == "bit" and metric != "cosine":
        raise BadValueError(f"signs tell only directions: a column of type bit needs cosine, not {metric}")


def format_index_statement(
    connection: Connection,
    table: PgvectorTable,
    column: VectorColumn,
    metric: Metric,
    parameters: Sequence[str] = (),
    concurrently: bool = False,
) -> str:
    """Return the SQL that creates a column's HNSW index, or an SQL comment on why there is nothing to create.

    The column has the index already, or more dimensions than pgvector can index.

    Args:
        connection: open connection.
        table: the table.
        column: the column.
        metric: how its vectors are compared.
        parameters: of the index, such as `m=16`; empty for the defaults.
        concurrently: whether rows can be written meanwhile.
    """
    if column.dimensions > MAX_INDEXED[column.kind]:
        return (
            f"-- no index: pgvector indexes at most {MAX_INDEXED[column.kind]:,} dimensions of {column.kind}, and "
            f"{column.name} has {column.dimensions:,}"
        )
    operators = "bit_hamming_ops" if column.kind == "bit" else f"{column.kind}_{OPERATOR_CLASSES[metric]}"
    for index in find_indexes(connection, table, column.name):
        if index.valid and index.method == "hnsw" and index.operators == operators:
            return f"-- the column {column.name} has the index {index.name}"
    options = f" WITH ({', '.join(parameters)})" if parameters else ""
    statement = sql.SQL("CREATE INDEX {}ON {} USING hnsw ({} {}){};").format(
        sql.SQL("CONCURRENTLY " if concurrently else ""),
        table.name.identifier,
        sql.Identifier(column.name),
        sql.SQL(operators),
        sql.SQL(options),
    )
    return statement.as_string(connection)


@dataclass(frozen=True)
class VectorIndex:
    """Index over all rows of a column of vectors.

    Attributes:
        name: its name, quoted where it must be.
        method: `hnsw` or `ivfflat`.
        operators: its operator class, such as `vector_cosine_ops`.
        parameters: such as `m=16`; empty for the defaults.
        valid: whether its building has ended, so that searches use it.
        expression: indexed expression, such as `((embedding)::halfvec(384))`; None for the column itself.
    """

    name: str
    method: str
    operators: str
    parameters: tuple[str, ...]
    valid: bool
    expression: str | None


def find_indexes(
    connection: Connection, table: PgvectorTable, column: str, expressions: bool = False
) -> list[VectorIndex]:
    """Return the indexes of pgvector over a column and all rows of its table, the oldest first.

    With `expressions`, indexes over an expression of this column alone are among them.
    """
    rows = connection.execute(
        "SELECT i.indexrelid::regclass::text, m.amname, o.opcname, x.reloptions, i.indisvalid, "
        "CASE i.indkey[0] WHEN 0 THEN pg_get_indexdef(i.indexrelid, 1, false) END FROM pg_index i "
        "JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam "
        "JOIN pg_opclass o ON o.oid = i.indclass[0] WHERE i.indrelid = %s "
        "AND m.amname IN ('hnsw', 'ivfflat') AND i.indpred IS NULL AND (SELECT array_agg(DISTINCT a.attname::text) "
        "FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
        "WHERE d.objid = i.indexrelid AND d.classid = 'pg_class'::regclass AND d.refobjid = i.indrelid) = ARRAY[%s] "
        "ORDER BY i.indexrelid",
        (table.oid, column),
    ).fetchall()
    found = [
        VectorIndex(name, method, operators, tuple(parameters or ()), valid, expression)
        for name, method, operators, parameters, valid, expression in rows
    ]
    return [index for index in found if expressions or index.expression is None]


def _has_values(connection: Connection, table: PgvectorTable, column: str) -> bool:
    query = sql.SQL("SELECT 1 FROM {} WHERE {} IS NOT NULL LIMIT 1").format(
        table.name.identifier, sql.Identifier(column)
    )
    return connection.execute(query).fetchone() is not None


NUMBERS: dict[VectorType, np.dtype[Any]] = {"vector": np.dtype(">f4"), "halfvec": np.dtype(">f2")}
"""Dtype of the numbers of each type of floats, in network byte order."""

_HEADER = struct.Struct(">HH")
"""Number of dimensions, and zero: they precede the numbers of `vector` and `halfvec`."""


def encode_vectors(vectors: Vectors, column_type: VectorType) -> list[bytes]:
    """Return each row of vectors `(n, d)` as bytes in PostgreSQL's binary format of the column type.

    A `bit` is 1 where a number is above 0.
    """
    if column_type == "bit":
        length = struct.pack(">i", vectors.shape[1])
        return [length + row.tobytes() for row in np.packbits(vectors > 0, axis=1)]
    header = _HEADER.pack(vectors.shape[1], 0)
    with np.errstate(over="ignore"):  # PostgreSQL refuses inf with a message of its own
        return [header + row.tobytes() for row in vectors.astype(NUMBERS[column_type])]


def decode_vectors(fields: Sequence[bytes], column_type: VectorType, dimensions: int) -> Vectors:
    """Return the float32 vectors `(n, dimensions)` in binary fields of a `vector` or `halfvec` column.

    Raises:
        BadValueError: if one has another number of dimensions; the error's `param` is its position in `fields`.
    """
    for position, field in enumerate(fields):
        field_dimensions = _HEADER.unpack_from(field)[0]
        if field_dimensions != dimensions:
            raise BadValueError(f"a vector of {field_dimensions} dimensions, not {dimensions}", param=str(position))
    numbers = np.frombuffer(b"".join(field[_HEADER.size :] for field in fields), NUMBERS[column_type])
    return np.asarray(numbers.reshape(len(fields), dimensions), np.float32)
