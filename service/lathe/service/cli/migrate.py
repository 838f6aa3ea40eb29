"""`lathe migrate`: whether another encoder is worth it, and the move to it."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
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
from lathe.training.deciding.requests import MigrateRequest

if TYPE_CHECKING:
    from lathe.service.chains.registry import Registry
    from lathe.training.deciding.migrate import Migration
    from lathe.training.encoder.text_encoder import TextEncoder
    from lathe.transforms.chain import Chain

MOVED = {"lathe": "INDEX", "pgvector": "TABLE#COLUMN"}
"""What `--apply` names, by the place that it can move."""

QDRANT_MOVE = Path(__file__).with_name("qdrant_move.txt")
"""Program that moves a collection of Qdrant, with the names of the decision to fill in."""

FLOAT_BYTES = 4
"""Bytes of a stored dimension."""


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
    stored = move.check(registry) if move else None
    with ProgressBar() as progress:
        migration = decide_migration(request, present, new, progress, stored)
    suggests = not (apply or name) and migration.encodes_again
    _print_decision(migration, as_json)
    if suggests:
        typer.echo("\n" + _suggest_options(migration), err=as_json)
    if move and not migration.encodes_again:
        typer.echo("Nothing is moved: the decision is not to encode again.", err=True)
        return

    if move:
        move.check(registry)  # again before anything is published, as deciding can take hours
    chain = "none"
    if migration.takes_chain and (apply or name):
        chain = _publish_chain(migration, new, name or migration.chain_name, registry)
    elif name:
        typer.echo("Nothing is published: the decision takes no chain.", err=True)
    if move:
        move.run(chain)
    elif request.place == "qdrant" and migration.encodes_again and not as_json:
        typer.echo("\n" + _write_qdrant_move(migration, new, chain))


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

    def check(self, registry: "Registry") -> "Chain | None":
        """Raise unless the move can begin, and return the chain through which an index stores its rows now."""
        if self.place == "lathe":
            index = require_movable(self.target, self.present, self.new, self.server)
            return _read_stored_chain(index, registry)
        table, _, column = self.target.partition("#")
        require_table(table, column, self.old_column, self.postgres_url)
        return None

    def run(self, chain: str) -> None:
        """Move the rows to the new encoder and a chain, `none` for none."""
        if self.place == "pgvector":
            table, _, column = self.target.partition("#")
            move_table_to(table, column, self.new, self.old_column, None, chain, self.postgres_url)
        else:
            reindex_on_server(self.target, ReindexRequest(encoder=self.new.name, chain=chain), self.server)


def _read_stored_chain(index: dict[str, Any], registry: "Registry") -> "Chain":
    """Return the chain of an index, cut to the index's dimensions. It is empty if vectors are stored as they are."""
    from lathe.service.chains.names import RAW
    from lathe.transforms.chain import Chain

    if index["chain"] == RAW:
        return Chain([])
    chain = registry.load(index["chain"]).chain
    return chain if chain.output_dimensions == index["dimensions"] else chain.fold(index["dimensions"])


def _print_decision(migration: "Migration", as_json: bool) -> None:
    """Print the decision, and the command that fits a map of queries."""
    plan = migration.plan_command()
    command = None if plan is None else _format_command(*plan)
    if as_json:
        typer.echo(json.dumps(migration.to_json() | {"command": command}, indent=1))
    else:
        typer.echo(migration.format() + (f"\n\n{command}" if command else ""))


def _check_options(request: MigrateRequest, apply: str | None, name: str | None, as_json: bool) -> None:
    """Raise for options that contradict one another, and for a name that no chain can have."""
    if as_json and (apply or name):
        raise BadValueError("--json prints the decision alone: leave --apply and --name out")
    if name is not None:
        require_name(name)
    if request.place in ("pgvector", "qdrant") and request.bytes is not None:
        raise BadValueError(f"{request.place} cannot compare codes: --bytes is for an index of Lathe")
    if apply is None:
        return
    if request.place not in MOVED:
        raise BadValueError(f"--apply moves an index of Lathe or a table of pgvector, not --for {request.place}")
    if bool(apply.partition("#")[2]) != (request.place == "pgvector"):
        raise BadValueError(f"--apply takes {MOVED[request.place]} for --for {request.place}")


def _format_command(command: str, options: dict[str, Any]) -> str:
    words = [word for field, value in options.items() for word in (f"--{field.replace('_', '-')}", str(value))]
    return shlex.join(["lathe", command, *words, *(["--no-train"] if command == "adapt" else [])])


def _suggest_options(migration: "Migration") -> str:
    place = migration.request.place
    moves = f"with --apply {MOVED[place]} it moves the rows" if place in MOVED else ""
    publishes = "with --name NAME it publishes the chain that was measured" if migration.takes_chain else ""
    options = ", and ".join(filter(None, (publishes, moves)))
    return f"The same command changes nothing yet: {options}." if options else "Nothing was changed."


def _write_qdrant_move(migration: "Migration", encoder: "TextEncoder", chain: str) -> str:
    """Return a program that moves a collection of Qdrant to the recommended choice, with how to take it back."""
    from lathe.training.encoder.text_encoder import find_side_prompt

    assert migration.recommended is not None  # the decision is to encode again
    prompts = {
        side: f', prompt_name="{name}"' if name else ""
        for side in ("document", "query")
        for name in [find_side_prompt(encoder.prompts, side, encoder.default_prompt_name)]
    }
    return QDRANT_MOVE.read_text().format(
        vector=re.sub(r"\W+", "_", encoder.name),
        encoder=encoder.name,
        chain=chain,
        size=migration.recommended.vector_bytes // FLOAT_BYTES,
        **prompts,
    )


def _publish_chain(migration: "Migration", encoder: "TextEncoder", name: str, registry: "Registry") -> str:
    """Certify the chain that the decision measured, publish it, and print its certificate. Return its version."""
    from lathe.service.cli.fit import format_fit_result
    from lathe.service.publishing.fits import publish_fitted_chain

    _, home = load_state()
    texts = home.vectors / "out_of_domain"
    with ProgressBar() as progress:
        fitted = migration.certify(encoder, texts, format_command_line(), progress)
        assert fitted is not None  # the decision takes a chain
        result = publish_fitted_chain(fitted, name, None, registry, progress)
    typer.echo("\n" + format_fit_result(result))
    version: str = result["chain"]
    return version
