"""What commands share: options, settings and state folder, encoders, engines, and the progress bar."""

import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import typer

from lathe.service.errors import BadValueError
from lathe.service.waiting import StandingMessage
from lathe.training.encoder.spec import EncoderSpec

if TYPE_CHECKING:
    from lathe.service.chains.registry import Registry
    from lathe.service.encoders.trained import TrainedEncoders
    from lathe.service.home import Home
    from lathe.service.settings import Settings
    from lathe.training.encoder.text_encoder import TextEncoder
    from lathe.training.fitting.encoding import FitEngine
    from lathe.training.json_object import JsonObject

AnyRequest = TypeVar("AnyRequest", bound="JsonObject")

SOURCE = (
    "FILE.jsonl[#FIELD], .txt, .parquet#COLUMN, .npy, a folder of these, either at s3://… or any URL, "
    "hf:DATASET/CONFIG:SPLIT#FIELD, or pydoc:"
)
"""Help text of options that take a source."""


LINE_SECONDS = 5.0
"""Seconds between two lines of progress where stderr is no terminal."""

SERVE_DIMENSIONS = (
    "Let requests for its dimensions get it from now on: for its output dimensions, and if it is nested for all sizes "
    "without a chain of their own."
)
"""Help text of the option that changes size routes."""


def describe_served(routes: list[str]) -> str:
    """Return a sentence on the dimensions for which a chain is registered, given as its size routes.

    A size route is a number of dimensions whose requests the chain answers, or `nested`.
    """
    sizes = ["sizes without a chain of their own" if route == "nested" else f"dimensions: {route}" for route in routes]
    return (
        f"It answers {' and '.join(sizes)}." if sizes else "It serves no dimensions: it reduces none, or no encoder's."
    )


def flag(name: str, help_text: str, **parameters: Any) -> Any:
    """Declare an option of a command.

    Options are no environment variables, but for those that name one by `envvar`: a server's address, which is a
    setting, and addresses of other servers, which may hold a password or are the same for every command.
    """
    return typer.Option(name, help=help_text, **parameters)


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


def load_state() -> "tuple[Settings, Home]":
    """Read the settings, and return them with the state folder. Nothing is created or checked."""
    from lathe.service.home import Home
    from lathe.service.settings import read_settings

    settings = read_settings()
    return settings, Home(settings.home)


def load_writable_state() -> "tuple[Settings, Home]":
    """Read the settings and prepare the state folder for writing. Return both, or raise if it is not writable.

    Raises:
        ValueError: if the folder cannot be written, or is not safe to use.
    """
    settings, home = load_state()
    home.require_writable()
    return settings, home


def open_chains(write: bool) -> "Registry":
    """Open and return the registry of chains, from the state folder or shared in Redis.

    The starter chains are installed.

    Args:
        write: whether the command changes chains; without, a folder that cannot be written is only read.

    Raises:
        ValueError: if `write` is set and the folder cannot be written, or if the folder is not safe to use.
        UnavailableError: if replicas share chains and Redis cannot be reached.
    """
    from lathe.service.registries import open_registry

    settings, home = load_writable_state() if write else load_state()
    if not write:
        home.open()
    return open_registry(home, settings.redis_url)


def open_trained_encoders(write: bool) -> "TrainedEncoders":
    """Open and return the trained encoders, from the state folder or shared in Redis.

    Args:
        write: whether the command changes them; without, a folder that cannot be written is only read.

    Raises:
        ValueError: if `write` is set and the folder cannot be written, or if the folder is not safe to use.
        UnavailableError: if replicas share them and Redis cannot be reached.
    """
    from lathe.service.registries import open_trained

    settings, home = load_writable_state() if write else load_state()
    return open_trained(home, settings.redis_url)


def find_encoder(settings: "Settings", name: str | None) -> EncoderSpec:
    """Return the spec of the named encoder in the settings, or build one for a model's folder or hub id.

    None means the default encoder. `NAME@V` is a version of a trained encoder, `NAME` its live version.
    """
    if name is None:
        return settings.specs[0]
    known = {spec.model: spec for spec in reversed(settings.specs)} | {spec.name: spec for spec in settings.specs}
    trained = settings.trained.find(name, settings.dtype)
    return (
        known.get(name)
        or trained
        or EncoderSpec(name=name.rstrip("/").rpartition("/")[2], model=name, dtype=settings.dtype)
    )


