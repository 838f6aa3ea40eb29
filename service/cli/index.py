"""`lathe index`: what there is, filling one from a store that exists, copies."""

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from service.cli.index_import import import_rows
from service.cli.options import ProgressBar, flag, state
from service.errors import as_service_error
from service.index.backup import backup as copy_index
from service.index.backup import require_there
from service.index.backup import restore as restore_index
from service.index.indexes import Indexes, index_folders
from service.index.record import Record
from training.writers import open_writer

app = typer.Typer(help="List, fill, back up, restore and delete indexes.", no_args_is_help=True, rich_markup_mode=None)
app.command("import")(import_rows)

EXPORTED_ROWS = 1024

Name = Annotated[str, typer.Argument(help="NAME")]
Json = Annotated[bool, flag("--json", "Print JSON.")]


@app.command("list")
def list_indexes(as_json: Json = False) -> None:
    """All indexes, also those a server is serving."""
    _, home = state()
    found = [described(folder) for folder in index_folders(home.indexes)]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{'index':20}{'items':>12}{'chain':>16}{'sizes':>12}{'metric':>8}{'record':>14}")
    for index in found:
        if "error" in index:
            typer.echo(f"{index['name']:20}  {index['error']}")
            continue
        sizes = f"{index['width']}→{index['dimensions']}"
        figures = f"{index['chain']:>16}{sizes:>12}{index['metric']:>8}{index['record_bytes']:>14,}"
        typer.echo(f"{index['name']:20}{index['count']:>12,}{figures}")


@app.command()
def backup(
    name: Name, to: Annotated[Path, flag("--to", "A folder that does not exist yet.")], as_json: Json = False
) -> None:
    """Copy an index as it is at this moment; a server that serves it goes on."""
    _, home = state()
    made = copy_index(home.indexes / name, to)
    typer.echo(json.dumps(made, indent=1) if as_json else f"{to}: {made['count']:,} items of {name}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="The folder of a backup")],
    name: Annotated[str | None, flag("--name", "Another name than it had.")] = None,
    as_json: Json = False,
) -> None:
    """Make an index from a backup; its graph is made anew when it is first opened."""
    _, home = state()
    made = restore_index(source, home.indexes, name)
    typer.echo(json.dumps(made, indent=1) if as_json else f"{made['index']}: {made['count']:,} items")


@app.command()
def export(
    name: Name,
    out: Annotated[
        Path, flag("--out", "FILE.jsonl or .parquet: id, metadata, embedding; .npy: the original vectors alone.")
    ],
) -> None:
    """Write an index's items to a file, which lathe fit and lathe index import read; a server goes on serving."""
    _, home = state()
    require_there(home.indexes / name)
    record = Record(home.indexes / name / "record.db", read_only=True)
    total, written = record.counts()["count"], 0
    try:
        with ProgressBar() as progress, open_writer(out) as writer:
            for payloads, vectors in record.scan(EXPORTED_ROWS):
                writer.write([record_of(*payload, columns=out.suffix == ".parquet") for payload in payloads], vectors)
                written += len(payloads)
                progress(min(written / max(total, 1), 1.0), f"{written:,} of {total:,} items")
    finally:
        record.close()
    typer.echo(f"{out}: {written:,} items")


@app.command()
def delete(name: Name) -> None:
    """Remove an index for good; one that a server is serving is refused."""
    _, home = state()
    Indexes(home.indexes, 1, 1, no_texts).delete(name)
    typer.echo(f"{name} is gone")


def record_of(item: str, metadata: bytes | None, columns: bool) -> dict[str, Any]:
    """An item as a row of a file; in columns its metadata is JSON, for a column has one type."""
    said = (metadata or b"{}").decode()
    return {"id": item, "metadata": said if columns else json.loads(said)}


def described(folder: Path) -> dict[str, Any]:
    """What an index's record says, without owning it."""
    try:
        record = Record(folder / "record.db", read_only=True)
        try:
            spec, counts = record.spec, record.counts()
            return {"name": folder.name, **counts, **spec.json(), "record_bytes": record.file_bytes()}
        finally:
            record.close()
    except Exception as error:
        return {"name": folder.name, "error": as_service_error(error).message}


def no_texts(_spec: Any, _texts: Any) -> NoReturn:
    """Commands embed before they write; an index that is opened here need not."""
    raise NotImplementedError
