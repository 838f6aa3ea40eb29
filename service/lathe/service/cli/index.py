"""`lathe index`: listing, import, export, reindexing, backup, restore and deletion of indexes.

An index's items are exported to a file, or to a table of PostgreSQL.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lathe.service.cli.index_import import import_rows
from lathe.service.cli.options import ProgressBar, flag, load_state, load_writable_state
from lathe.service.cli.pgvector import ColumnType, PostgresUrl, record_column, require_driver
from lathe.service.cli.reindex import calibrate, reindex
from lathe.service.errors import BadValueError, NotSupportedError
from lathe.service.index.spec import Originals
from lathe.training.reporting.text import align_columns

if TYPE_CHECKING:
    from lathe.service.home import Home


EXPORTED_ROWS = 1024
"""Number of items read and written at once."""


def export(
    name: Annotated[str, typer.Argument(help="NAME")],
    out: Annotated[
        Path | None, flag("--out", "FILE.jsonl or .parquet: id, metadata, embedding; .npy: only the original vectors.")
    ] = None,
    to: Annotated[
        Literal["pgvector"] | None, flag("--to", "Database to write to: id, metadata, embedding and reduced.")
    ] = None,
    table: Annotated[str | None, flag("--table", "TABLE or SCHEMA.TABLE. [default: the index's name]")] = None,
    column_type: ColumnType = "vector",
    originals: Annotated[
        Originals, flag("--originals", "Dtype of the column of original vectors; none leaves it out.")
    ] = "float32",
    delete_others: Annotated[
        bool, flag("--delete-others", "Delete rows of the table whose items are not in the index, at the end.")
    ] = False,
    skip_nul: Annotated[
        bool, flag("--skip-nul", "Leave out items whose metadata hold a NUL character, which PostgreSQL cannot store.")
    ] = False,
    postgres_url: PostgresUrl = None,
) -> None:
    """Write an index's items to a file or to a table of PostgreSQL.

    A server may serve the index meanwhile. lathe fit and lathe index import read the file. In a table, rows with the
    same id are replaced if they differ, and other rows are left alone unless --delete-others is given. The same command
    completes an export that was interrupted.
    """
    if (out is None) == (to is None):
        raise BadValueError("give either --out FILE or --to pgvector", param="out")
    if out is not None:
        _export_to_file(name, out)
    else:
        _export_to_table(name, table or name, column_type, originals, postgres_url, delete_others, skip_nul)


def _export_to_file(name: str, out: Path) -> None:
    from lathe.service.index.backend import get_capabilities, read_items
    from lathe.training.sources.writers import open_writer

    settings, home = load_state()
    backend = get_capabilities(settings)
    if not backend.ordered and out.suffix == ".npy":
        raise NotSupportedError(
            f"{backend.name} returns items in no order, and an .npy has no ids: write .jsonl or .parquet"
        )
    written = 0
    with (
        read_items(settings, home, name, EXPORTED_ROWS) as items,
        ProgressBar() as progress,
        open_writer(out) as writer,
    ):
        for payloads, vectors in items.batches:
            writer.write([_build_row(*payload, columns=out.suffix == ".parquet") for payload in payloads], vectors)
            written += len(payloads)
            progress(min(written / max(items.count, 1), 1.0), f"{written:,} of {items.count:,} items")
    typer.echo(f"{out}: {written:,} items")


def _export_to_table(
    name: str,
    table: str,
    column_type: ColumnType,
    originals: Originals,
    postgres_url: str | None,
    delete_others: bool,
    skip_nul: bool,
) -> None:
    """Write all items of an index to a PostgreSQL table. Print the counts and the SQL that creates its search index."""
    require_driver()
    from lathe.service.chains.names import RAW
    from lathe.service.index.backend import read_items
    from lathe.service.index.pgvector.connection import open_database
    from lathe.service.index.pgvector.export import REDUCED, export_items, plan_columns
    from lathe.service.index.pgvector.table import format_index_statement, get_table, parse_table_name

    settings, home = load_state()
    target = parse_table_name(table)
    with read_items(settings, home, name, EXPORTED_ROWS) as items, ProgressBar() as progress:
        columns = plan_columns(items.spec, items.artifact, column_type, originals)
        with open_database(postgres_url) as connection:

            def record_chain() -> None:
                if items.spec.chain != RAW and any(column.name == REDUCED for column, _ in columns):
                    record_column(connection, target, REDUCED, items.spec.chain)

            written, changed, skipped, deleted = export_items(
                connection, target, columns, items, record_chain, progress, delete_others, skip_nul
            )
            searched, _ = columns[-1]  # the reduced one, if there is one
            statement = format_index_statement(connection, get_table(connection, target), searched, items.spec.metric)
    also = f"; {deleted:,} other rows deleted" if delete_others else ""
    if skipped:
        also += f"; {len(skipped):,} with a NUL character left out, the first of them {skipped[0]!r}"
    typer.echo(f"{target}: {written:,} items, {changed:,} of them new or changed{also}")
    typer.echo(statement)


def _build_row(item: str, metadata: bytes | None, columns: bool) -> dict[str, Any]:
    """Return an item's fields to write next to its vector. The metadata are a dict, or with `columns` JSON text."""
    from lathe.service.index.items import parse_metadata

    content = metadata or b"{}"
    return {"id": item, "metadata": content.decode() if columns else parse_metadata(item, content)}


