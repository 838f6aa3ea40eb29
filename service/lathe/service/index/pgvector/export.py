"""Export of the items of an index to a table, batch by batch, of which a second one changes only what differs."""

import re
import secrets
from collections.abc import Callable, Iterable, Sequence

from psycopg import sql

from lathe.service.chains.names import RAW
from lathe.service.errors import BadValueError, ConflictError
from lathe.service.index.backend import StoredItems
from lathe.service.index.pgvector import VectorType
from lathe.service.index.pgvector.connection import Connection
from lathe.service.index.pgvector.table import (
    PgvectorTable,
    TableName,
    VectorColumn,
    describe_space,
    encode_vectors,
    ensure_column,
    find_table,
    format_type,
    get_table,
    require_searchable,
)
from lathe.service.index.protocol import Artifact, Payload
from lathe.service.index.reducer import Reducer, Vectors
from lathe.service.index.spec import IndexSpec, Originals
from lathe.transforms.progress import Progress

ID, METADATA, EMBEDDING, REDUCED = "id", "metadata", "embedding", "reduced"
"""Columns of a table that an export creates: the last two hold the original and the reduced vectors."""
ORIGINAL_TYPES: dict[Originals, VectorType] = {"float32": "vector", "float16": "halfvec"}
"""Type of the column of original vectors, by their dtype."""
STAGE = sql.Identifier(f"lathe_rows_{secrets.token_hex(6)}")
"""Temporary table that takes a batch, before it is written to the user's table in one statement."""
KEPT = sql.Identifier(f"lathe_ids_{secrets.token_hex(6)}")
"""Temporary table with the ids of all items written, if the others are deleted."""
JSONB_VERSION = b"\x01"
"""First byte of a field of `jsonb` in binary format."""
NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""Pattern of a NUL in JSON, which no text of PostgreSQL can hold."""


_ExportedColumn = tuple[VectorColumn, Callable[[Vectors], Vectors]]
"""Column of vectors of an export, and the function that maps original vectors `(n, d)` to the column's vectors."""


def plan_columns(
    spec: IndexSpec, artifact: Artifact, column_type: VectorType, originals: Originals
) -> list[_ExportedColumn]:
    """Return an export's columns of vectors, each with the function that makes them from original vectors.

    The columns are `embedding` of original vectors, `reduced` by the chain, or both. Without a chain, `reduced` is left
    out if it is of type vector, because it would repeat the originals.

    Args:
        spec: settings of the index.
        artifact: manifest and tensors of its chain of transforms; None for raw vectors.
        column_type: type of the column `reduced`.
        originals: dtype of the column `embedding`; none leaves it out.

    Raises:
        BadValueError: if pgvector cannot store or search what the chain gives, or no column would be left.
    """
    reducer = Reducer(spec, artifact)
    require_searchable(spec.chain, reducer.quantizer, column_type, spec.metric)
    columns: list[_ExportedColumn] = []
    if originals != "none":
        kind = ORIGINAL_TYPES[originals]
        comment = describe_space(spec.raw_space_id, RAW, kind)
        columns.append((VectorColumn(EMBEDDING, kind, spec.width, comment), lambda vectors: vectors))
    if artifact is not None or column_type != "vector":
        comment = describe_space(spec.space_id, spec.chain, column_type)
        wanted = VectorColumn(REDUCED, column_type, spec.dimensions, comment)
        columns.append((wanted, reducer.reduce_documents))
    if not columns:
        raise BadValueError("an index without a chain has only its original vectors: leave --originals none out")
    return columns


