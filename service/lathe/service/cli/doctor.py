"""`lathe doctor`: what is installed, damaged or missing, and the consequences."""

import platform
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lathe.service.cli.options import load_state
from lathe.service.errors import ServiceError
from lathe.training.encoder.chat_template import describe_chat_template, find_chat_template
from lathe.training.encoder.precision import resolve_dtype
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec, UpstreamSpec
from lathe.training.endpoint import read_key
from lathe.transforms.errors import ArtifactError

if TYPE_CHECKING:
    from lathe.service.home import Home
    from lathe.service.settings import Settings


def doctor() -> None:
    """Show what is installed, which device encodes, what is damaged, and what is missing with its consequence.

    The exit status is 1 if something is damaged, or the state folder, an encoder or a server cannot be used.
    """
    from lathe.service.chains.registry import Registry
    from lathe.service.cli.kernels import describe_instructions, describe_kernels
    from lathe.service.cli.machine import read_machine
    from lathe.service.cli.requirements import find_unmet_of_extra
    from lathe.service.cli.shortfalls import EXTRAS, find_shortfalls
    from lathe.service.index.backend import describe_folder
    from lathe.service.index.embedded.indexes import list_folders_without_record, list_index_folders
    from lathe.service.index.embedded.schema import find_damage
    from lathe.transforms.chain import Chain

    settings, home = load_state()
    machine = read_machine(settings)
    _print_line("lathe", version("lathe-service"))
    _print_line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "transformers", "sentence-transformers", "numpy"):
        _print_line(package, _find_version(package))
    _print_line(
        "device", f"{machine.device}, {resolve_dtype(settings.dtype, machine.device)}, {machine.cores} CPU cores"
    )
    _print_line("instructions", describe_instructions(machine.cpu_flags, platform.machine()))
    _print_line("kernels", describe_kernels())
    workers, threads = settings.worker_processes, settings.worker_options.threads
    _print_line("workers", f"{workers} of {threads} threads for each encoder")
    _print_line("extras", ", ".join(extra for extra in EXTRAS if not find_unmet_of_extra(extra)) or "none")
    problem = _check_state_folder(home)
    missing_encoder = not all([_check_encoder(spec) for spec in settings.specs])
    registry = Registry(home.shared / "chains" if settings.redis_url else home.chains)
    damaged = 0
    for name in registry.names():
        for number in registry.versions(name):
            try:
                Chain.load(registry.root / name / str(number))
            except ArtifactError as error:
                damaged += 1
                _print_line(f"chain {name}@{number}", f"damaged: {error}")
    _print_line("chains", f"{len(registry.names())} registered, {damaged} versions damaged")
    broken = _check_servers(settings, home)
    for folder in list_index_folders(home.indexes):
        index = describe_folder(folder)
        damage = index.get("error") or find_damage(folder / "record.db")
        broken = broken or damage is not None
        _print_line(f"index {folder.name}", damage or f"{index['count']:,} items in {index['chain']}, record readable")
    for name in list_folders_without_record(home.indexes):
        broken = True
        _print_line(f"index {name}", "its record.db is missing")
    typer.echo("\nMissing, and the consequence:")
    for missing in find_shortfalls(settings, machine):
        _print_line(missing.what, missing.cost)
    if problem or missing_encoder or damaged or broken:
        raise typer.Exit(1)


def _check_state_folder(home: "Home") -> str | None:
    """Prepare the state folder and print whether it can be used; return why it cannot, or None if it can."""
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
    """Print where an encoder's files are, and a warning if they hold a chat template; return whether it can be loaded.

    The files of a model that was not downloaded yet are not looked into.
    """
    origin, available = _locate_encoder(spec)
    loaded = spec.upstream is None
    _print_line(f"encoder {spec.name}", origin if loaded and spec.model == DEFAULT_MODEL else f"{spec.model}, {origin}")
    if loaded and spec.chat_template is None and find_chat_template(partial(_read_model_file, spec)):
        _print_line(f"encoder {spec.name}", describe_chat_template(spec.name))
    return available


def _locate_encoder(spec: EncoderSpec) -> tuple[str, bool]:
    """Describe where an encoder's files are, or its API; also return whether they are there or can be downloaded.

    An API is not asked, since that may cost; its key must be in the environment.
    """
    if spec.upstream is not None:
        return _describe_upstream(spec.upstream)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HFValidationError

    from lathe.training.encoder.loading import locate_model

    if locate_model(spec.model) != spec.model:
        return "from its offline package", True
    if Path(spec.model).expanduser().is_dir():
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
    """Return the content of one of an encoder's files, in its folder or as downloaded; None if there is none here."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    from lathe.training.encoder.loading import locate_model

    folder = Path(locate_model(spec.model)).expanduser()
    if folder.is_dir():
        file = folder / name
        return file.read_bytes() if file.is_file() else None
    try:
        cached = try_to_load_from_cache(spec.model, name, revision=spec.revision)
    except HFValidationError:  # neither a folder nor a hub id
        return None
    return Path(cached).read_bytes() if isinstance(cached, str) else None


def _describe_upstream(upstream: UpstreamSpec) -> tuple[str, bool]:
    """Describe an embeddings API; also return whether the key for it is in the environment, if it needs one."""
    place = f"{upstream.protocol} at {upstream.url}"
    if upstream.api_key_env is None:
        return f"{place}, without a key", True
    try:
        read_key(upstream.api_key_env, "api_key_env")
    except ValueError as error:
        return f"{place}: {error}", False
    return f"{place}, key in {upstream.api_key_env}", True


def _check_servers(settings: "Settings", home: "Home") -> bool:
    """Connect to the Milvus and Redis of the settings, print the outcome, and return whether one cannot be used."""
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
    """Connect to Redis and print its state; return why it cannot be used, or None if it can."""
    settings.require_redis_extra()
    from lathe.service.cli.redis_checkup import check_redis

    try:
        for subject, sentence in check_redis(settings.redis_url):
            _print_line(subject, sentence)
    except ServiceError as error:
        _print_line("Redis", error.message)
        return error.message
    return None


def _print_line(subject: str, text: str) -> None:
    """Print a line of the report."""
    typer.echo(f"{subject:32}{text}")


def _find_version(package: str) -> str:
    """Return the installed version of a package, or "missing"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
