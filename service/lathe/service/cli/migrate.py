"""`lathe migrate`: whether another encoder is worth it, and the move to it."""

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from lathe.service.cli.reindex import DEFAULT_SERVER, Server, reindex_on_server
from lathe.service.errors import BadValueError
from lathe.service.index.spec import ReindexRequest
from lathe.training.fitting.requests import NewFit
from lathe.training.migration.request import MigrateRequest

if TYPE_CHECKING:
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
    server: Server = DEFAULT_SERVER,
    old_column: OldColumnOption = "embedding",
    postgres_url: PostgresUrl = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Decide whether to move to another encoder, before any row is encoded again, and move with --apply.

    On a sample of the rows, it compares to stay, to map queries by an adapter, to map queries of the new encoder to the
    present vectors (a bridge), and to encode all rows again, also in as many bytes as now. With judged queries, it
    recommends the cheapest of these that no other beats beyond chance, by nDCG@10. Without, it says how many of the
    nearest rows agree. It also estimates the time and tokens to encode all rows. Without --apply, it changes nothing.
    """
    request = build_request(MigrateRequest, fields)
    table, _, column = (apply or "").partition("#")
    if apply is not None:
        _require_target(request, column)
        if as_json:
            raise BadValueError("--json prints the decision alone: leave --apply out")
        if request.place == "pgvector":
            require_table(table, column, old_column, postgres_url)
    from lathe.training.migration.decision import decide_migration

    settings, _ = load_state()
    present, new = load_encoder(settings, request.encoder), load_encoder(settings, request.to)
    with ProgressBar() as progress:
        migration = decide_migration(request, present, new, progress)
    plan = migration.plan_command(request)
    command = None if plan is None else _format_command(*plan)
    if as_json:
        typer.echo(json.dumps(migration.to_json() | {"command": command}, indent=1))
    else:
        typer.echo(migration.format() + (f"\n\n{command}" if command else ""))
    if apply is None:
        if migration.encodes_again and request.place in MOVED:
            does = "moves them" if plan is None else "runs this and moves them"
            typer.echo(f"\nThe same command with --apply {MOVED[request.place]} {does}.", err=as_json)
        return
    if not migration.encodes_again:
        typer.echo("Nothing is moved: the decision is not to encode again.", err=True)
        return
    chain = "none" if plan is None else _fit_chain(plan[1], new)
    if request.place == "pgvector":
        move_table_to(table, column, new, old_column, None, chain, postgres_url)
    else:
        reindex_on_server(apply, ReindexRequest(encoder=new.name, chain=chain), server)


def _require_target(request: MigrateRequest, column: str) -> None:
    """Raise unless `--apply` names what can be moved, where the rows are stored."""
    if request.place not in MOVED:
        raise BadValueError(f"--apply moves an index of Lathe or a table of pgvector, not --for {request.place}")
    if bool(column) != (request.place == "pgvector"):
        raise BadValueError(f"--apply takes {MOVED[request.place]} for --for {request.place}")
    if request.place == "pgvector" and request.bytes is not None:
        raise BadValueError("pgvector cannot compare codes: --bytes moves an index of Lathe")


def _format_command(command: str, options: dict[str, Any]) -> str:
    """Return a command line of Lathe with options by field."""
    words = [word for field, value in options.items() for word in (f"--{field.replace('_', '-')}", str(value))]
    return shlex.join(["lathe", command, *words, *(["--no-train"] if command == "adapt" else [])])


def _fit_chain(options: dict[str, Any], encoder: "TextEncoder") -> str:
    """Fit the chain that the printed command fits, and return its version."""
    from lathe.service.chains.fits import FitContext, run_fit
    from lathe.transforms.chain import parse_steps

    steps = {"steps": [step.spec() for step in parse_steps(options["steps"])]} if "steps" in options else {}
    request = build_request(NewFit, options | steps)
    _, home = load_state()
    with ProgressBar() as progress:
        context = FitContext(open_chains(write=True), home.vectors, format_command_line(), encoder)
        version: str = run_fit(request, context, progress)["chain"]
    return version
