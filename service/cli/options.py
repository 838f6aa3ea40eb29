"""What commands share: how a flag becomes an environment variable, state, progress."""

import shlex
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import typer

from service.errors import BadValueError
from training.encoder.spec import EncoderSpec

if TYPE_CHECKING:
    from service.home import Home
    from service.places import Places
    from service.registry import Registry
    from service.settings import Settings
    from training.encoder.encoder import Encoder

SOURCE = (
    "FILE.jsonl[#FIELD], .txt, .parquet#COLUMN, .npy, a folder of these, either at s3://… or any URL, "
    "hf:DATASET/CONFIG:SPLIT#FIELD, or pydoc:"
)
"""What a source may be."""


def flag(name: str, help_text: str, **more: Any) -> Any:
    """An option that is also the environment variable `LATHE_…`."""
    return typer.Option(name, help=help_text, envvar=f"LATHE_{name.strip('-').replace('-', '_').upper()}", **more)


def state() -> "tuple[Settings, Home]":
    """Settings and state folder of a command that does not serve."""
    from service.home import Home
    from service.settings import read_settings

    settings = read_settings()
    return settings, Home(settings.home)


def writable_state() -> "tuple[Settings, Home]":
    """Settings and state folder of a command that changes it.

    Raises:
        ValueError: if the folder cannot be written, or is not safe to use.
    """
    settings, home = state()
    home.require_writable()
    return settings, home


def registry_with_places(write: bool) -> "tuple[Registry, Places]":
    """The chains of the state folder, or of all replicas; starters included.

    Raises:
        ValueError: for a command that writes, if the folder cannot be written.
        UnavailableError: where replicas share chains, without Redis.
    """
    from service.starters import open_registry

    settings, home = writable_state() if write else state()
    if not write:
        home.open()  # where it cannot be written, it is read
    return open_registry(home, settings.redis_url)


def find_encoder(settings: "Settings", name: str | None) -> EncoderSpec:
    """The configured encoder of that name; else a model by its folder or hub id; None is the default."""
    if name is None:
        return settings.specs[0]
    known = {spec.name: spec for spec in settings.specs} | {spec.model: spec for spec in settings.specs}
    return known.get(name) or EncoderSpec(name=name.rstrip("/").rpartition("/")[2], model=name, dtype=settings.dtype)


def load_encoder(settings: "Settings", name: str | None) -> "Encoder":
    """The encoder, loaded, with the threads that were set."""
    import torch

    from training.encoder.encoder import Encoder

    torch.set_num_threads(settings.threads)
    return Encoder(find_encoder(settings, name), settings.device)


def command_line() -> str:
    """The command as it was written, for provenance: paths without their folders."""
    return shlex.join(["lathe", *(Path(a).name if Path(a).exists() else a for a in sys.argv[1:])])


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """KEY=VALUE options as a dictionary.

    Raises:
        BadValueError: for one without the sign.
    """
    found = {}
    for item in given or []:
        key, sign, value = item.partition("=")
        if not sign or not key or not value:
            raise BadValueError(f"{option} takes KEY=VALUE, got {item!r}")
        found[key] = value
    return found


def numbers(given: list[str] | None, option: str) -> dict[str, float]:
    """KEY=NUMBER options as a dictionary.

    Raises:
        BadValueError: for one without the sign, or with something else than a number.
    """
    found = {}
    for key, value in pairs(given, option).items():
        try:
            found[key] = float(value)
        except ValueError:
            raise BadValueError(f"{option} {key} takes a number, got {value!r}") from None
    return found


class ProgressBar:
    """A bar on the terminal's error stream; silent where nobody looks."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self.bar = tqdm(
            total=100, bar_format="{percentage:3.0f}% |{bar:30}| {desc}", file=sys.stderr, disable=None, leave=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def __call__(self, fraction: float, message: str) -> None:
        """Show a fraction of the work and a sentence about it."""
        self.bar.n = round(100 * fraction, 1)
        self.bar.set_description_str(message)
