"""`lathe pgvector`: smaller vectors in a table of PostgreSQL, its move to another encoder, and samples for a fit."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lathe.service.cli.options import ENCODER, ProgressBar, flag, load_encoder, load_state, open_chains
from lathe.service.errors import NotSupportedError
from lathe.service.index.pgvector.column_types import VectorType

if TYPE_CHECKING:
    from lathe.service.index.pgvector.connection import Connection
    from lathe.service.index.reducer import Vectors
    from lathe.training.encoder.text_encoder import TextEncoder

app = typer.Typer(
    help="Reduce the vectors of a table of PostgreSQL with pgvector, or move it to another encoder.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PostgresUrl = Annotated[
    str | None,
    flag(
        "--postgres-url",
        "Connection string. [default: libpq's variables, PGHOST, PGDATABASE, PGUSER, PGPASSWORD …]",
        envvar="LATHE_POSTGRES_URL",
    ),
]
ColumnType = Annotated[
    VectorType, flag("--column-type", "Type of the reduced column; bit has the signs, to be searched by <~>.")
]
TableOption = Annotated[str, flag("--table", "TABLE or SCHEMA.TABLE.")]
OldColumnOption = Annotated[str, flag("--column", "Column of a table's present vectors, which stays.")]
SourceColumn = Annotated[str, flag("--column", "Column of the full vectors, of vector or halfvec.")]


def require_driver() -> None:
    """Raise `NotSupportedError`, which says what to install, if psycopg cannot be imported."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise NotSupportedError(f"PostgreSQL takes psycopg ({error}): pip install 'lathe-service[pgvector]'") from None


def record_column(connection: "Connection", table: object, column: str, chain: str) -> None:
    """Record in the state folder that a chain fills a table's column, so that the chain is not deleted by mistake.
    Print a warning if that fails.
    """
    from lathe.service.chains.usage import record_use

    database = connection.info
    use = f"the column {column} of {table} in the database {database.dbname} on {database.host}"
    _, home = load_state()
    try:
        record_use(home.uses, chain, use)
    except OSError as error:
        reason = error.strerror or error
        typer.echo(f"warning: {home.root} cannot be written ({reason}): it does not know {use}", err=True)


@app.command()
def sample(
    table: TableOption,
    out: Annotated[Path, flag("--out", "FILE.npy, which lathe fit and advise read.")],
    column: SourceColumn = "embedding",
    rows: Annotated[int, flag("--rows", "Number of random rows.", min=1)] = 20_000,
    postgres_url: PostgresUrl = None,
) -> None:
    """Write the vectors of random rows of a table to a file, to fit a chain on them."""
    require_driver()
    from lathe.service.index.pgvector.connection import open_database
    from lathe.service.index.pgvector.filling import find_full_vectors, read_sample
    from lathe.service.index.pgvector.table import get_table, parse_table_name
    from lathe.training.sources.writers import open_writer

    name, written = parse_table_name(table), 0
    with open_database(postgres_url) as connection, open_writer(out) as writer:
        full = find_full_vectors(connection, get_table(connection, name), column)
        for vectors in read_sample(connection, full, rows):
            writer.write([{} for _ in vectors], vectors)
            written += len(vectors)
    typer.echo(f"{out}: {written:,} × {full.dimensions} of {name}.{column}")


@app.command()
def reduce(
    table: TableOption,
    chain: Annotated[str, flag("--chain", "NAME or NAME@VERSION.")],
    column: SourceColumn = "embedding",
    into: Annotated[str, flag("--into", "Column of the reduced vectors; it is added if it is missing.")] = "reduced",
    dimensions: Annotated[int | None, flag("--dimensions", "Fewer dimensions, if the chain is nested.", min=1)] = None,
    column_type: ColumnType = "vector",
    postgres_url: PostgresUrl = None,
) -> None:
    """Reduce a column of full vectors into a smaller column of the same table, in batches, by primary key.

    Rows that have a reduced vector are left alone: the same command continues after an interruption, and reduces rows
    that were added since. Rows without a full vector get none. To reduce a row again, set its reduced vector to NULL.
    """
    require_driver()
    from lathe.service.chains.resolve import ChainResolver
    from lathe.service.index.pgvector.connection import open_database
    from lathe.service.index.pgvector.filling import find_full_vectors, reduce_column
    from lathe.service.index.pgvector.table import (
        VectorColumn,
        describe_space,
        format_index_statement,
        get_table,
        parse_table_name,
        require_searchable,
    )

    name = parse_table_name(table)
    with open_database(postgres_url) as connection, ProgressBar() as progress:
        full = find_full_vectors(connection, get_table(connection, name), column)
        target = ChainResolver(open_chains(write=False)).resolve_for_vectors(full.dimensions, chain, dimensions)
        require_searchable(target.chain, target.quantizer, column_type, "cosine")
        reduced_column = VectorColumn(
            into, column_type, target.dimensions, describe_space(target.space_id, target.chain, column_type)
        )
        record = partial(record_column, connection, name, into, target.chain)
        counts = reduce_column(connection, full, reduced_column, target.apply, record, progress)
        statement = format_index_statement(connection, full.table, reduced_column, "cosine")
    skipped = {"without a vector": counts.empty, "with a zero vector": counts.zero}
    notes = "".join(f"; {count:,} rows {what} left out" for what, count in skipped.items() if count)
    reduction = f"{full.dimensions} → {target.dimensions} through {target.chain}, space {target.space_id}"
    typer.echo(f"{name}.{into}: {counts.written:,} rows{notes}; {reduction}")
    typer.echo(statement)


