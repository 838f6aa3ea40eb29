"""`lathe pgvector`: smaller vectors in a table of PostgreSQL, its move to another encoder, and samples for a fit.

sample   writes vectors of random rows to a file, to fit a chain of transforms on them
reduce   fills a second column with vectors that a chain made of the first
move     fills a second column with vectors of the texts by another encoder, and builds its index; `move_table_to` does
         the same for a trained encoder

The work is done by `lathe.service.index.pgvector`; this module opens the database, and prints counts, warnings and SQL.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lathe.service.cli.options import ENCODER, ProgressBar, flag, load_encoder, load_state, open_chains
from lathe.service.errors import NotSupportedError
from lathe.service.index.pgvector import VectorType

if TYPE_CHECKING:
    from lathe.service.index.pgvector.connection import Connection
    from lathe.service.index.pgvector.filling import FillCounts
    from lathe.service.index.pgvector.table import PgvectorTable
    from lathe.service.index.reducer import Vectors
    from lathe.training.encoder.text_encoder import TextEncoder

app = typer.Typer(
    help="Reduce the vectors of a table of PostgreSQL with pgvector, or move it to another encoder.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MAX_REFUSED = 20
"""Maximum number of refused rows that are named at the end."""

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
Skip = Annotated[bool, flag("--skip", "Leave out rows whose value is refused without an exit status of 1.")]
DisableTriggers = Annotated[
    bool, flag("--disable-triggers", "Fire no trigger for rows that are written (session_replication_role = replica).")
]
SourceColumn = Annotated[str, flag("--column", "Column of the full vectors, of vector or halfvec.")]


def require_driver() -> None:
    """Raise `NotSupportedError` if psycopg cannot be imported. The message says what to install."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise NotSupportedError(f"PostgreSQL needs psycopg ({error}): pip install 'lathe-service[pgvector]'") from None


def record_column(connection: "Connection", table: object, column: str, chain: str) -> None:
    """Record in the state folder that a chain fills a table's column, so that the chain is not deleted by mistake.

    If the state folder cannot be written, a warning is printed and nothing is raised.
    """
    from lathe.service.chains.usage import record_use

    database = connection.info
    use = f"the column {column} of {table} in the database {database.dbname} on {database.host}"
    _, home = load_state()
    try:
        record_use(home.uses, chain, use)
    except OSError as error:
        reason = error.strerror or error
        typer.echo(f"warning: {home.root} cannot be written ({reason}), so {use} is not recorded", err=True)


def _announce_triggers(connection: "Connection", table: "PgvectorTable", column: str, disable: bool) -> None:
    """Print a warning with the triggers that fire for each written row. With `disable`, triggers are disabled first."""
    from lathe.service.index.pgvector.connection import disable_triggers
    from lathe.service.index.pgvector.table import find_fired_triggers

    if disable:
        disable_triggers(connection)
    if fired := find_fired_triggers(connection, table, column):
        advice = "" if disable else "; --disable-triggers leaves them out"
        typer.echo(f"warning: each row that is written can fire {', '.join(fired)} of {table.name}{advice}", err=True)


def _describe_left_out(counts: "FillCounts", reasons: dict[str, int]) -> str:
    """Format how many rows were left out, by reason, as the end of a sentence. Reasons without rows are not named.

    Args:
        counts: counts of the filling, whose refused rows are added to the reasons.
        reasons: number of rows by reason, changed in place.
    """
    reasons |= {"that are refused": len(counts.refused)}
    changing = "; some rows may lack a vector, as rows change all the time: run it again" if counts.changing else ""
    return "".join(f"; {count:,} rows {what} left out" for what, count in reasons.items() if count) + changing


