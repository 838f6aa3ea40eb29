"""`lathe encoders`: listing, adding and removing the encoders that servers may host."""

import json
import shlex
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from lathe.service.cli.options import (
    flag,
    load_state,
    load_writable_state,
    open_trained_encoders,
    parse_numbers,
    split_versioned_name,
    take_fields,
)
from lathe.service.encoder_settings import AddedEncoders, EncoderSettings, convert_settings_error
from lathe.service.errors import BadValueError, ConflictError
from lathe.training.encoder.spec import UpstreamSpec
from lathe.training.reporting.text import align_columns
from lathe.transforms.files import expand_home

app = typer.Typer(help="Show, add and remove the encoders that may be served.", no_args_is_help=True)


@app.command("list")
def list_encoders() -> None:
    """List the encoders a server may host, the default first, without loading them."""
    settings, _ = load_state()
    rows = [["name", "dtype", "served", "model"]]
    for hosted, spec in zip(settings.hosted, settings.specs, strict=False):  # trained encoders come after these
        served = "at start" if hosted.load else "on request"
        if spec.upstream is None:
            rows.append([spec.name, spec.dtype, served, spec.model])
        else:
            rows.append([spec.name, spec.upstream.protocol, served, f"{spec.model} at {spec.upstream.url}"])
    trained = open_trained_encoders(write=False)
    for name in trained.names():
        live, versions = trained.live(name), ", ".join(map(str, trained.versions(name)))
        served = "none live" if live is None else f"version {live}"
        rows.append([name, settings.dtype, served, f"trained, versions {versions}"])
    typer.echo(align_columns(rows, left=range(4)))


@app.command()
def show(encoder: Annotated[str, typer.Argument(help="NAME or NAME@VERSION of a trained encoder")]) -> None:
    """Print a trained encoder as JSON: base, certificate, provenance and versions."""
    typer.echo(json.dumps(open_trained_encoders(write=False).describe(encoder), indent=2))


@app.command()
def promote(
    encoder: Annotated[str, typer.Argument(help="NAME@VERSION of a trained encoder")],
    gate: Annotated[
        list[str] | None, flag("--gate", "MEASURE=VALUE the certificate must reach, besides the gates of the training.")
    ] = None,
    force: Annotated[bool, flag("--force", "Promote it although it fails gates.")] = False,
) -> None:
    """Make a version of a trained encoder live if its certificate passes the gates.

    The gates are thresholds on the certificate's measures. A running server serves the version within a second or two.
    """
    from lathe.service.chains.version_folder import promote_with_gates
    from lathe.training.finetuning.requests import check_encoder_gates

    name, version = split_versioned_name(encoder, "encoder")
    gates = parse_numbers(gate, "--gate")
    pointer = promote_with_gates(open_trained_encoders(write=True), name, version, gates, force, check_encoder_gates)
    forced = f", promoted past {', '.join(pointer.overridden_gates)}" if pointer.overridden_gates else ""
    typer.echo(f"{name}@{version} is live{forced}")


@app.command()
def rollback(name: Annotated[str, typer.Argument(help="NAME of a trained encoder")]) -> None:
    """Make the version of a trained encoder live that was live before, and print it."""
    typer.echo(f"{name}@{open_trained_encoders(write=True).rollback(name).live} is live")


@app.command()
def delete(
    encoder: Annotated[str, typer.Argument(help="NAME@VERSION of a trained encoder")],
    force: Annotated[bool, flag("--force", "Delete it although an index uses it.")] = False,
) -> None:
    """Delete a version of a trained encoder permanently.

    A version that an index uses is deleted only with --force.
    """
    from lathe.service.index.backend import describe_indexes

    settings, home = load_writable_state()
    name, version = split_versioned_name(encoder, "encoder")
    users = [i["name"] for i in describe_indexes(settings, home) if i.get("encoder") == f"{name}@{version}"]
    if users and not force:
        raise ConflictError(f"{name}@{version} is used by the indexes {', '.join(users)}; --force deletes it")
    open_trained_encoders(write=True).delete(name, version)
    typer.echo(f"{name}@{version} is deleted")


@app.command("add")
@take_fields(
    EncoderSettings,
    name=typer.Argument(help="Name by which requests select it."),
    upstream=None,
    prompts=flag("--prompt", "NAME=TEXT put before inputs; repeatable."),
    default_prompt_name=flag("--default-prompt"),
    attention=None,
    compile=None,
    trust_remote_code=None,
)
@take_fields(
    UpstreamSpec,
    into="upstream",
    optional=True,
    url=flag("--upstream", "Address of an embeddings API that encodes in place of a model."),
    protocol=flag("--protocol", "Protocol of the API. [default: openai]"),
    model=flag("--upstream-model", "Name of the model at the API."),
    probe_seconds=None,
)
def add_encoder(fields: dict[str, Any], upstream: dict[str, Any]) -> None:
    """Add an encoder that servers of this state folder may host, after loading it once, or asking its API, as a check.

    A running server serves it after PUT /encoders/NAME with the admin key, others from their next start.
    """
    from lathe.training.encoder.opening import open_encoder
    from lathe.training.encoder.prompts import find_missing_prompts

    settings, home = load_writable_state()
    if "url" in upstream:
        fields["upstream"] = {"protocol": "openai"} | upstream
    elif upstream:
        raise BadValueError("the options of an embeddings API need its address: --upstream URL")
    try:
        added = EncoderSettings(**fields | {"model": _resolve_folder(fields.get("model"))})
    except ValidationError as error:
        raise convert_settings_error(error) from None
    names = {hosted.name for hosted in settings.hosted} | set(open_trained_encoders(write=False).names())
    if added.name in names:
        raise ConflictError(f"the name {added.name} is in use by another encoder", param="name")

    encoder = open_encoder(added.build_spec(settings.dtype), settings.device, settings.vector_stores)
    AddedEncoders(home.root).add(added, names)
    kind = encoder.spec.dtype if added.upstream is None else f"{added.upstream.protocol} at {added.upstream.url}"
    typer.echo(f"{added.name}: {encoder.dimensions} dimensions, {encoder.max_length} tokens, {kind}")
    if missing := find_missing_prompts(encoder.spec.model, encoder.prompts):
        options = " ".join(f"--prompt {shlex.quote(f'{side}={text}')}" for side, text in missing.items())
        typer.echo(
            f"Warning: models of this name are trained with prompts, and this folder has none: remove the encoder, and "
            f"add it with {options}",
            err=True,
        )
    typer.echo(
        f"To serve it from a running server: curl -X PUT -H 'authorization: Bearer KEY' URL/encoders/{added.name}",
        err=True,
    )


def _resolve_folder(model: str | None) -> str | None:
    """Return the absolute path of a model's folder, so that a server started elsewhere finds it.

    A hub id or None is returned unchanged.
    """
    folder = None if model is None else expand_home(model)
    return str(folder.absolute()) if folder is not None and folder.is_dir() else model


@app.command("remove")
def remove_encoder(name: Annotated[str, typer.Argument(help="Name with which it was added.")]) -> None:
    """Remove an encoder that was added from the state folder.

    A running server serves it until DELETE /encoders/NAME.
    """
    settings, home = load_writable_state()
    if name in {encoder.name for encoder in settings.encoders}:
        raise ValueError(f"{name} is in LATHE_ENCODERS: remove it there")
    AddedEncoders(home.root).remove(name)
    typer.echo(f"{name} removed")
