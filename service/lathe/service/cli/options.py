"""What commands share: options, settings and state folder, encoders, engines, and the progress bar."""

import inspect
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from inspect import Parameter
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typer.models import ParameterInfo

from lathe.service.errors import BadValueError
from lathe.service.waiting import StandingMessage
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.json_object import read_field_descriptions

if TYPE_CHECKING:
    from lathe.service.chains.registry import Registry
    from lathe.service.encoders.trained import TrainedEncoders
    from lathe.service.home import Home
    from lathe.service.publishing.context import PublishContext
    from lathe.service.settings import Settings
    from lathe.training.encoder.text_encoder import TextEncoder
    from lathe.training.fitting.encoding import FitEngine

AnyRequest = TypeVar("AnyRequest", bound=BaseModel)
Command = Callable[..., None]

SOURCE = (
    "FILE.jsonl[#FIELD], .txt, .parquet#COLUMN, .npy, a folder of these, either at s3://… or any URL, "
    "hf:DATASET/CONFIG:SPLIT#FIELD, or pydoc:"
)
"""Help text of options that take a source."""

ENCODER = "A configured encoder, or a model's folder or hub id; unset for the default encoder."
"""Help text of options that take an encoder. A request over HTTP takes only those that the server knows."""

BOUNDS = {"at least": "ge", "above": "gt", "at most": "le", "below": "lt"}
"""How help texts call the bounds of a number."""

FREE = 2**32
"""Bound that help texts do not mention, because nobody reaches it."""

LINE_SECONDS = 5.0
"""Seconds between two lines of progress where stderr is not a terminal."""

SERVE_DIMENSIONS = (
    "Let requests for its dimensions get it from now on: for its output dimensions, and if it is nested for all sizes "
    "without a chain of their own."
)
"""Help text of the option that changes size routes."""


def describe_size_routes(routes: list[str]) -> str:
    """Return a sentence that says which requests for dimensions a chain answers.

    A size route is a number of dimensions, or `nested`.
    """
    sizes = ["sizes without a chain of their own" if route == "nested" else f"dimensions: {route}" for route in routes]
    return (
        f"It answers {' and '.join(sizes)}." if sizes else "It serves no dimensions: it reduces none, or no encoder's."
    )


def flag(name: str, help_text: str | None = None, **parameters: Any) -> Any:
    """Return the declaration of a command's option for typer.

    Options are not environment variables, but for those that name one by `envvar`: a server's address, which is a
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
    """Read the settings. Return them and the state folder, which is neither created nor checked."""
    from lathe.service.home import Home
    from lathe.service.settings import read_settings

    settings = read_settings()
    return settings, Home(settings.home)


def load_writable_state() -> "tuple[Settings, Home]":
    """Read the settings, prepare the state folder for writing, and return both.

    Raises:
        ValueError: if the folder cannot be written, or is not safe to use.
    """
    settings, home = load_state()
    home.open_writable()
    return settings, home


def open_chains(write: bool) -> "Registry":
    """Open the registry of chains, in the state folder or shared in Redis, and install starter chains in it.

    Args:
        write: whether the command changes chains; without, a folder that cannot be written is only read.

    Raises:
        ValueError: if `write` is set and the folder cannot be written, or if the folder is not safe to use.
        UnavailableError: if replicas share chains and Redis cannot be reached.
    """
    from lathe.service.publishing.context import open_registry

    settings, home = load_writable_state() if write else load_state()
    if not write:
        home.open()
    return open_registry(home, settings.redis_url)


def open_trained_encoders(write: bool) -> "TrainedEncoders":
    """Open the registry of trained encoders, in the state folder or shared in Redis, and return it.

    Args:
        write: whether the command changes them; without, a folder that cannot be written is only read.

    Raises:
        ValueError: if `write` is set and the folder cannot be written, or if the folder is not safe to use.
        UnavailableError: if replicas share them and Redis cannot be reached.
    """
    from lathe.service.publishing.context import open_trained

    settings, home = load_writable_state() if write else load_state()
    return open_trained(home, settings.redis_url)


def open_publish_context(encoders: "Iterable[str] | None" = ()) -> "PublishContext":
    """Open what this command publishes with: the registries, in the state folder or shared in Redis, for writing.

    Args:
        encoders: names of the trained encoders to copy from Redis; None for all.

    Raises:
        ValueError: if the state folder cannot be written, or is not safe to use.
        UnavailableError: if replicas share chains and Redis cannot be reached.
    """
    from lathe.service.publishing.context import PublishContext

    settings, _ = load_writable_state()
    return PublishContext.open(settings, format_command_line(), encoders)


def find_encoder(settings: "Settings", name: str | None) -> EncoderSpec:
    """Return the spec of the named encoder of the settings, or a new spec for a model's folder or hub id.

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
    """Set torch's number of threads, and load an encoder by its name in the settings, or by a model's folder or hub id.

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
    """Yield the engine that runs a fit's work, on this machine or on Ray, and close it after the block.

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


def split_versioned_name(ref: str, kind: str = "chain") -> tuple[str, int]:
    """Split `name@version` into `(name, version)`. Raise `BadValueError` if the reference has no version."""
    from lathe.service.chains.names import split_ref

    name, version = split_ref(ref, kind)
    if version is None:
        raise BadValueError(f"name a version, such as {name}@1")
    return name, version


def format_command_line() -> str:
    """Return the command line of this process for a chain's provenance, with paths shortened to their last part."""
    return shlex.join(["lathe", *(Path(a).name if Path(a).exists() else a for a in sys.argv[1:])])