def _report_refused(counts: "FillCounts", skip: bool) -> None:
    """Print why rows were refused, by their keys, then exit with status 1 unless `skip` is true or none was refused."""
    for key, reason in list(counts.refused.items())[:MAX_REFUSED]:
        # An encoder's error names the text of a batch as "input 0"; here the row's text was the only one.
        about_input = reason.startswith("input 0")
        sentence = reason.removeprefix("input 0").strip()
        typer.echo(f"the row {key} {sentence}" if about_input else f"the row {key}: {sentence}", err=True)
    if len(counts.refused) > MAX_REFUSED:
        typer.echo(f"and {len(counts.refused) - MAX_REFUSED:,} more rows", err=True)
    if counts.refused and not skip:
        raise typer.Exit(1)


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
        for vectors, _ in read_sample(connection, full, rows):
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
    skip: Skip = False,
    disable_triggers: DisableTriggers = False,
    postgres_url: PostgresUrl = None,
) -> None:
    """Reduce a column of full vectors into a smaller column of the same table, in batches, by primary key.

    Rows that have a reduced vector are left alone: the same command continues after an interruption, and reduces rows
    that were added or whose full vector changed since, which a column of digests tells. Rows without a full vector get
    none.
    """
    require_driver()
    from lathe.service.chains.resolve import ChainResolver
    from lathe.service.index.pgvector import filling
    from lathe.service.index.pgvector import table as tables
    from lathe.service.index.pgvector.connection import open_database

    name = tables.parse_table_name(table)
    with open_database(postgres_url) as connection, ProgressBar() as progress:
        full = filling.find_full_vectors(connection, tables.get_table(connection, name), column)
        target = ChainResolver(open_chains(write=False)).resolve_for_vectors(full.dimensions, chain, dimensions)
        tables.require_searchable(target.chain, target.quantizer, column_type, "cosine")
        comment = tables.describe_space(target.space_id, target.chain, column_type)
        reduced_column = tables.VectorColumn(into, column_type, target.dimensions, comment)
        _announce_triggers(connection, full.table, into, disable_triggers)
        record = partial(record_column, connection, name, into, target.chain)
        counts = filling.reduce_column(connection, full, reduced_column, target.apply, record, progress)
        statement = tables.format_index_statement(connection, full.table, reduced_column, "cosine")
    notes = _describe_left_out(counts, {"without a vector": counts.empty, "with a zero vector": counts.zero})
    reduction = f"{full.dimensions} → {target.dimensions} through {target.chain}, space {target.space_id}"
    typer.echo(f"{name}.{into}: {counts.written:,} rows{notes}; {reduction}")
    typer.echo(statement)
    _report_refused(counts, skip)


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
    skip: Skip = False,
    disable_triggers: DisableTriggers = False,
    postgres_url: PostgresUrl = None,
) -> None:
    """Encode a table's texts with another encoder into a second column while the first column is searched.

    The index of the second column is built, too. The command prints the SQL statements that switch to the new column,
    and the statements that go back. Rows that have a new vector are left alone: the same command continues after an
    interruption, and encodes rows that were added or whose text changed since, which a column of digests tells. A
    column that holds vectors of this encoder already, such as the old one when you go back, is completed.
    """
    require_table(table, text, column, postgres_url)
    encoder = load_encoder(load_state()[0], to)
    move_table_to(table, text, encoder, column, into, chain, postgres_url, skip, disable_triggers)


def require_table(table: str, text: str, column: str, postgres_url: str | None) -> None:
    """Raise an error unless a table has the column of texts `text` and the column of present vectors `column`."""
    require_driver()
    from lathe.service.index.pgvector.connection import open_database
    from lathe.service.index.pgvector.move import find_columns

    with open_database(postgres_url) as connection:
        find_columns(connection, table, text, column)


def move_table_to(
    table: str,
    text: str,
    encoder: "TextEncoder",
    column: str = "embedding",
    into: str | None = None,
    chain: str = "none",
    postgres_url: str | None = None,
    skip: bool = False,
    disable_triggers: bool = False,
) -> None:
    """Move a table to vectors by another encoder, and print the counts and the SQL statements that follow.

    A progress bar is shown. The arguments are the arguments of the command `move`. Refused rows end with exit status 1
    unless `skip` is true.
    """
    from lathe.service.chains.names import RAW
    from lathe.service.chains.resolve import ChainResolver
    from lathe.service.index.pgvector import move
    from lathe.service.index.pgvector import table as tables
    from lathe.service.index.pgvector.connection import open_database
    from lathe.training.encoder.text_encoder import with_document_prompt

    document_encoder = with_document_prompt(encoder)
    target = ChainResolver(open_chains(write=False)).resolve_for_encoder(encoder, chain, None)
    with open_database(postgres_url) as connection, ProgressBar() as progress:
        progress(0.0, "reading the table")
        pg_table, texts, old = move.find_columns(connection, table, text, column)
        kind = old.choose_type(target.dimensions)
        tables.require_searchable(target.chain, target.quantizer, kind, old.metric)
        new_name = into or "_".join([column, *re.findall(r"\w+", encoder.name)])
        comment = tables.describe_space(target.space_id, target.chain, kind)
        new = tables.VectorColumn(new_name, kind, target.dimensions, comment)

        _announce_triggers(connection, pg_table, new.name, disable_triggers)

        def record_chain() -> None:
            if target.chain != RAW:
                record_column(connection, pg_table.name, new.name, target.chain)

        def encode_and_reduce(batch: Sequence[str]) -> "Vectors":
            return target.apply(document_encoder.encode(batch).vectors)

        counts = move.move_table(connection, pg_table, texts, old, new, encode_and_reduce, record_chain, progress)
        by = encoder.name if target.chain == RAW else f"{encoder.name} through {target.chain}"
        statements = move.write_statements(connection, pg_table, texts, old, new, by)
    notes = _describe_left_out(counts, {"without a text": counts.empty, "whose vector is zero": counts.zero})
    typer.echo(f"{pg_table.name}.{new.name}: {counts.written:,} rows by {by}{notes}; space {target.space_id}")
    typer.echo("\n".join(statements))
    _report_refused(counts, skip)