@app.command()
def move(
    table: TableOption,
    text: Annotated[str, flag("--text", "Column of the texts.")],
    to: Annotated[str, flag("--to", f"The new encoder. {ENCODER}")],
    column: OldColumnOption = "embedding",
    into: Annotated[
        str | None, flag("--into", "Column of the new vectors; added if missing. [default: COLUMN_ENCODER]")
    ] = None,
    chain: Annotated[str, flag("--chain", "NAME or NAME@VERSION of a chain for the new vectors.")] = "none",
    postgres_url: PostgresUrl = None,
) -> None:
    """Encode a table's texts with another encoder into a second column, and build its index, while the first is
    searched.

    It prints the statements of the switch and of the way back. Rows that have a new vector are left alone: the same
    command continues after an interruption, and encodes rows that were added or whose text changed since, which a
    trigger marks. A column that holds vectors of this encoder already, such as the old one on the way back, is
    completed.
    """
    require_table(table, text, column, postgres_url)
    move_table_to(table, text, load_encoder(load_state()[0], to), column, into, chain, postgres_url)


def require_table(table: str, text: str, column: str, postgres_url: str | None) -> None:
    """Raise unless a table has a column of texts and one of present vectors by these names."""
    require_driver()
    from lathe.service.index.pgvector.connection import open_database
    from lathe.service.index.pgvector.move import find_old_column, find_text_column
    from lathe.service.index.pgvector.table import get_table, parse_table_name

    with open_database(postgres_url) as connection:
        found = get_table(connection, parse_table_name(table))
        find_text_column(found, text)
        find_old_column(connection, found, column)


def move_table_to(
    table: str,
    text: str,
    encoder: "TextEncoder",
    column: str = "embedding",
    into: str | None = None,
    chain: str = "none",
    postgres_url: str | None = None,
) -> None:
    """Move a table to vectors by another encoder, with a progress bar, and print what was done and the statements that
    follow. The arguments are those of `move`.
    """
    from lathe.service.chains.names import RAW
    from lathe.service.chains.resolve import ChainResolver
    from lathe.service.index.pgvector.connection import open_database
    from lathe.service.index.pgvector.move import (
        find_old_column,
        find_text_column,
        move_table,
        write_statements,
    )
    from lathe.service.index.pgvector.table import (
        VectorColumn,
        describe_space,
        get_table,
        parse_table_name,
        require_searchable,
    )
    from lathe.training.encoder.text_encoder import with_document_prompt

    name, own = parse_table_name(table), with_document_prompt(encoder)
    target = ChainResolver(open_chains(write=False)).resolve_for_encoder(encoder, chain, None)
    with open_database(postgres_url) as connection, ProgressBar() as progress:
        progress(0.0, "reading the table")
        found = get_table(connection, name)
        texts, old = find_text_column(found, text), find_old_column(connection, found, column)
        kind = old.choose_type(target.dimensions)
        require_searchable(target.chain, target.quantizer, kind, old.metric)
        wanted = VectorColumn(
            into or "_".join([column, *re.findall(r"\w+", encoder.name)]),
            kind,
            target.dimensions,
            describe_space(target.space_id, target.chain, kind),
        )

        def record_chain() -> None:
            if target.chain != RAW:
                record_column(connection, name, wanted.name, target.chain)

        def encode(batch: Sequence[str]) -> "Vectors":
            return target.apply(own.encode(batch).vectors)

        counts = move_table(connection, found, texts, old, wanted, encode, record_chain, progress)
        by = encoder.name if target.chain == RAW else f"{encoder.name} through {target.chain}"
        statements = write_statements(connection, found, old, wanted, by)
    skipped = {"without a text": counts.empty, "whose vector is zero": counts.zero}
    notes = "".join(f"; {count:,} rows {what} left out" for what, count in skipped.items() if count)
    typer.echo(f"{name}.{wanted.name}: {counts.written:,} rows by {by}{notes}; space {target.space_id}")
    typer.echo("\n".join(statements))
