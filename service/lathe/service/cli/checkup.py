"""`lathe checkup`: what is wrong with stored vectors, and where their searches lose hits."""

import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lathe.service.cli.options import ENCODER, SOURCE, ProgressBar, flag, load_encoder, load_state, open_chains
from lathe.service.cli.pgvector import PostgresUrl, require_driver
from lathe.service.cli.reindex import DEFAULT_SERVER, Server, ServerClient, read_rows_to_send
from lathe.service.errors import BadValueError
from lathe.transforms.files import read_json_file, replace_synced

if TYPE_CHECKING:
    from lathe.training.checkup.spaces import StoreEncoder
    from lathe.training.checkup.store import Store
    from lathe.training.settings import Metric

FEW = 3.0
"""Number of queries or rows that may be faulty unseen where none is: 95 % of samples would show one (rule of three)."""


def checkup(
    index: Annotated[str | None, flag("--index", "NAME of an index of the running server.")] = None,
    source: Annotated[str | None, flag("--source", f"A file of vectors. {SOURCE}")] = None,
    place: Annotated[Literal["pgvector", "qdrant"] | None, flag("--for", "The store of --table, --collection.")] = None,
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
        Literal["cosine", "ip", "l2"] | None,
        flag("--metric", "Metric of the searches of a file or table. [default: the index's; cosine]"),
    ] = None,
    baseline: Annotated[
        Path | None, flag("--baseline", "FILE.json of an earlier run to compare with; it is written if it is missing.")
    ] = None,
    fix: Annotated[
        Path | None,
        flag("--fix", "Encode rows of a table or collection again that need it; their old vectors go to FILE.jsonl."),
    ] = None,
    undo: Annotated[Path | None, flag("--undo", "Write the old vectors in the FILE.jsonl of --fix back.")] = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
    postgres_url: PostgresUrl = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Check stored vectors and their searches: what is wrong, how sure that is, and what to do.

    It reads up to 100,000 rows drawn at random, and asks some hundred queries in the store's own way and exactly. With
    --texts, a sample of the texts is encoded again and compared. Nothing is written to the store but by --fix, which
    encodes all texts again, and by --undo. What else must be done is said with its command.

    The exit status is 1 if something must be fixed; with --baseline, if something is worse than in that run beyond
    chance.
    """
    own: dict[str, str | Path | None] = {"--metric": metric}
    kept: dict[str, str | Path | None] = {"--fix": fix, "--undo": undo}
    unused = {"--source": kept, "--collection": own, "--index": own | kept}
    unused["--index"] |= {"--texts": texts, "--encoder": encoder, "--chain": None if chain == "none" else chain}
    _require_one_store(
        {"--index": index, "--source": source, "--table": table, "--collection": collection},
        unused,
        place,
    )
    before = None if baseline is None else _read_baseline(baseline)
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar())
        if index is not None:
            request = {} if queries is None else {"queries": read_rows_to_send(queries)}
            client = ServerClient(server)
            _, job = client.request("POST", f"/indexes/{index}/checkup", request)
            found = client.wait_for_job(job["job_id"], bar)
        else:
            from lathe.service.checkup.fixing import find_changes, write_changes
            from lathe.service.jobs.kinds.checkup import read_queries
            from lathe.training.checkup.checkup import check_up

            store = _open_store(source, table, collection, qdrant, texts, metric, postgres_url, stack)
            if encoder is not None and texts is None and queries is None:
                raise BadValueError("--encoder encodes texts: name those of the rows with --texts, or --queries")
            loaded = None if texts is None and encoder is None else _load_encoder(encoder, chain)
            vectors = None if queries is None else read_queries(queries, loaded)
            if undo is not None:
                written, count = write_changes(store, undo, undo=True)
                typer.echo(f"{written:,} of {count:,} rows have their old vectors again", err=True)
            elif fix is not None:
                if loaded is None or texts is None:
                    raise BadValueError("--fix encodes texts again: name their column with --texts", param="fix")
                changed = find_changes(store, loaded, fix, bar)
                written, count = write_changes(store, fix) if changed else (0, 0)
                typer.echo(f"{written:,} of {count:,} rows were encoded again; {fix} undoes it by --undo", err=True)
            found = check_up(store, loaded, vectors, bar).to_json()

    worse = [] if before is None else _find_worse(before, found)
    if baseline is not None and before is None:
        replace_synced(baseline, json.dumps(found).encode())
    if as_json:
        typer.echo(json.dumps(found | {"worse": worse}, indent=1))
    else:
        typer.echo("\n".join([format_checkup(found), *(f"worse than in {baseline}: {sentence}" for sentence in worse)]))
    if worse or (baseline is None and found["must_fix"]):
        raise typer.Exit(1)


def _require_one_store(
    stores: dict[str, str | None], unused: dict[str, dict[str, str | Path | None]], place: str | None
) -> None:
    """Check that the options name one store, and none that the store has no use for.

    Args:
        stores: values of the options that name a store.
        unused: for some of these options, values of those that must not be given with them.
        place: value of `--for`, which may be left out.

    Raises:
        BadValueError: if they do not.
    """
    given = [option for option, name in stores.items() if name is not None]
    if len(given) != 1:
        raise BadValueError(f"name one store by {', '.join(stores)}; given are {' and '.join(given) or 'none'}")
    taken = {"pgvector": "--table", "qdrant": "--collection"}.get(place or "", given[0])
    if given != [taken]:
        raise BadValueError(f"--for {place} takes {taken}, not {given[0]}")
    for option, value in unused.get(given[0], {}).items():
        if value is not None:
            raise BadValueError(f"{option} is not for {given[0]}")


def _open_store(
    source: str | None,
    table: str | None,
    collection: str | None,
    qdrant: str,
    texts: str | None,
    metric: "Metric | None",
    postgres_url: str | None,
    stack: ExitStack,
) -> "Store":
    """Open the store that the options name: a file, a table or a collection. `stack` closes it."""
    if source is not None:
        from lathe.service.checkup.files import FileStore

        return FileStore(source, texts, metric or "cosine")
    name, _, column = (table or collection or "").partition("#")
    if collection is not None:
        from lathe.service.checkup.qdrant import QdrantStore, open_qdrant

        return QdrantStore(stack.enter_context(open_qdrant(qdrant)), name, column or None, texts)

    require_driver()
    from lathe.service.checkup.pgvector import PgvectorStore
    from lathe.service.index.pgvector.connection import open_database
    from lathe.service.index.pgvector.filling import find_full_vectors
    from lathe.service.index.pgvector.table import get_table, parse_table_name

    connection = stack.enter_context(open_database(postgres_url))
    full = find_full_vectors(connection, get_table(connection, parse_table_name(name)), column or "embedding", "table")
    return PgvectorStore(connection, full, texts, metric)


def _load_encoder(name: str | None, chain: str) -> "StoreEncoder":
    from lathe.service.chains.resolve import ChainResolver
    from lathe.training.checkup.spaces import StoreEncoder

    encoder = load_encoder(load_state()[0], name)
    resolver = ChainResolver(open_chains(write=False))
    documents, queries = (
        resolver.resolve_for_encoder(encoder, chain, None, input_type=side) for side in ("document", "query")
    )
    return StoreEncoder(encoder, documents.apply, queries.apply)


def format_checkup(found: dict[str, Any]) -> str:
    """Return a checkup as lines: the summary, then each finding with its rows and what to do."""
    checked = "all read" if found["checked"] == found["rows"] else f"{found['checked']:,} read"
    asked = f", {found['searches']['queries']:,} queries asked" if found["searches"] else ""
    lines = [f"{found['store']}: {found['rows']:,} rows, {checked}{asked}", found["summary"], ""]
    for finding in found["findings"]:
        sure = "" if finding["certainty"] == "certain" else f" ({finding['certainty']})"
        lines.append(f"{finding['severity']:<4}  {finding['sentence']}{sure}")
        if finding["ids"]:
            lines.append(f"      rows: {', '.join(finding['ids'])}")
        if finding["advice"]:
            lines.append(f"      → {finding['advice']}")
    return "\n".join(lines)


def _read_baseline(baseline: Path) -> dict[str, Any] | None:
    """Return the run that a file holds, or None if there is no such file.

    Raises:
        BadValueError: if it holds something else.
    """
    if not baseline.exists():
        return None
    with suppress(ValueError):
        content = read_json_file(baseline)
        if isinstance(content, dict) and {"store", "searches", "findings"} <= content.keys():
            return content
    raise BadValueError(f"{baseline} is not a run of lathe checkup: remove it to write a new one", param="baseline")


def _find_worse(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what is worse in a run than in an earlier one: recall or shares whose intervals do not overlap."""
    from lathe.training.checkup.spaces import AGAIN_ROWS, WORDS

    if before["store"] != now["store"]:
        raise BadValueError(f"the baseline is of {before['store']}, not of {now['store']}", param="baseline")
    encoded = [{"space", *WORDS} & {finding["kind"] for finding in run["findings"]} for run in (before, now)]
    if bool(encoded[0]) != bool(encoded[1]):
        raise BadValueError("texts were encoded again in one of this run and its baseline: give both the same --texts")
    worse = []
    if now["searches"] and before["searches"]:
        recall, earlier = now["searches"]["recall"], before["searches"]["recall"]
        # Without bounds no query lost a hit, or all lost as many.
        unseen = FEW / before["searches"]["queries"] if earlier["low"] is None else 0.0
        if _bound(recall, "high") < _bound(earlier, "low") - unseen:
            worse.append(f"recall@10 was {earlier['value']:.2f} and is {recall['value']:.2f}")
    shares = {finding["kind"]: finding["share"] for finding in before["findings"] if finding["share"]}
    for finding in now["findings"]:
        if (kind := finding["kind"]) == "graph" and kind not in shares:
            continue  # the loss was small, and recall was compared
        read = min(before["checked"], AGAIN_ROWS) if kind in WORDS else before["checked"]
        unseen = 0.0 if read == before["rows"] else FEW / read
        share, earlier = finding["share"], shares.get(kind, {"value": 0.0, "low": None, "high": unseen})
        if share and finding["severity"] != "fine" and _bound(share, "low") > _bound(earlier, "high"):
            worse.append(finding["sentence"])
    return worse


def _bound(interval: dict[str, Any], side: str) -> float:
    bound = interval[side]
    return float(interval["value"] if bound is None else bound)
