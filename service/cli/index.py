"""`lathe index`: what there is, filling one from a store that exists, copies."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from service.cli.index_import import import_rows
from service.cli.options import ProgressBar, flag, state
from service.errors import NotSupportedError, as_service_error
from service.home import Home
from service.index.backend import open_indexes
from service.index.backup import backup as copy_index
from service.index.backup import require_there
from service.index.backup import restore as restore_index
from service.index.indexes import index_folders
from service.index.protocol import Payload
from service.index.record import Record
from service.index.reducer import Vectors
from training.writers import open_writer

app = typer.Typer(help="List, fill, back up, restore and delete indexes.", no_args_is_help=True, rich_markup_mode=None)
app.command("import")(import_rows)

EXPORTED_ROWS = 1024

Name = Annotated[str, typer.Argument(help="NAME")]
Json = Annotated[bool, flag("--json", "Print JSON.")]


@app.command("list")
def list_indexes(as_json: Json = False) -> None:
    """All indexes, also those a server is serving."""
    settings, home = state()
    found = described_in_milvus() if settings.index_url else [described(f) for f in index_folders(home.indexes)]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{'index':20}{'items':>12}{'chain':>16}{'sizes':>12}{'metric':>8}{'bytes':>14}")
    for index in found:
        if "error" in index:
            typer.echo(f"{index['name']:20}  {index['error']}")
            continue
        sizes = f"{index['width']}→{index['dimensions']}"
        size = f"{index['record_bytes']:,}" if "record_bytes" in index else "in Milvus"
        figures = f"{index['chain']:>16}{sizes:>12}{index['metric']:>8}{size:>14}"
        typer.echo(f"{index['name']:20}{index['count']:>12,}{figures}")


@app.command()
def backup(
    name: Name, to: Annotated[Path, flag("--to", "A folder that does not exist yet.")], as_json: Json = False
) -> None:
    """Copy an index as it is at this moment; a server that serves it goes on."""
    home = embedded_home()
    made = copy_index(home.indexes / name, to)
    typer.echo(json.dumps(made, indent=1) if as_json else f"{to}: {made['count']:,} items of {name}")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="The folder of a backup")],
    name: Annotated[str | None, flag("--name", "Another name than it had.")] = None,
    as_json: Json = False,
) -> None:
    """Make an index from a backup; its graph is made anew when it is first opened."""
    home = embedded_home()
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
    settings, _ = state()
    if settings.index_url and out.suffix == ".npy":
        raise NotSupportedError("Milvus gives items in no order, and an .npy has no ids: write .jsonl or .parquet")
    written = 0
    with items_of(name) as (total, batches), ProgressBar() as progress, open_writer(out) as writer:
        for payloads, vectors in batches:
            writer.write([record_of(*payload, columns=out.suffix == ".parquet") for payload in payloads], vectors)
            written += len(payloads)
            progress(min(written / max(total, 1), 1.0), f"{written:,} of {total:,} items")
    typer.echo(f"{out}: {written:,} items")


@app.command()
def delete(name: Name) -> None:
    """Remove an index for good; one in the state folder that a server is serving is refused."""
    open_indexes(*state(), no_texts).delete(name)
    typer.echo(f"{name} is gone")


@contextmanager
def items_of(name: str) -> Iterator[tuple[int, Iterator[tuple[list[Payload], Vectors]]]]:
    """How many items an index has, and they, some at a time; an embedded one is only read, so its server goes on."""
    settings, home = state()
    if settings.index_url:
        indexes = open_indexes(settings, home, no_texts)
        try:
            index = indexes.get(name)
            yield index.describe()["count"], index.scan(EXPORTED_ROWS)
        finally:
            indexes.close()
        return
    require_there(home.indexes / name)
    record = Record(home.indexes / name / "record.db", read_only=True)
    try:
        yield record.counts()["count"], record.scan(EXPORTED_ROWS)
    finally:
        record.close()


def embedded_home() -> Home:
    """The state folder, if indexes are kept there.

    Raises:
        NotSupportedError: if a Milvus keeps them.
    """
    settings, home = state()
    if settings.index_url:
        raise NotSupportedError("LATHE_INDEX_URL names a Milvus, which is backed up by its own tools (milvus-backup)")
    return home


def described_in_milvus() -> list[dict[str, Any]]:
    """What the Milvus says of its indexes."""
    indexes = open_indexes(*state(), no_texts)
    try:
        return indexes.describe()
    finally:
        indexes.close()


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
