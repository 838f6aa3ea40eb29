"""`lathe fit`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.comparison import differences
from service.cli.engines import AddressOption, EngineOption, WorkersOption, open_engine
from service.cli.options import (
    SOURCE,
    ProgressBar,
    command_line,
    flag,
    load_encoder,
    numbers,
    pairs,
    registry_with_places,
    state,
)
from service.errors import BadValueError
from training.fitting.fit_request import FitRequest
from training.fitting.gates import require_gates
from training.sources.bad_shards import BadShards
from transforms.artifact import Manifest
from transforms.kinds import KINDS

if TYPE_CHECKING:
    from service.settings import Settings


def fit(
    name: Annotated[str, flag("--name", "Name of the chain; a fit adds its next version.")],
    source: Annotated[str, flag("--source", SOURCE)],
    steps: Annotated[
        str | None,
        flag("--steps", f"Such as r2,geopres:128 or r2,geopres:128,nested=true. Kinds: {', '.join(KINDS)}."),
    ] = None,
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    promote: Annotated[
        bool | None,
        typer.Option(
            "--promote/--no-promote", envvar="LATHE_PROMOTE", help="Make it live. [default: if no version is]"
        ),
    ] = None,
    gate: Annotated[
        list[str] | None, flag("--gate", "MEASURE=VALUE the certificate must reach, such as local_spearman=0.9.")
    ] = None,
    foreign: Annotated[list[str] | None, flag("--foreign", "NAME=SOURCE to certify on besides pydoc:.")] = None,
    normalize: Annotated[bool, typer.Option(envvar="LATHE_NORMALIZE", help="Give unit vectors.")] = True,
    seed: Annotated[int, flag("--seed", "Of the split into fitted and held-out rows.", min=0)] = 0,
    transform: Annotated[
        Path | None, flag("--transform", "Write the source's vectors through the chain: OUT.npy")
    ] = None,
    targets: Annotated[
        str | None,
        flag(
            "--targets",
            "FILE.npy, .parquet#COLUMN, .jsonl#FIELD: what each row should become, for procrustes and low_rank_affine.",
        ),
    ] = None,
    target_encoder: Annotated[
        str | None, flag("--target-encoder", "Or the encoder whose vectors of the same texts they should become.")
    ] = None,
    keep_moments: Annotated[
        bool, flag("--keep-moments", "Save mean and covariance of the rows with the chain: more can be added then.")
    ] = False,
    add_to: Annotated[
        str | None, flag("--add-to", "NAME@VERSION: add the source to what it was fitted on, in place of --steps.")
    ] = None,
    bad_shards: Annotated[
        BadShards, flag("--bad-shards", "What a damaged file does: refuse stops the fit, skip leaves it out.")
    ] = "refuse",
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    as_json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False,
) -> None:
    """Fit a chain on a source, certify it on held-out and foreign text, and register it.

    A running server serves it at once. A killed fit can be started again: rows it has encoded are
    not encoded again. Vectors (.npy) need --encoder if they are that encoder's.
    """
    from service.fit_job import run_fit
    from service.names import require_name
    from training.sources.source import open_source
    from transforms.chain import parse_steps

    if (steps is None) == (add_to is None):
        raise BadValueError("give --steps, or --add-to with the version whose steps and rows to go on from")
    settings, home = state()
    registry, places = registry_with_places(write=True)
    request = FitRequest(
        name=name,
        steps=[] if steps is None else [step.spec() for step in parse_steps(steps)],
        source=source,
        normalize=normalize,
        gates=numbers(gate, "--gate"),
        promote=promote,
        foreign=pairs(foreign, "--foreign"),
        seed=seed,
        targets=targets,
        keep_moments=keep_moments,
        add_to=add_to,
        bad_shards=bad_shards,
    )
    require_name(name)
    require_gates(request.gates)
    texts = open_source(source, bad_shards).kind() == "texts"
    if add_to is not None:
        encoder = encoder or encoder_of(settings, registry.manifest(*registry.resolve(add_to)))
        texts = False
    with open_engine(engine, address, workers, settings) as by, ProgressBar() as progress:  # a cluster answers soon
        loaded = load_encoder(settings, encoder) if texts or encoder else None
        target = load_encoder(settings, target_encoder) if target_encoder else None
        result = run_fit(
            request, loaded, registry, places, home.vectors, progress, command_line(), transform, target, engine=by
        )
    typer.echo(json.dumps(result, indent=1) if as_json else in_words(result))


def encoder_of(settings: "Settings", manifest: Manifest) -> str | None:
    """The encoder of a version as `find_encoder` takes it: its name if it is configured, else its model."""
    described = manifest.get("encoder") or {}
    configured = described.get("name") in {spec.name for spec in settings.specs}
    return described.get("name" if configured else "model")


def in_words(result: dict[str, Any]) -> str:
    """A fit's result for reading."""
    certificate = result["certificate"]
    lines = [
        f"{result['chain']} fitted on {certificate['n_fit']:,} rows, measured on {certificate['n_heldout']:,} held out",
        "",
        f"{'':24}{'held out':>10}" + "".join(f"{name[:12]:>14}" for name in certificate["foreign"]),
    ]
    for measure in ("local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"):
        values = [certificate[measure], *(corpus[measure] for corpus in certificate["foreign"].values())]
        widths = [10, *(14 for _ in certificate["foreign"])]
        lines.append(f"{measure:24}" + "".join(f"{shown(v):>{w}}" for v, w in zip(values, widths, strict=True)))
    for size, measured in certificate.get("sizes", {}).items():
        lines.append(f"{f'recall_at_10, cut to {size}':24}{shown(measured['recall_at_10']):>10}")
    for measure, value in certificate.get("alignment", {}).items():
        lines.append(f"{'alignment ' + measure:24}{shown(value):>10}")
    for measure in ("mean_norm", "isoscore", "bytes_per_vector"):
        before, after = certificate[measure]["before"], certificate[measure]["after"]
        lines.append(f"{measure:24}{shown(before):>10} → {shown(after)}")
    lines += differences(certificate)
    lines += ["", *(f"Warning: {warning}" for warning in certificate["warnings"])]
    if result["failed_gates"]:
        lines.append(f"Not live: it fails {', '.join(result['failed_gates'])}.")
    elif result["promoted"]:
        sizes = [f"dimensions: {place}" for place in result["places"] if place != "nested"]
        lines.append("It is live" + (f" and answers {', '.join(sizes)}." if sizes else "."))
    else:
        lines.append(f"It is not live: lathe chains promote {result['chain']}")
    return "\n".join(lines)


def shown(value: float | None) -> str:
    """A measure in four places."""
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
