"""`lathe migrate`: whether another encoder is worth it, and the move to it."""

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lathe.service.chains.names import require_name
from lathe.service.cli.options import (
    ENCODER,
    SOURCE,
    ProgressBar,
    build_request,
    flag,
    format_command_line,
    load_encoder,
    load_state,
    open_chains,
    take_fields,
)
from lathe.service.cli.pgvector import OldColumnOption, PostgresUrl, move_table_to, require_table
from lathe.service.cli.reindex import DEFAULT_SERVER, Server, reindex_on_server, require_movable
from lathe.service.errors import BadValueError
from lathe.service.index.spec import ReindexRequest
from lathe.training.deciding.migrate_request import MigrateRequest

if TYPE_CHECKING:
    from lathe.service.chains.registry import Registry
    from lathe.training.deciding.migrate import Migration
    from lathe.training.encoder.text_encoder import TextEncoder

MOVED = {"lathe": "INDEX", "pgvector": "TABLE#COLUMN"}
"""What `--apply` names, by the place that it can move."""


@take_fields(
    MigrateRequest,
    to="The new encoder: a configured one, or a model's folder or hub id.",
    source=SOURCE,
    encoder=flag("--from", f"The present encoder. {ENCODER}"),
    pairs="Judged searches: FILE of texts with the fields query and document, or FILE#QUERY,DOCUMENT; a line for each "
    "relevant document.",
    queries=f"Searches that nobody judged, to compare the nearest rows from: {SOURCE}",
    place=flag("--for", "Where the rows are stored."),
)
def migrate(
    fields: dict[str, Any],
    apply: Annotated[
        str | None,
        flag(
            "--apply", "If the decision is to encode again, move at once: INDEX, or TABLE#COLUMN of texts for pgvector."
        ),
    ] = None,
    name: Annotated[
        str | None,
        flag("--name", "Publish the chain that the decision takes, as it was measured, under this name."),
    ] = None,
    server: Server = DEFAULT_SERVER,
    old_column: OldColumnOption = "embedding",
    postgres_url: PostgresUrl = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Decide whether to move to another encoder, before any row is encoded again, and move with --apply.

    On a sample of the rows, it compares to stay, to map queries by an adapter, to map queries of the new encoder to the
    present vectors (a bridge), and to encode all rows again, also in as many bytes as now. With judged queries, it
    recommends the cheapest of these that no other beats beyond chance, by nDCG@10. Without, it says how many of the
    nearest rows agree. It also estimates the time and tokens to encode all rows. Without --apply and --name, it changes
    nothing.
    """
    request = build_request(MigrateRequest, fields)
    _check_options(request, apply, name, as_json)
    from lathe.training.deciding.migrate import decide_migration

    settings, _ = load_state()
    registry = open_chains(write=bool(apply or name))
    present, new = load_encoder(settings, request.encoder), load_encoder(settings, request.to)
    move = None if apply is None else _Move(apply, request.place, present, new, server, old_column, postgres_url)
    index = move.check() if move else {}
    request = request.model_copy(update={"bytes": request.bytes or _find_code_bytes(index)})
    with ProgressBar() as progress:
        migration = decide_migration(request, present, new, progress)
    _print_decision(migration, request, as_json, suggests=not (apply or name))
    if move and not migration.encodes_again:
        typer.echo("Nothing is moved: the decision is not to encode again.", err=True)
        return

    if move:
        move.check()  # again before anything is published, as deciding can take hours
        move.print_sizes(index, migration.vector_bytes[str(migration.recommended)])
    chain = "none"
    if migration.chain is not None and (apply or name):
        chain = _publish_chain(migration, request, new, name or migration.chain_name, registry)
    elif name:
        typer.echo("Nothing is published: the decision takes no chain.", err=True)
    if move:
        move.run(chain)


@dataclass(frozen=True)
class _Move:
    """Move of what `--apply` names, an index of the server or a table of pgvector, to another encoder."""

    target: str
    place: str
    present: "TextEncoder"
    new: "TextEncoder"
    server: str
    old_column: str
    postgres_url: str | None

    def check(self) -> dict[str, Any]:
        """Raise unless the move can begin, and return the description of the index, or an empty dict for a table.

        The description includes the `steps` of the index's chain.
        """
        if self.place == "lathe":
            return require_movable(self.target, self.present, self.new, self.server)
        table, _, column = self.target.partition("#")
        require_table(table, column, self.old_column, self.postgres_url)
        return {}

    def print_sizes(self, index: dict[str, Any], after: int) -> None:
        from lathe.training.deciding.migrate import FLOAT_BYTES

        before = _find_code_bytes(index) or FLOAT_BYTES * index.get("dimensions", 0)
        if before not in (0, after):
            said = f"{self.target}: {before:,} bytes a vector now (chain {index['chain']}), {after:,} then"
            typer.echo(said, err=True)

    def run(self, chain: str) -> None:
        """Move the rows to the new encoder and a chain, `none` for none."""
        if self.place == "pgvector":
            table, _, column = self.target.partition("#")
            move_table_to(table, column, self.new, self.old_column, None, chain, self.postgres_url)
        else:
            reindex_on_server(self.target, ReindexRequest(encoder=self.new.name, chain=chain), self.server)


def _print_decision(migration: "Migration", request: MigrateRequest, as_json: bool, suggests: bool) -> None:
    """Print the decision, the command that fits a map of queries, and what options carry it out."""
    plan = migration.plan_command(request)
    command = None if plan is None else _format_command(*plan)
    if as_json:
        typer.echo(json.dumps(migration.to_json() | {"command": command}, indent=1))
    else:
        typer.echo(migration.format() + (f"\n\n{command}" if command else ""))
    if suggests and migration.encodes_again:
        typer.echo("\n" + _suggest_options(migration, request), err=as_json)


def _check_options(request: MigrateRequest, apply: str | None, name: str | None, as_json: bool) -> None:
    """Raise for options that contradict one another, and for a name that no chain can have."""
    if as_json and (apply or name):
        raise BadValueError("--json prints the decision alone: leave --apply and --name out")
    if name is not None:
        require_name(name)
    if apply is not None:
        _require_target(request, apply.partition("#")[2])


def _require_target(request: MigrateRequest, column: str) -> None:
    """Raise unless `--apply` names what can be moved, where the rows are stored."""
    if request.place not in MOVED:
        raise BadValueError(f"--apply moves an index of Lathe or a table of pgvector, not --for {request.place}")
    if bool(column) != (request.place == "pgvector"):
        raise BadValueError(f"--apply takes {MOVED[request.place]} for --for {request.place}")
    if request.place == "pgvector" and request.bytes is not None:
        raise BadValueError("pgvector cannot compare codes: --bytes moves an index of Lathe")


def _find_code_bytes(index: dict[str, Any]) -> int | None:
    from lathe.transforms.chain import build_steps
    from lathe.transforms.codes import Quantizer

    last = build_steps(index["steps"])[-1] if index.get("steps") else None
    return last.code_bytes(index["dimensions"]) if isinstance(last, Quantizer) else None


def _format_command(command: str, options: dict[str, Any]) -> str:
    words = [word for field, value in options.items() for word in (f"--{field.replace('_', '-')}", str(value))]
    return shlex.join(["lathe", command, *words, *(["--no-train"] if command == "adapt" else [])])


def _suggest_options(migration: "Migration", request: MigrateRequest) -> str:
    moves = f"with --apply {MOVED[request.place]} it moves the rows" if request.place in MOVED else ""
    publishes = "with --name NAME it publishes the chain that was measured" if migration.chain is not None else ""
    options = ", and ".join(filter(None, (publishes, moves)))
    return f"The same command changes nothing yet: {options}." if options else "Nothing was changed."


def _publish_chain(
    migration: "Migration", request: MigrateRequest, encoder: "TextEncoder", name: str, registry: "Registry"
) -> str:
    """Certify the chain that the decision measured, publish it, and print its certificate. Return its version."""
    from lathe.service.chains.fits import publish_fitted_chain
    from lathe.service.cli.fit import format_fit_result
    from lathe.training.deciding.migrate import certify_recommended

    _, home = load_state()
    texts = home.vectors / "out_of_domain"
    with ProgressBar() as progress:
        fitted = certify_recommended(migration, request, encoder, texts, format_command_line(), progress)
        assert fitted is not None  # the decision takes a chain
        result = publish_fitted_chain(fitted, name, None, registry, progress)
    typer.echo("\n" + format_fit_result(result))
    version: str = result["chain"]
    typer.echo(f"To undo this: lathe chains delete {version}")
    return version
