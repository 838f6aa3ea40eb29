"""`lathe checkup`: what is wrong with stored vectors, and where their searches lose hits."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lathe.service.cli.options import ENCODER, SOURCE, ProgressBar, flag, load_encoder, load_state, open_chains
from lathe.service.cli.pgvector import PostgresUrl, require_driver
from lathe.service.cli.reindex import DEFAULT_SERVER, Server, ServerClient
from lathe.service.errors import BadValueError
from lathe.transforms.files import read_json_file, replace_synced

if TYPE_CHECKING:
    from lathe.training.checkup.checkup import Checkup
    from lathe.training.checkup.spaces import StoreEncoder
    from lathe.training.checkup.store import Metric, Store
    from lathe.transforms.vectors import FloatArray


def checkup(
    index: Annotated[str | None, flag("--index", "NAME of an index of the running server.")] = None,
    source: Annotated[str | None, flag("--source", f"A file of vectors. {SOURCE}")] = None,
    place: Annotated[Literal["pgvector", "qdrant"] | None, flag("--for", "The store, unless it is a file.")] = None,
    table: Annotated[str | None, flag("--table", "TABLE#COLUMN of PostgreSQL. [default column: embedding]")] = None,
    collection: Annotated[str | None, flag("--collection", "COLLECTION or COLLECTION#VECTOR of Qdrant.")] = None,
    qdrant: Annotated[str, flag("--qdrant", "URL of a server, or folder of the local mode.")] = "http://localhost:6333",
    texts: Annotated[
        str | None, flag("--texts", "Column or payload field of the texts, or a source of them for a file.")
    ] = None,
    encoder: Annotated[
        str | None, flag("--encoder", f"The encoder of the rows, to encode a sample again. {ENCODER}")
    ] = None,
    chain: Annotated[str, flag("--chain", "NAME or NAME@VERSION of the chain that the rows went through.")] = "none",
    queries: Annotated[str | None, flag("--queries", "A source of queries, texts or vectors. [default: rows]")] = None,
    metric: Annotated[
        Literal["cosine", "ip", "l2"] | None, flag("--metric", "Metric of the searches. [default: the index's; cosine]")
    ] = None,
    baseline: Annotated[
        Path | None, flag("--baseline", "FILE.json of an earlier run to compare with; it is written if it is missing.")
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
    postgres_url: PostgresUrl = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Check stored vectors and their searches: what is wrong, how sure that is, and what to do.

    It reads up to 100,000 rows drawn at random, and asks some hundred queries in the store's own way and exactly. With
    --texts and --encoder, texts are encoded again and compared. Nothing is written to the store.

    The exit status is 1 if something must be mended; with --baseline, if something is worse than in that run beyond
    chance.
    """
    from lathe.service.checkup.own_index import IndexStore
    from lathe.training.checkup.checkup import check_up

    if encoder is not None and texts is None and index is None:
        raise BadValueError("--encoder encodes texts again: name their column, field or source with --texts")
    opened = (
        _open_store(source, place, table, collection, qdrant, texts, metric, postgres_url)
        if index is None
        else nullcontext(IndexStore(index, ServerClient(server).request))
    )
    with opened as store, ProgressBar() as bar:
        if isinstance(store, IndexStore) and store.described["text_field"]:
            encoder, texts = encoder or store.described["encoder"], store.described["text_field"]
        loaded = None if texts is None else _load_encoder(encoder, chain)
        found = check_up(store, loaded, _read_queries(queries, loaded), bar)
    worse = _compare_with(baseline, found) if baseline is not None else []
    if as_json:
        typer.echo(json.dumps(found.to_json() | {"worse": worse}, indent=1, default=list))
    else:
        typer.echo(format_checkup(found))
        for sentence in worse:
            typer.echo(f"worse than in {baseline}: {sentence}")
    if worse or (baseline is None and found.must_mend):
        raise typer.Exit(1)


