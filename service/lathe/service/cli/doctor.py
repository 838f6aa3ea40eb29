"""`lathe doctor`: what is installed and missing, and the consequences."""

import platform
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lathe.service.build_info import describe_build, describe_package, find_mixture
from lathe.service.cli.options import load_state
from lathe.service.errors import ServiceError
from lathe.training.encoder.devices import resolve_dtype
from lathe.training.encoder.prompts import describe_chat_template, find_chat_template
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec, UpstreamSpec
from lathe.training.endpoint import read_key
from lathe.transforms.files import expand_home

if TYPE_CHECKING:
    from lathe.service.home import Home
    from lathe.service.settings import Settings


def doctor() -> None:
    """Show what is installed, which device encodes, and what is missing with its consequence.

    The exit status is 1 if the state folder, an encoder or a server cannot be used.
    """
    from lathe.service.cli.installation import EXTRAS, find_shortfalls, find_unmet_of_extra, read_machine

    settings, home = load_state()
    machine = read_machine(settings)
    _print_line("lathe", describe_build())
    if mixture := find_mixture():
        _print_line("lathe", mixture)
    _print_line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "transformers", "sentence-transformers", "numpy"):
        _print_line(package, describe_package(package))
    _print_line(
        "device", f"{machine.device}, {resolve_dtype(settings.dtype, machine.device)}, {machine.cores} CPU cores"
    )
    _print_line("extras", ", ".join(extra for extra in EXTRAS if not find_unmet_of_extra(extra)) or "none")

    _print_line("access", settings.describe_access())
    problem = _check_state_folder(home)
    missing_encoder = not all([_check_encoder(spec) for spec in settings.specs])
    unanswering = _check_servers(settings, home)

    typer.echo("\nMissing, and the consequence:")
    for what, cost in find_shortfalls(settings, machine):
        _print_line(what, cost)
    if problem or missing_encoder or unanswering:
        raise typer.Exit(1)


def _check_state_folder(home: "Home") -> str | None:
    """Open the state folder and print its state and warnings. Return why it cannot be written, or None."""
    try:
        problem = home.open()
        _print_line("state folder", f"{home.root} can be written" if problem is None else f"{problem}: {home.root}")
        for warning in home.list_warnings():
            _print_line("state folder", warning)
    except ValueError as error:
        problem = str(error)
        _print_line("state folder", problem)
    return problem


def _check_encoder(spec: EncoderSpec) -> bool:
    """Print where an encoder's files are, with a warning on a chat template. Return whether it can be loaded.

    The files of a model that was not downloaded yet are not looked into.

    Returns:
        Whether the encoder can be loaded.
    """
    origin, available = _locate_encoder(spec)
    loaded = spec.upstream is None
    _print_line(f"encoder {spec.name}", origin if loaded and spec.model == DEFAULT_MODEL else f"{spec.model}, {origin}")
    if loaded and spec.chat_template is None and find_chat_template(partial(_read_model_file, spec)):
        _print_line(f"encoder {spec.name}", describe_chat_template(spec.name))
    return available


def _locate_encoder(spec: EncoderSpec) -> tuple[str, bool]:
    """Describe where an encoder's files or its API are, and return that and whether they can be used.

    An API is not called, since that may cost. Its key must be in the environment.

    Returns:
        The description, and whether the files are there or can be downloaded.
    """
    if spec.upstream is not None:
        return _describe_upstream(spec.upstream)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HFValidationError

    from lathe.training.encoder.loading import locate_model

    if locate_model(spec.model) != spec.model:
        return "from its offline package", True
    if expand_home(spec.model).is_dir():
        return "a folder", True
    try:
        cached = try_to_load_from_cache(spec.model, "config.json", revision=spec.revision)
    except HFValidationError:
        return "missing: there is no such folder, and it is not a valid hub id", False
    if isinstance(cached, str):
        return "from the hub, downloaded", True
    if HF_HUB_OFFLINE:
        return "missing: not downloaded from the hub, and HF_HUB_OFFLINE is set", False
    return "from the hub, to be downloaded at the first start", True


def _read_model_file(spec: EncoderSpec, name: str) -> bytes | None:
    """Return a file of an encoder's model, from its folder or the hub's cache, or None if it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from lathe.training.encoder.loading import locate_model

    folder = expand_home(locate_model(spec.model))
    if folder.is_dir():
        file = folder / name
        return file.read_bytes() if file.is_file() else None
    try:
        cached = try_to_load_from_cache(spec.model, name, revision=spec.revision)
    except HFValidationError:  # neither a folder nor a hub id
        return None
    return Path(cached).read_bytes() if isinstance(cached, str) else None


def _describe_upstream(upstream: UpstreamSpec) -> tuple[str, bool]:
    """Describe an embeddings API, and return that and whether its key is in the environment."""
    place = f"{upstream.protocol} at {upstream.url}"
    if upstream.api_key_env is None:
        return f"{place}, without a key", True
    try:
        read_key(upstream.api_key_env, "api_key_env")
    except ValueError as error:
        return f"{place}: {error}", False
    return f"{place}, key in {upstream.api_key_env}", True


def _check_servers(settings: "Settings", home: "Home") -> bool:
    """Print whether Milvus and Redis answer, if they are used, and return whether one of them does not."""
    from lathe.service.index.backend import find_problem, get_capabilities

    problems = []
    backend = get_capabilities(settings)
    if not backend.in_state_folder:
        problems.append(find_problem(settings, home))
        _print_line(backend.name, problems[-1] or "answers")
    if settings.redis_url:
        problems.append(_check_redis(settings))
    return any(problems)


def _check_redis(settings: "Settings") -> str | None:
    """Print whether Redis answers. Return the error message if it does not, else None."""
    settings.require_redis_extra()
    from lathe.service.redis.connection import RedisConnection

    try:
        with closing(RedisConnection(settings.redis_url)) as connection, connection.reached() as client:
            client.ping()
            connection.check_settings()
    except ServiceError as error:
        _print_line("Redis", error.message)
        return error.message
    _print_line("Redis", connection.danger or "answers")
    return None


def _print_line(subject: str, text: str) -> None:
    typer.echo(f"{subject:32}{text}")
