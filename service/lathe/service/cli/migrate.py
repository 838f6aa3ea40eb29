"""`lathe migrate`: whether another encoder is worth it."""

import json
from typing import Annotated, Any

import typer

from lathe.service.cli.options import (
    ENCODER,
    SOURCE,
    ProgressBar,
    build_request,
    flag,
    load_encoder,
    load_state,
    take_fields,
)
from lathe.training.migration.request import MigrateRequest


@take_fields(
    MigrateRequest,
    to="The new encoder: a configured one, or a model's folder or hub id.",
    source=SOURCE,
    encoder=flag("--from", f"The present encoder. {ENCODER}"),
    pairs="Judged searches: FILE of texts with the fields query and document, or FILE#QUERY,DOCUMENT; a line for each "
    "relevant document.",
)
def migrate(fields: dict[str, Any], as_json: Annotated[bool, flag("--json", "Print JSON.")] = False) -> None:
    """Decide whether to move to another encoder, before any row is encoded again.

    On a sample of the rows, it compares to stay, to map queries of the new encoder to the present vectors (a bridge),
    and to encode all rows again. With judged queries, it recommends the cheapest of these that no other beats beyond
    chance, by nDCG@10. Without, it says how many of the nearest rows agree. It also estimates the time and tokens to
    encode all rows. It changes nothing.
    """
    request = build_request(MigrateRequest, fields)
    from lathe.training.migration.decision import decide_migration

    settings, _ = load_state()
    present, new = load_encoder(settings, request.encoder), load_encoder(settings, request.to)
    with ProgressBar() as progress:
        migration = decide_migration(request, present, new, progress)
    typer.echo(json.dumps(migration.to_json(), indent=1) if as_json else migration.format())
