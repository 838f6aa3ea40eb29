"""Options that choose the engine of a command: this process, or Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lathe.service.cli.options import flag

if TYPE_CHECKING:
    from lathe.service.settings import Settings
    from lathe.training.fitting.engines import Engine

EngineOption = Annotated[
    Literal["local", "ray"],
    flag("--engine", "local: this process; ray: processes on one or several machines (docs/scaling.md)."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", envvar="LATHE_RAY_ADDRESS", help="HOST:PORT of a Ray cluster. [default: one on this machine]"
    ),
]
WorkersOption = Annotated[
    int | None,
    flag(
        "--workers",
        "Worker processes of the engine ray, which share the cores. [default: up to 4, or a cluster's cores]",
        min=1,
    ),
]


@contextmanager
def open_engine(name: str, address: str | None, workers: int | None, settings: "Settings") -> "Iterator[Engine]":
    """Open an engine for the duration of the block, and yield it; prints a note if `address` is not used.

    Args:
        name: "local" or "ray".
        address: HOST:PORT of a Ray cluster; None starts Ray on this machine.
        workers: number of Ray's worker processes; None selects it.
        settings: settings with the number of threads.

    Raises:
        EngineError: if Ray cannot be used.
    """
    from lathe.training.fitting.engines import LOCAL

    if name == "local":
        if address is not None:
            typer.echo("--address is ignored: it is for --engine ray.", err=True)
        yield LOCAL
        return
    from lathe.training.distributed import ray_engine

    count = workers or (settings.worker_processes if address is None else None)
    with ray_engine(address, settings.threads, count) as engine:
        yield engine
