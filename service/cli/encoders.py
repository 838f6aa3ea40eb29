"""`lathe encoders`: the encoders that may be served."""

from typing import Annotated, Any

import typer

from service.cli.options import pairs, state, writable_state
from service.errors import ConflictError

app = typer.Typer(help="Show, add and remove the encoders that may be served.", no_args_is_help=True)


@app.command("list")
def list_encoders() -> None:
    """The encoders a server may host; the first is the default. Nothing is loaded."""
    settings, _ = state()
    typer.echo(f"{'name':28}{'dtype':10}{'served':12}model")
    for hosted, spec in zip(settings.hosted, settings.specs, strict=True):
        typer.echo(f"{spec.name:28}{spec.dtype:10}{'at start' if hosted.load else 'when asked':12}{spec.model}")


@app.command("add")
def add_encoder(
    name: Annotated[str, typer.Argument(help="What requests call it.")],
    model: Annotated[str, typer.Option(help="A folder, or a hub id.")],
    revision: Annotated[str | None, typer.Option(help="Of the hub id.")] = None,
    pooling: Annotated[str | None, typer.Option(help="mean, cls, max or lasttoken; unset: the model's own.")] = None,
    layer: Annotated[int | None, typer.Option(help="Use only so many layers.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens read of a text; unset: the model's own.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="NAME=TEXT put before inputs; repeatable.")] = None,
    default_prompt: Annotated[str | None, typer.Option(help="Name of the prompt used where none is named.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    load: Annotated[bool, typer.Option(help="Serve it from the start, or only once an admin asks for it.")] = True,
) -> None:
    """Let servers of this state folder host one more encoder; it is loaded once, to see that it can be.

    A server that runs serves it after PUT /encoders/NAME with the admin key, others from their next start.
    """
    from pydantic import ValidationError

    from service.hosted import AddedEncoders, EncoderSettings, described_problem
    from training.encoder.encoder import Encoder

    settings, home = writable_state()
    given: dict[str, Any] = {
        "name": name,
        "model": model,
        "revision": revision,
        "pooling": pooling,
        "layer": layer,
        "max_length": max_length,
        "prompts": pairs(prompt, "--prompt"),
        "default_prompt_name": default_prompt,
        "dtype": dtype,
        "load": load,
    }
    try:
        wanted = EncoderSettings(**given)
    except ValidationError as error:
        raise described_problem(error) from None
    taken = {hosted.name for hosted in settings.hosted}
    if name in taken:
        raise ConflictError(f"there is an encoder {name} already", param="name")
    encoder = Encoder(wanted.spec(settings.dtype), settings.device)
    AddedEncoders(home.root).add(wanted, taken)
    typer.echo(f"{name}: {encoder.dimensions} dimensions, {encoder.max_length} tokens, {encoder.spec.dtype}")
    typer.echo(
        f"A running server takes it with: curl -X PUT -H 'authorization: Bearer KEY' URL/encoders/{name}", err=True
    )


@app.command("remove")
def remove_encoder(name: Annotated[str, typer.Argument(help="As it was added.")]) -> None:
    """Forget an encoder that was added; a server that runs serves it until DELETE /encoders/NAME."""
    from service.hosted import AddedEncoders

    settings, home = writable_state()
    if name in {encoder.name for encoder in settings.encoders}:
        raise ValueError(f"{name} is named by LATHE_ENCODERS; take it out there")
    AddedEncoders(home.root).remove(name)
    typer.echo(f"{name} removed")
