"""The root of the command line."""

import sqlite3
import sys
from typing import Annotated, NoReturn

import typer

from service.cli import (
    advise,
    chains,
    diagnose,
    doctor,
    encoders,
    evaluate,
    export,
    fit,
    index,
    serve,
    stream,
    train,
    worker,
)
from service.errors import ServiceError, as_service_error
from training.errors import TrainingError
from transforms.errors import TransformError

app = typer.Typer(
    name="lathe",
    help="Compact, debiased text embeddings: fitted on your own text, versioned, measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would take [#FIELD] for markup, and cut long options short
    add_completion=False,
)


def show_version(wanted: bool) -> None:
    """Print the release and end."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"lathe {version('lathe')}")
        raise typer.Exit


@app.callback()
def root(
    wanted: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the release and exit.")
    ] = False,
) -> None:
    """What stands before every command."""


app.command()(serve.serve)
app.command()(worker.worker)
app.command()(fit.fit)
app.command()(advise.advise)
app.command()(stream.embed)
app.command()(stream.reduce)
app.command()(export.export)
app.command()(evaluate.evaluate)
app.add_typer(chains.app, name="chains")
app.add_typer(encoders.app, name="encoders")
app.add_typer(index.app, name="index")
app.add_typer(train.app, name="train")
app.command()(diagnose.diagnose)
app.command()(doctor.doctor)


INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main() -> None:
    """Run a command; foreseen errors are one line, not a traceback."""
    try:
        app()
    except (ServiceError, TrainingError, TransformError, ValueError) as error:
        fail(str(error))
    except sqlite3.Error as error:
        fail(as_service_error(error).message)
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except SystemExit as ending:
        if ending.code == INTERRUPTED:  # the library says nothing then
            fail("stopped; what is encoded or trained is kept, the same command goes on from there", INTERRUPTED)
        raise


def fail(message: str, status: int = 1) -> NoReturn:
    """Say what was wrong and exit."""
    typer.echo(f"lathe: {message}", err=True)
    sys.exit(status)
