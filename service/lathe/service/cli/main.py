"""The `lathe` command with all its subcommands."""

import os
import platform
import sqlite3
import sys
from typing import Annotated, NoReturn

import typer

from lathe.service.cli import (
    adapt,
    advise,
    calibrate,
    chains,
    checkup,
    doctor,
    encoders,
    evaluate,
    export,
    fit,
    index,
    migrate,
    pgvector,
    serve,
    stream,
    train,
)
from lathe.service.errors import ServiceError, convert_error
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError

app = typer.Typer(
    name="lathe",
    help="Compact, debiased text embeddings: fitted on your own text, versioned, measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would read [#FIELD] as markup, and cut long options
    add_completion=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        from lathe.service.build_info import describe_build, describe_package

        # Without an import of torch, which takes seconds.
        libraries = f"Python {platform.python_version()}, torch {describe_package('torch')}"
        typer.echo(f"lathe {describe_build()}\n{libraries}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Declare the options before any subcommand. The function itself does nothing."""


app.command()(serve.serve)
app.command()(serve.worker)
app.command()(fit.fit)
app.command()(advise.advise)
app.command()(adapt.adapt)
app.command()(migrate.migrate)
app.command()(checkup.checkup)
app.command()(calibrate.calibrate)
app.command()(stream.embed)
app.command()(stream.reduce)
app.command()(export.export)
app.command()(export.push)
app.command()(export.pull)
app.command()(evaluate.evaluate)
app.add_typer(chains.app, name="chains")
app.add_typer(encoders.app, name="encoders")
app.add_typer(index.app, name="index")
app.add_typer(pgvector.app, name="pgvector")
app.add_typer(train.app, name="train")
app.command()(doctor.doctor)


ENVIRONMENT = {
    # NumPy's threads sleep after 2¹⁶ cycles without work. Otherwise they wait at full speed for a tenth of a second
    # after each product, on cores that encoders could use.
    "OPENBLAS_THREAD_TIMEOUT": "16",
    # Processes that libraries start do not search the working directory, where a file may have the name of any module.
    "PYTHONSAFEPATH": "1",
}
"""Environment variables of this process and those that it starts, unless they are set."""

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main() -> None:
    """Run the `lathe` command line, and print an expected error as one line instead of a traceback.

    The exit status is then 1, or 130 after Ctrl-C. The variables of `ENVIRONMENT` that are not set are set first.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # before NumPy is imported, which reads its variable once
    try:
        app()
    except (ServiceError, TrainingError, TransformError, ValueError) as error:
        _fail(str(error))
    except sqlite3.Error as error:
        _fail(convert_error(error).message)
    except ImportError as error:
        if "map segment" not in str(error) and "allocate memory" not in str(error):
            raise
        _fail(f"there is too little memory or address space (ulimit -v) to load a library: {error}")
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            _fail(
                "stopped; what was encoded or trained is stored, and the same command continues from there", INTERRUPTED
            )
        raise


def _fail(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"lathe: {message}", err=True)
    sys.exit(status)
