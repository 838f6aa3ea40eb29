"""`lathe index`: what there is, filling one from a store that exists, copies."""

import json
from pathlib import Path
from typing import Annotated

import typer

from service.cli.index_import import import_rows
from service.cli.options import ProgressBar, flag, state, writable_state
from service.errors import NotSupportedError

app = typer.Typer(help="List, fill, back up, restore and delete indexes.", no_args_is_help=True, rich_markup_mode=None)
app.command("import")(import_rows)

Name = Annotated[str, typer.Argument(help="NAME")]
Json = Annotated[bool, flag("--json", "Print JSON.")]


@app.command("list")
def list_indexes(as_json: Json = False) -> None:
    """All indexes, also those a server is serving."""
    from service.cli.index_reading import described, described_in_milvus
    from service.index.indexes import index_folders

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
    from service.cli.index_reading import embedded_home
    from service.index.backup import backup as copy_index

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
    from service.cli.index_reading import embedded_home
    from service.index.backup import restore as restore_index

    embedded_home()  # refuses a Milvus
    _, home = writable_state()
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
    from service.cli.index_reading import items_of, record_of
    from training.sources.writers import open_writer

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
    from service.cli.index_reading import no_texts
    from service.index.backend import open_indexes

    open_indexes(*writable_state(), no_texts).delete(name)
    typer.echo(f"{name} is gone")