def load_encoder(settings: "Settings", name: str | None) -> "TextEncoder":
    """Load an encoder by its name in the settings, or by a model's folder or hub id, and return it.

    Sets torch's number of threads as the settings say.

    Args:
        settings: the settings.
        name: name of the encoder; None means the default one.
    """
    import torch

    from lathe.training.encoder.opening import open_encoder

    torch.set_num_threads(settings.threads)
    return open_encoder(find_encoder(settings, name), settings.device, settings.vector_stores)


@contextmanager
def open_engine(name: str, address: str | None, workers: int | None, settings: "Settings") -> "Iterator[FitEngine]":
    """Open the engine that runs a fit's work, on this machine or on Ray, for the block, and yield it.

    A note is printed if `address` is not used.

    Args:
        name: "local" or "ray".
        address: HOST:PORT of a Ray cluster; None starts Ray on this machine.
        workers: number of Ray's worker processes; None selects it.
        settings: settings with the number of threads.

    Raises:
        EngineError: if Ray cannot be used.
    """
    from lathe.training.fitting.encoding import LOCAL

    if name == "local":
        if address is not None:
            typer.echo("--address is ignored: it is for --engine ray.", err=True)
        yield LOCAL
        return
    from lathe.training.distributed import ray_engine

    count = workers or (settings.worker_processes if address is None else None)
    with ray_engine(address, settings.threads, count) as engine:
        yield engine


def format_command_line() -> str:
    """Return the command line of this process for a chain's provenance, with paths shortened to their last part."""
    return shlex.join(["lathe", *(Path(a).name if Path(a).exists() else a for a in sys.argv[1:])])


def parse_pairs(values: list[str] | None, option: str) -> dict[str, str]:
    """Parse an option's values, each KEY=VALUE, to a dict of texts.

    Args:
        values: the values; None stands for none.
        option: name of the option, for errors.

    Raises:
        BadValueError: if a value is not of that form.
    """
    parsed = {}
    for item in values or []:
        key, separator, value = item.partition("=")
        if not separator or not key or not value:
            raise BadValueError(f"{option} takes KEY=VALUE, got {item!r}")
        parsed[key] = value
    return parsed


def parse_numbers(values: list[str] | None, option: str) -> dict[str, float]:
    """Parse an option's values, each KEY=NUMBER, to a dict of floats.

    Args:
        values: the values; None stands for none.
        option: name of the option, for errors.

    Raises:
        BadValueError: if a value is not of that form.
    """
    parsed = {}
    for key, value in parse_pairs(values, option).items():
        try:
            parsed[key] = float(value)
        except ValueError:
            raise BadValueError(f"{option} {key} takes a number, got {value!r}") from None
    return parsed


def build_request_of(kind: type[AnyRequest], **fields: Any) -> AnyRequest:
    """Return the request with these fields, which are called as the command's options.

    Raises:
        BadValueError: for the first option with a wrong value.
    """
    from pydantic import ValidationError

    try:
        return kind(**fields)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise BadValueError(f"--{option}: {problem['msg']}") from None


class ProgressBar:
    """Progress on stderr: a bar on a terminal, elsewhere a line every `LINE_SECONDS`."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self.bar = tqdm(
            total=100, bar_format="{percentage:3.0f}% |{bar:30}| {desc}", file=sys.stderr, disable=None, leave=False
        )
        self.begun = time.monotonic()
        self.percent, self.message = 0.0, StandingMessage()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._show_regularly, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()  # it would show the bar again once that is closed
        self.bar.close()

    def __call__(self, fraction: float, message: str) -> None:
        """Show how much of the work is done, as a fraction in [0, 1], and a message."""
        self.percent = round(100 * fraction, 1)
        self.message.say(message)
        self.bar.n = self.percent
        self.bar.set_description_str(message)

    def clear(self) -> None:
        """Remove the bar from its line, so that other output can be printed.

        The next call shows it again.
        """
        self.bar.clear()

    def _show_regularly(self) -> None:
        while not self.ended.wait(LINE_SECONDS):
            if not self.bar.disable:
                self.bar.set_description_str(self.message.describe())
                continue
            seconds = time.monotonic() - self.begun
            typer.echo(f"{self.percent:3.0f}% after {seconds:,.0f} s: {self.message.describe()}", err=True)
