"""`lathe encoders`: listing, adding and removing the encoders that servers may host."""

import json
import shlex
from typing import Annotated, Any

import typer

from lathe.service.cli.options import (
    flag,
    load_state,
    load_writable_state,
    open_trained_encoders,
    parse_numbers,
    parse_pairs,
)
from lathe.service.errors import BadValueError, ConflictError
from lathe.training.encoder.spec import UPSTREAM_ADDRESSES
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
    """Show a trained encoder as JSON: base, certificate, provenance and versions."""
    typer.echo(json.dumps(open_trained_encoders(write=False).describe(encoder), indent=2))


@app.command()
def promote(
    encoder: Annotated[str, typer.Argument(help="NAME@VERSION of a trained encoder")],
    gate: Annotated[
        list[str] | None, flag("--gate", "MEASURE=VALUE the certificate must reach, besides the gates of the training.")
    ] = None,
    force: Annotated[bool, flag("--force", "Promote it although it fails gates.")] = False,
) -> None:
    """Make a version live if its certificate passes the gates.

    A running server serves it within a second or two.
    """
    from lathe.service.chains.version_folder import promote_with_gates
    from lathe.training.finetuning.requests import require_encoder_gates

    name, version = _split_version(encoder)
    gates = parse_numbers(gate, "--gate")
    pointer = promote_with_gates(open_trained_encoders(write=True), name, version, gates, force, require_encoder_gates)
    forced = f", promoted past {', '.join(pointer.overridden_gates)}" if pointer.overridden_gates else ""
    typer.echo(f"{name}@{version} is live{forced}")


@app.command()
def rollback(name: Annotated[str, typer.Argument(help="NAME of a trained encoder")]) -> None:
    """Make the version live that was live before."""
    typer.echo(f"{name}@{open_trained_encoders(write=True).rollback(name).live} is live")


@app.command()
def delete(
    encoder: Annotated[str, typer.Argument(help="NAME@VERSION of a trained encoder")],
    force: Annotated[bool, flag("--force", "Delete it although an index uses it.")] = False,
) -> None:
    """Delete a version permanently.

    A version that an index uses is deleted only with --force.
    """
    from lathe.service.index.backend import describe_indexes

    settings, home = load_writable_state()
    name, version = _split_version(encoder)
    users = [i["name"] for i in describe_indexes(settings, home) if i.get("encoder") == f"{name}@{version}"]
    if users and not force:
        raise ConflictError(f"{name}@{version} is used by the indexes {', '.join(users)}; --force deletes it")
    open_trained_encoders(write=True).delete(name, version)
    typer.echo(f"{name}@{version} is deleted")


def _split_version(encoder: str) -> tuple[str, int]:
    from lathe.service.chains.names import split_ref

    name, version = split_ref(encoder, "encoder")
    if version is None:
        raise BadValueError(f"name a version, such as {name}@1")
    return name, version