def _parse_pairs(values: list[str] | None, option: str) -> dict[str, str]:
    """Parse an option's values, each KEY=VALUE, and return them as a dict of texts.

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
    """Parse an option's values, each KEY=NUMBER, and return them as a dict of floats.

    Args:
        values: the values; None stands for none.
        option: name of the option, for errors.

    Raises:
        BadValueError: if a value is not of that form.
    """
    parsed = {}
    for key, value in _parse_pairs(values, option).items():
        try:
            parsed[key] = float(value)
        except ValueError:
            raise BadValueError(f"{option} {key} takes a number, got {value!r}") from None
    return parsed


def take_fields(
    model: Any, /, into: str = "fields", optional: bool = False, **changes: Any
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command an option for each field of a request.

    An option has the name, type, default and description of its field. Where a field is a dict, the option
    takes KEY=VALUE, repeatedly. The command gets one dict with the values by field, without those that are None. Its
    other options stand before and after the options of the fields, as its parameters do.

    Example:
        @take_fields(AdaptRequest, source=SOURCE, folders=flag("--folder"))
        def adapt(fields: dict[str, Any], as_json: bool = False) -> None:
            request = build_request(AdaptRequest, fields)

    Args:
        model: class of the request, a pydantic model or dataclass, whose docstring describes the fields.
        into: parameter of the command that gets the dict.
        optional: whether no option must be given, and the dict holds only what was given.
        changes: for a field that the command takes in another way, another help text, another option or argument, or
            None if it has no option.
    """
    descriptions = read_field_descriptions(model, none="unset")
    known: dict[str, FieldInfo] = model.__pydantic_fields__
    options = {
        field: _build_option(field, info, descriptions.get(field, ""), changes.get(field))
        for field, info in known.items()
        if field not in changes or changes[field] is not None
    }
    if into != "fields":  # beside the fields of another class, which may have the same names
        options = {field: option.replace(name=f"{into}_{field}") for field, option in options.items()}
    if optional:
        options = {field: option.replace(default=None) for field, option in options.items()}

    def decorate(command: Command) -> Command:
        parameters: list[Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            parameters += options.values() if parameter.name == into else [parameter]

        @wraps(command)
        def run(**values: Any) -> None:
            given = {field: values.pop(option.name) for field, option in options.items()}
            fields = {field: value for field, value in given.items() if value is not None}
            for field in fields:
                kind, _ = _find_type(known[field])
                if get_origin(kind) is dict:
                    parse = parse_numbers if get_args(kind)[1] is float else _parse_pairs
                    fields[field] = parse(fields[field], get_args(options[field].annotation)[1].default)
            command(**{into: fields}, **values)

        by_name = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
        run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]  # typer reads the options there
        return run

    return decorate


def _build_option(name: str, field: FieldInfo, description: str, change: str | ParameterInfo | None) -> Parameter:
    """Return the parameter of a command, as typer reads it, for a field of a request.

    Args:
        name: name of the parameter, and of the option unless `change` names another.
        field: the field.
        description: what the docstring says of the field, for an option without another help text.
        change: another help text, or another option or argument.
    """
    kind, constraints = _find_type(field)
    repeatable = get_origin(kind) in (list, dict)
    option_name = f"--{name.replace('_', '-')}"
    if kind is bool and field.default is not False:
        option_name += f"/--no-{option_name[2:]}"

    option = copy(change) if isinstance(change, ParameterInfo) else flag(option_name, change)
    # The request checks the bounds, not typer, whose message does not say the value.
    bounds = ", ".join(
        f"{words} {bound:,}"
        for words, attribute in BOUNDS.items()
        for constraint in constraints
        if (bound := getattr(constraint, attribute, FREE)) < FREE
    )
    notes = [bounds.capitalize(), "KEY=VALUE, repeatable" if get_origin(kind) is dict else "Repeatable" * repeatable]
    option.help = option.help or " ".join([description.replace("`", ""), *(f"{note}." for note in notes if note)])

    default = Parameter.empty if field.is_required() else field.default
    if repeatable:
        kind, default = list[str], None
    if default is None:
        kind |= None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _find_type(field: FieldInfo) -> tuple[Any, list[Any]]:
    """Return `(type of a field's option, constraints of the field)`.

    The type is `str` for what a command line has no type for: the request makes the value of it.
    """
    is_union = get_origin(field.annotation) in (Union, UnionType)
    alternatives = get_args(field.annotation) if is_union else (field.annotation,)
    kind, constraints = next(kind for kind in alternatives if kind is not NoneType), field.metadata
    if get_origin(kind) is Annotated:
        kind, inner = get_args(kind)
        constraints = [*constraints, *getattr(inner, "metadata", ())]

    is_option_type = kind in (bool, int, float, list[str], dict[str, str], dict[str, float])
    return (kind if is_option_type or get_origin(kind) is Literal else str), constraints


def build_request(kind: type[AnyRequest], fields: dict[str, Any]) -> AnyRequest:
    """Return the request with these fields, validated. Errors name the option of a field.

    Raises:
        BadValueError: for the first option with a wrong value, or if options contradict one another.
    """
    try:
        return kind(**fields)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            raise BadValueError(message) from None
        option = str(problem["loc"][0]).replace("_", "-")
        raise BadValueError(f"--{option}: {message}, got {problem['input']!r:.80}") from None


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
        """Remove the bar from its line, so that other output can be printed. The next call shows it again."""
        self.bar.clear()

    def _show_regularly(self) -> None:
        while not self.ended.wait(LINE_SECONDS):
            if not self.bar.disable:
                self.bar.set_description_str(self.message.describe())
                continue
            seconds = time.monotonic() - self.begun
            typer.echo(f"{self.percent:3.0f}% after {seconds:,.0f} s: {self.message.describe()}", err=True)