@contextmanager
def _open_store(
    source: str | None,
    place: str | None,
    table: str | None,
    collection: str | None,
    qdrant: str,
    texts: str | None,
    metric: "Metric | None",
    postgres_url: str | None,
) -> "Iterator[Store]":
    """Open the store that the options name for the block.

    Raises:
        BadValueError: if they name none, or another one than `--for`.
    """
    if place == "pgvector" and table is not None:
        require_driver()
        from lathe.service.checkup.pgvector import PgvectorStore
        from lathe.service.index.pgvector.connection import open_database
        from lathe.service.index.pgvector.filling import find_full_vectors
        from lathe.service.index.pgvector.table import get_table, parse_table_name

        name, _, column = table.partition("#")
        with open_database(postgres_url) as connection:
            full = find_full_vectors(connection, get_table(connection, parse_table_name(name)), column or "embedding")
            yield PgvectorStore(connection, full, texts, metric)
    elif place == "qdrant" and collection is not None:
        from lathe.service.checkup.qdrant import QdrantStore, open_qdrant

        name, _, vector = collection.partition("#")
        client = open_qdrant(qdrant)
        try:
            yield QdrantStore(client, name, vector or None, texts)
        finally:
            client.close()
    elif source is not None and place is None:
        from lathe.service.checkup.files import FileStore

        yield FileStore(source, texts, metric or "cosine")
    else:
        raise BadValueError(
            "name what to check: --index NAME, --source FILE.npy, --for pgvector --table TABLE#COLUMN, or "
            "--for qdrant --collection NAME"
        )


def _load_encoder(name: str | None, chain: str) -> "StoreEncoder":
    from lathe.service.chains.resolve import ChainResolver
    from lathe.training.checkup.spaces import StoreEncoder

    encoder = load_encoder(load_state()[0], name)
    resolver = ChainResolver(open_chains(write=False))
    documents, queries = (
        resolver.resolve_for_encoder(encoder, chain, None, input_type=side) for side in ("document", "query")
    )
    return StoreEncoder(encoder, documents.apply, queries.apply)


def _read_queries(queries: str | None, encoder: "StoreEncoder | None") -> "FloatArray | None":
    """Return the vectors of a source of queries, or None without one.

    Raises:
        BadValueError: if it holds texts and there is no encoder for them.
    """
    if queries is None:
        return None
    import numpy as np

    from lathe.training.sources.source import open_source

    source = open_source(queries)
    values = [batch.values for batch in source.batches()]
    if source.kind() == "vectors":
        return np.concatenate(values).astype(np.float32)
    if encoder is None:
        raise BadValueError(f"{queries} holds texts: name the encoder and the column of texts", param="queries")
    return encoder.ask([text for batch in values for text in batch])


def format_checkup(found: "Checkup") -> str:
    """Return a checkup as lines: the sentence, then each finding with its rows and what to do."""
    checked = "all read" if found.checked == found.rows else f"{found.checked:,} read"
    lines = [f"{found.store}: {found.rows:,} rows, {checked}", found.sentence, ""]
    for finding in found.findings:
        sure = "" if finding.certainty == "certain" else f" ({finding.certainty})"
        lines.append(f"{finding.severity}  {finding.sentence}{sure}")
        if finding.ids:
            lines.append(f"      rows: {', '.join(finding.ids)}")
        if finding.advice:
            lines.append(f"      → {finding.advice}")
    return "\n".join(lines)


def _compare_with(baseline: Path, found: "Checkup") -> list[str]:
    """Return what is worse than in the run that a file holds; write the file if it is missing.

    Recall is worse if its interval lies below the earlier one, and a share if its interval lies above.
    """
    now = found.to_json()
    if not baseline.exists():
        replace_synced(baseline, json.dumps(now, default=list).encode())
        return []
    before = read_json_file(baseline)
    worse = []
    if now["searches"] and before["searches"]:
        recall, earlier = now["searches"]["recall"], before["searches"]["recall"]
        if _bound(recall, "high") < _bound(earlier, "low"):
            worse.append(f"recall@10 was {earlier['value']:.2f} and is {recall['value']:.2f}")
    shares = {finding["kind"]: finding["share"] for finding in before["findings"] if finding["share"]}
    for finding in now["findings"]:
        share, earlier = finding["share"], shares.get(finding["kind"], {"value": 0.0, "low": None, "high": None})
        if share and finding["severity"] != "fine" and _bound(share, "low") > _bound(earlier, "high"):
            worse.append(finding["sentence"])
    return worse


def _bound(interval: dict[str, Any], side: str) -> float:
    bound = interval[side]
    return float(interval["value"] if bound is None else bound)
