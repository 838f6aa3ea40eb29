"""`lathe adapt`: what judged searches can improve, tried and published."""

import json
from typing import Annotated, Any

import typer

from lathe.service.cli.fit import format_fit_result
from lathe.service.cli.options import (
    SOURCE,
    ProgressBar,
    build_request_of,
    flag,
    format_command_line,
    load_encoder,
    load_state,
    open_chains,
    open_trained_encoders,
)
from lathe.training.adaptation.request import AdaptRequest
from lathe.training.fitting.requests import RowSource


def adapt(
    source: Annotated[str, flag("--source", SOURCE)],
    pairs: Annotated[
        str,
        flag(
            "--pairs",
            "Judged searches: FILE of texts with the fields query and document, or FILE#QUERY,DOCUMENT; a line for "
            "each relevant document.",
        ),
    ],
    name: Annotated[
        str | None, flag("--name", "Publish what is recommended under this name. [default: only recommend]")
    ] = None,
    folder: Annotated[
        list[str] | None,
        flag("--folder", "Folder of labelled data sets to pre-finetune on, as for lathe train; repeatable."),
    ] = None,
    bytes: Annotated[  # noqa: A002 - the word of the flag
        int | None, flag("--bytes", "Bytes per vector: each change is tried with codes of this size, too.")
    ] = None,
    test_pairs: Annotated[
        str | None,
        flag("--test-pairs", "Other judged searches to report the gain on. [default: two fifths of --pairs]"),
    ] = None,
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Also train the encoder, whose vectors then change.")
    ] = True,
    budget: Annotated[
        float | None, flag("--budget", "Seconds for all, about: trainings get fewer queries, or are left out.")
    ] = None,
    promote: Annotated[
        bool | None,
        typer.Option("--promote/--no-promote", help="Make it live. [default: if no version is]"),
    ] = None,
    seed: Annotated[int, flag("--seed", "Seed of the division of the queries, and of training.", min=0)] = 0,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Improve search by judged queries: try what helps, from the cheapest change to the dearest, and recommend one.

    It tries to leave the vectors as they are, to debias them, to map queries, and to train the encoder. Three fifths of
    the queries teach. The others are set aside in two halves, and each is measured where the other half chose. The
    cheapest change that beats doing nothing beyond chance, and that no other beats, is recommended, and published with
    --name: as a chain, as a trained encoder, or both. With 334 judged queries, all is tried; with fewer than 150,
    nothing is. If it was stopped, the same command continues.
    """
    from lathe.service.chains.names import require_name
    from lathe.service.encoders.adaptations import AdaptationSetting, run_adaptation
    from lathe.training.adaptation.report import format_ladder

    settings, home = load_state()
    registry = open_chains(write=True)
    fields: dict[str, Any] = {
        "source": RowSource(path=source),
        "pairs": pairs,
        "name": name,
        "folders": folder or [],
        "bytes": bytes,
        "test_pairs": test_pairs,
        "train": train,
        "budget": budget,
        "promote": promote,
        "seed": seed,
    }
    request = build_request_of(AdaptRequest, **{field: value for field, value in fields.items() if value is not None})
    if name is not None:
        require_name(name)
    request.check()

    loaded = load_encoder(settings, encoder)
    trained = open_trained_encoders(write=True)
    context = AdaptationSetting(settings, registry, trained, home, format_command_line())
    with ProgressBar() as progress:
        adaptation = run_adaptation(request, loaded, context, progress)
    if as_json:
        typer.echo(json.dumps(adaptation.to_json(), indent=1))
        return

    typer.echo(format_ladder(adaptation.ladder))
    if published := adaptation.published.get("encoder"):
        typer.echo(f"\n{published['encoder']} is {'live' if published['promoted'] else 'published, and not live'}")
    if published := adaptation.published.get("chain"):
        typer.echo("\n" + format_fit_result(published))
    if name is None and adaptation.ladder.recommended is not adaptation.ladder.baseline:
        typer.echo("\nThe same command with --name NAME publishes it, and repeats no training.")
