"""`lathe index`: listing, import, export, backup, restore and deletion of indexes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lathe.service.cli.index_export import export
from lathe.service.cli.index_import import import_rows
from lathe.service.cli.options import flag, load_state, load_writable_state
from lathe.service.errors import NotSupportedError
from lathe.training.reporting.text import align_columns

if TYPE_CHECKING:
    from lathe.service.home import Home

app = typer.Typer(help="List, fill, back up, restore and delete indexes.", no_args_is_help=True, rich_markup_mode=None)
app.command("import")(import_rows)
app.command()(export)

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

    A server may go on serving it.
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
    """Return the state folder. Raise if the indexes are in a backend that another tool backs up.

    Raises:
        NotSupportedError: if the backend of the indexes is backed up by another tool.
    """
    from lathe.service.index.backend import get_capabilities

    settings, home = load_state()
    backend = get_capabilities(settings)
    if backend.backup_tool is not None:
        raise NotSupportedError(f"LATHE_INDEX_URL names a {backend.name}, which is backed up by {backend.backup_tool}")
    return home