app = typer.Typer(
    help="List, fill, reindex, back up, restore and delete indexes.", no_args_is_help=True, rich_markup_mode=None
)
app.command("import")(import_rows)
app.command()(export)
app.command()(reindex)
app.command()(calibrate)

Name = Annotated[str, typer.Argument(help="NAME")]
Json = Annotated[bool, flag("--json", "Print JSON.")]


@app.command("list")
def list_indexes(as_json: Json = False) -> None:
    """List all indexes, including those that a server is serving."""
    from lathe.service.index.backend import describe_indexes, get_capabilities

    settings, home = load_state()
    indexes = describe_indexes(settings, home)
    if as_json:
        typer.echo(json.dumps(indexes, indent=1))
        return
    unknown_bytes = f"in {get_capabilities(settings).name}"
    rows = [["index", "items", "chain", "dimensions", "metric", "bytes"]]
    for index in indexes:
        if "error" in index:
            rows.append([index["name"], index["error"]])
            continue
        size = f"{index['record_bytes']:,}" if "record_bytes" in index else unknown_bytes
        dimensions = f"{index['width']}→{index['dimensions']}"
        rows.append([index["name"], f"{index['count']:,}", index["chain"], dimensions, index["metric"], size])
    typer.echo(align_columns(rows))


@app.command()
def backup(
    name: Name, to: Annotated[Path, flag("--to", "Folder that does not exist yet.")], as_json: Json = False
) -> None:
    """Copy an index as it is now into a folder.

    A server may serve the index meanwhile.
    """
    from lathe.service.index.embedded.backup import back_up_index

    home = _require_backups()
    copied = back_up_index(home.indexes / name, to)
    typer.echo(json.dumps(copied, indent=1) if as_json else f"{to}: {copied['count']:,} items of {name}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="Folder of a backup")],
    name: Annotated[str | None, flag("--name", "Name of the index. [default: the one it had]")] = None,
    as_json: Json = False,
) -> None:
    """Create an index from a backup.

    Its graph is rebuilt when it is first opened.
    """
    from lathe.service.index.embedded.backup import restore_index

    _require_backups()
    _, home = load_writable_state()
    restored = restore_index(source, home.indexes, name)
    typer.echo(json.dumps(restored, indent=1) if as_json else f"{restored['index']}: {restored['count']:,} items")


@app.command()
def delete(name: Name) -> None:
    """Delete an index permanently.

    An index in the state folder that a server is serving is refused.
    """
    from lathe.service.index.backend import open_indexes

    open_indexes(*load_writable_state()).delete(name)
    typer.echo(f"{name} is deleted")


def _require_backups() -> "Home":
    """Return the state folder. Raise `NotSupportedError` if the indexes are in a backend that another tool backs up."""
    from lathe.service.index.backend import get_capabilities

    settings, home = load_state()
    backend = get_capabilities(settings)
    if backend.backup_tool is not None:
        raise NotSupportedError(f"LATHE_INDEX_URL names a {backend.name}, which is backed up by {backend.backup_tool}")
    return home
