"""`lathe encoders`: the encoders that the settings name."""

import typer

from service.cli.options import state

app = typer.Typer(help="Show the encoders that the settings name.", no_args_is_help=True)


@app.command("list")
def list_encoders() -> None:
    """The encoders a server would host; the first is the default. Nothing is loaded."""
    settings, _ = state()
    typer.echo(f"{'name':28}{'dtype':10}model")
    for spec in settings.specs:
        typer.echo(f"{spec.name:28}{spec.dtype:10}{spec.model}")
