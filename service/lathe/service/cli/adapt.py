"""`lathe adapt`: what judged searches can improve, tried and published."""

import json
from typing import Annotated, Any

import typer

from lathe.service.cli.fit import format_fit_result
from lathe.service.cli.options import (
    ENCODER,
    SOURCE,
    ProgressBar,
    build_request,
    flag,
    load_encoder,
    open_publish_context,
    take_fields,
)
from lathe.training.deciding.requests import AdaptRequest


@take_fields(
    AdaptRequest,
    source=SOURCE,
    pairs="Judged searches: FILE of texts with the fields query and document, or FILE#QUERY,DOCUMENT; a line for each "
    "relevant document.",
    folders=flag("--folder"),
    encoder=ENCODER,
)
def adapt(fields: dict[str, Any], as_json: Annotated[bool, flag("--json", "Print JSON.")] = False) -> None:
    """Improve search by judged queries: try what helps, from the cheapest change to the dearest, and recommend one.

    It tries to leave the vectors as they are, to debias them, to map queries, and to train the encoder. Three fifths of
    the queries teach. The others are set aside in two halves, and each is measured where the other half chose. The
    cheapest change that beats doing nothing beyond chance, and that no other beats, is recommended, and published with
    --name: as a chain, as a trained encoder, or both. With 334 judged queries, all is tried; with fewer than 150,
    nothing is. If it was stopped, the same command continues.
    """
    request = build_request(AdaptRequest, fields)
    request.check()
    from lathe.service.publishing.adaptations import run_adaptation
    from lathe.training.deciding.adapt_report import format_adaptation

    context = open_publish_context(encoders=None)
    loaded = load_encoder(context.settings, request.encoder)
    with ProgressBar() as progress:
        adaptation = run_adaptation(request, loaded, context, progress)
    if as_json:
        typer.echo(json.dumps(adaptation.to_json(), indent=1))
        return

    typer.echo(format_adaptation(adaptation.result))
    if published := adaptation.published.get("encoder"):
        typer.echo(f"\n{published['encoder']} is {'live' if published['promoted'] else 'published, and not live'}")
        typer.echo(f"To roll back: lathe encoders delete {published['encoder']}")
    if published := adaptation.published.get("chain"):
        typer.echo("\n" + format_fit_result(published))
    if request.name is None and adaptation.result.recommended is not adaptation.result.baseline:
        typer.echo("\nThe same command with --name NAME publishes it, and repeats no training.")
