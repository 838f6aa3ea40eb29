"""`lathe encoders`: listing, adding and removing the encoders that servers may host."""

from typing import Annotated, Any

import typer

from service.cli.options import load_state, load_writable_state, parse_pairs
from service.errors import ConflictError
from training.reporting.text import align_columns

app = typer.Typer(help="Show, add and remove the encoders that may be served.", no_args_is_help=True)


@app.command("list")
def list_encoders() -> None:
    """List the encoders a server may host, the default first; no encoder is loaded."""
    settings, _ = load_state()
    rows = [["name", "dtype", "served", "model"]]
    for hosted, spec in zip(settings.hosted, settings.specs, strict=True):
        rows.append([spec.name, spec.dtype, "at start" if hosted.load else "on request", spec.model])
    typer.echo(align_columns(rows, left=range(4)))


@app.command("add")
def add_encoder(
    name: Annotated[str, typer.Argument(help="Name by which requests select it.")],
    model: Annotated[str, typer.Option(help="A folder, or a hub id.")],
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
) -> None:
    """Add an encoder that servers of this state folder may host, after loading it once as a check.

    A running server serves it after PUT /encoders/NAME with the admin key, others from their next start.
    """
    from pydantic import ValidationError

    from service.encoder_settings import AddedEncoders, EncoderSettings, convert_settings_error
    from training.encoder.encoder import Encoder

    settings, home = load_writable_state()
    fields: dict[str, Any] = {
        "name": name,
        "model": model,
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
    try:
        added = EncoderSettings(**fields)
    except ValidationError as error:
        raise convert_settings_error(error) from None
    names = {hosted.name for hosted in settings.hosted}
    if name in names:
        raise ConflictError(f"the name {name} is in use by another encoder", param="name")
    encoder = Encoder(added.build_spec(settings.dtype), settings.device)
    AddedEncoders(home.root).add(added, names)
    typer.echo(f"{name}: {encoder.dimensions} dimensions, {encoder.max_length} tokens, {encoder.spec.dtype}")
    typer.echo(
        f"To serve it from a running server: curl -X PUT -H 'authorization: Bearer KEY' URL/encoders/{name}", err=True
    )


@app.command("remove")
def remove_encoder(name: Annotated[str, typer.Argument(help="Name with which it was added.")]) -> None:
    """Remove an encoder that was added; a running server serves it until DELETE /encoders/NAME."""
    from service.encoder_settings import AddedEncoders

    settings, home = load_writable_state()
    if name in {encoder.name for encoder in settings.encoders}:
        raise ValueError(f"{name} is in LATHE_ENCODERS: remove it there")
    AddedEncoders(home.root).remove(name)
    typer.echo(f"{name} removed")