@app.command("add")
def add_encoder(
    name: Annotated[str, typer.Argument(help="Name by which requests select it.")],
    model: Annotated[str | None, typer.Option(help="A folder, or a hub id.")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of the hub id.")] = None,
    pooling: Annotated[str | None, typer.Option(help="mean, cls, max or lasttoken; unset: the model's own.")] = None,
    layer: Annotated[int | None, typer.Option(help="Number of layers to use; unset: all.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum tokens read of a text; unset: the model's own.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="NAME=TEXT put before inputs; repeatable.")] = None,
    default_prompt: Annotated[str | None, typer.Option(help="Name of the prompt for requests that name none.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    long_text: Annotated[
        str, typer.Option(help="What becomes of texts longer than it reads: truncate, error or mean.")
    ] = "truncate",
    chat_template: Annotated[
        str | None, typer.Option(help="off: do not wrap texts in an instruct model's chat template; on: do.")
    ] = None,
    idle_seconds: Annotated[
        float | None, typer.Option(help="Seconds without a request after which it is unloaded; 0: never.")
    ] = None,
    load: Annotated[bool, typer.Option(help="Serve it from the start, or only once an admin asks for it.")] = True,
    upstream: Annotated[
        str | None,
        typer.Option(help="Address of an embeddings API that encodes in place of a model."),
    ] = None,
    protocol: Annotated[str, typer.Option(help=f"Protocol of the API: {' or '.join(UPSTREAM_ADDRESSES)}.")] = "openai",
    upstream_model: Annotated[str | None, typer.Option(help="Name of the model at the API.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the API's key.")] = None,
    dimensions: Annotated[int | None, typer.Option(help="Dimensions to ask the API for; unset: its default.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Maximum texts of a call.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Maximum calls at once.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Maximum calls a minute; unset: no limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Maximum tokens a minute; unset: no limit.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for an answer of the API.")] = None,
    provider: Annotated[
        str | None, typer.Option(help="Name of the provider in the space's id; unset: the address's host.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a million tokens, to count the cost.")] = None,
) -> None:
    """Add an encoder that servers of this state folder may host, after loading it once, or asking its API, as a check.

    A running server serves it after PUT /encoders/NAME with the admin key, others from their next start.
    """
    from pydantic import ValidationError

    from lathe.service.encoder_settings import AddedEncoders, EncoderSettings, convert_settings_error
    from lathe.training.encoder.opening import open_encoder
    from lathe.training.encoder.prompts import find_missing_prompts

    settings, home = load_writable_state()
    fields: dict[str, Any] = {
        "name": name,
        "model": _resolve_folder(model),
        "revision": revision,
        "pooling": pooling,
        "layer": layer,
        "max_length": max_length,
        "prompts": parse_pairs(prompt, "--prompt"),
        "default_prompt_name": default_prompt,
        "dtype": dtype,
        "long_text": long_text,
        "chat_template": chat_template,
        "idle_seconds": idle_seconds,
        "load": load,
    }
    upstream_options = {
        "model": upstream_model,
        "api_key_env": api_key_env,
        "dimensions": dimensions,
        "batch_size": batch_size,
        "concurrency": concurrency,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "timeout": timeout,
        "provider": provider,
        "price": price,
    }
    chosen_options = {name: value for name, value in upstream_options.items() if value is not None}
    if upstream is not None:
        fields["upstream"] = {"url": upstream, "protocol": protocol} | chosen_options
    elif chosen_options:
        raise BadValueError("the options of an embeddings API need its address: --upstream URL")

    try:
        added = EncoderSettings(**fields)
    except ValidationError as error:
        raise convert_settings_error(error) from None
    names = {hosted.name for hosted in settings.hosted} | set(open_trained_encoders(write=False).names())
    if name in names:
        raise ConflictError(f"the name {name} is in use by another encoder", param="name")

    encoder = open_encoder(added.build_spec(settings.dtype), settings.device, settings.vector_stores)
    AddedEncoders(home.root).add(added, names)
    kind = encoder.spec.dtype if added.upstream is None else f"{added.upstream.protocol} at {added.upstream.url}"
    typer.echo(f"{name}: {encoder.dimensions} dimensions, {encoder.max_length} tokens, {kind}")
    if missing := find_missing_prompts(str(added.model or upstream_model), encoder.prompts):
        options = " ".join(f"--prompt {shlex.quote(f'{side}={text}')}" for side, text in missing.items())
        typer.echo(
            f"Warning: models of this name are trained with prompts, and this folder has none: remove the encoder, and "
            f"add it with {options}",
            err=True,
        )
    typer.echo(
        f"To serve it from a running server: curl -X PUT -H 'authorization: Bearer KEY' URL/encoders/{name}", err=True
    )


def _resolve_folder(model: str | None) -> str | None:
    """Return the absolute path of a model's folder, so that a server started in another folder finds it.

    A hub id, or None, is returned unchanged.
    """
    folder = None if model is None else expand_home(model)
    return str(folder.absolute()) if folder is not None and folder.is_dir() else model


@app.command("remove")
def remove_encoder(name: Annotated[str, typer.Argument(help="Name with which it was added.")]) -> None:
    """Remove an encoder that was added.

    A running server serves it until DELETE /encoders/NAME.
    """
    from lathe.service.encoder_settings import AddedEncoders

    settings, home = load_writable_state()
    if name in {encoder.name for encoder in settings.encoders}:
        raise ValueError(f"{name} is in LATHE_ENCODERS: remove it there")
    AddedEncoders(home.root).remove(name)
    typer.echo(f"{name} removed")