def export_items(
    connection: Connection,
    name: TableName,
    exported: Sequence[_ExportedColumn],
    items: StoredItems,
    on_ready: Callable[[], object],
    on_progress: Progress,
    delete_others: bool = False,
    skip_nul: bool = False,
) -> tuple[int, int, list[str], int]:
    """Write an index's items to a table, and return how many are in it, were changed, left out and deleted.

    The columns are `id`, `metadata` and the columns of vectors. The table is created if it is missing. Rows with an id
    of the index are replaced if they differ. Each batch is a transaction.

    Args:
        connection: open connection.
        name: name of the table.
        exported: columns of vectors.
        items: items of the index.
        on_ready: called once the columns are there and take these vectors, before the first is written.
        on_progress: called with progress in [0, 1] and a message.
        delete_others: whether rows with other ids are deleted, after all items are written; else they are left alone.
        skip_nul: whether items with a NUL in their metadata are left out, and their rows left alone.

    Returns:
        Number of items in the table now, number of rows that were new or differed, ids of items left out, and number of
            rows deleted.

    Raises:
        ConflictError: if the table exists with another key, or with vectors of another type or space.
        BadValueError: if an item has a NUL and is not to be left out.
    """
    columns = [column for column, _ in exported]
    table = _ensure_table(connection, name)
    for column in columns:
        ensure_column(connection, table, column)
    on_ready()
    _create_stage(connection, columns)
    if delete_others:
        connection.execute(sql.SQL("CREATE TEMP TABLE {} (id text PRIMARY KEY)").format(KEPT))
    upsert = _build_upsert(name, [ID, METADATA, *(column.name for column in columns)])
    done = changed = 0
    skipped: list[str] = []
    for payloads, originals in items.batches:
        odd = {item for item, metadata in payloads if metadata is not None and NUL.search(metadata)}
        if odd and not skip_nul:
            raise BadValueError(
                f"the metadata of the item {min(odd)!r} hold a NUL character, which PostgreSQL cannot store: replace "
                "the item, or leave such items out with --skip-nul"
            )
        fields = [encode_vectors(map_originals(originals), column.kind) for column, map_originals in exported]
        rows = [row for row in zip(payloads, *fields, strict=True) if row[0][0] not in odd]
        with connection.transaction():
            # COPY cannot update rows that exist, so it fills a temporary table that one statement merges.
            _copy_batch(connection, rows)
            changed += connection.execute(upsert).rowcount
            if delete_others:
                ids = [item for item, _ in payloads]
                connection.execute(sql.SQL("INSERT INTO {} SELECT unnest(%s::text[])").format(KEPT), (ids,))
        skipped += odd
        done += len(payloads)
        on_progress(min(done / max(items.count, 1), 1.0), f"{done:,} of {items.count:,} items")
    deleted = _delete_others(connection, name) if delete_others else 0
    return done - len(skipped), changed, sorted(skipped), deleted


def _ensure_table(connection: Connection, name: TableName) -> PgvectorTable:
    """Return the table of that name. If it is missing, create it with the columns `id` and `metadata`.

    Raises:
        ConflictError: if the table that is there has no text column `id` as its key, or no `metadata` of jsonb.
    """
    table = find_table(connection, name)
    if table is None:
        create = sql.SQL("CREATE TABLE {} (id text PRIMARY KEY, metadata jsonb)").format(name.identifier)
        connection.execute(create)
        return get_table(connection, name)
    kinds = {column.name: column.kind for column in table.columns.values()}
    if table.key != (ID,) or kinds[ID] not in ("text", "varchar") or kinds.get(METADATA) != "jsonb":
        raise ConflictError(
            f"the table {table.name} exists without the columns of an export, id text PRIMARY KEY and metadata jsonb: "
            "name another table with --table"
        )
    return table


def _create_stage(connection: Connection, columns: Sequence[VectorColumn]) -> None:
    declared = [
        sql.SQL("{} {}").format(sql.Identifier(column.name), format_type(column.kind, column.dimensions))
        for column in columns
    ]
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ({}) ON COMMIT DELETE ROWS").format(
            STAGE, sql.SQL(", ").join([sql.SQL("id text"), sql.SQL("metadata jsonb"), *declared])
        )
    )


def _copy_batch(connection: Connection, rows: Iterable[tuple[Payload, *tuple[bytes, ...]]]) -> None:
    """Copy rows (id and metadata, then encoded vectors) to the temporary table."""
    with (
        connection.cursor() as cursor,
        cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(STAGE)) as copy,
    ):
        for (item, metadata), *fields in rows:
            content = None if metadata is None else JSONB_VERSION + metadata
            copy.write_row((item.encode(), content, *fields))


def _delete_others(connection: Connection, name: TableName) -> int:
    delete = sql.SQL("DELETE FROM {} AS old WHERE NOT EXISTS (SELECT FROM {} AS kept WHERE kept.id = old.id)")
    return connection.execute(delete.format(name.identifier, KEPT)).rowcount


def _build_upsert(name: TableName, columns: Sequence[str]) -> sql.Composed:
    """Return the SQL that inserts or replaces rows of the user's table from the temporary table where they differ."""
    # Rows that are equal are left alone: PostgreSQL would write a new version of each.
    names = [sql.Identifier(column) for column in columns]
    return sql.SQL(
        "INSERT INTO {table} AS old ({names}) SELECT {names} FROM {stage} ON CONFLICT (id) DO UPDATE SET {assigned} "
        "WHERE ({old}) IS DISTINCT FROM ({new})"
    ).format(
        table=name.identifier,
        stage=STAGE,
        names=sql.SQL(", ").join(names),
        assigned=sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in names[1:]),
        old=sql.SQL(", ").join(sql.SQL("old.{}").format(column) for column in names[1:]),
        new=sql.SQL(", ").join(sql.SQL("EXCLUDED.{}").format(column) for column in names[1:]),
    )
