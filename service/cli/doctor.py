"""`lathe doctor`: what is installed, what is damaged, what is missing, and what that costs."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from service.cli.options import state
from service.errors import ServiceError
from training.encoder.precision import resolve_dtype
from training.encoder.spec import DEFAULT_MODEL, EncoderSpec
from transforms.errors import ArtifactError

if TYPE_CHECKING:
    from service.home import Home
    from service.settings import Settings


def doctor() -> None:
    """Show what is installed, which device encodes, what is damaged, and what is missing with what that costs."""
    from service.cli.index_reading import described
    from service.cli.kernels import describe_instructions, describe_kernels
    from service.cli.machine import read_machine
    from service.cli.requirements import unmet
    from service.cli.shortfalls import EXTRAS, shortfalls
    from service.index.indexes import index_folders, without_record
    from service.index.schema import find_damage
    from service.registry import Registry
    from transforms.chain import Chain

    settings, home = state()
    machine = read_machine(settings)
    say("lathe", version("lathe"))
    say("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "transformers", "sentence-transformers", "numpy"):
        say(package, installed(package))
    say("device", f"{machine.device}, {resolve_dtype(settings.dtype, machine.device)}, {machine.cores} CPU cores")
    say("instructions", describe_instructions(machine.cpu_flags, platform.machine()))
    say("kernels", describe_kernels())
    workers, threads = settings.worker_processes, settings.worker_options.threads
    say("workers", f"{workers} of {threads} threads for each encoder")
    say("extras", ", ".join(extra for extra in EXTRAS if not unmet("lathe", extra)) or "none")
    problem = say_state_folder(home)
    absent = False
    for spec in settings.specs:
        origin, here = where_from(spec)
        absent = absent or not here
        say(f"encoder {spec.name}", origin if spec.model == DEFAULT_MODEL else f"{spec.model}, {origin}")
    registry = Registry(home.shared / "chains" if settings.redis_url else home.chains)
    damaged = 0
    for name in registry.names():
        for number in registry.versions(name):
            try:
                Chain.load(registry.root / name / str(number))
            except ArtifactError as error:
                damaged += 1
                say(f"chain {name}@{number}", f"damaged: {error}")
    say("chains", f"{len(registry.names())} registered, {damaged} versions damaged")
    broken = say_servers(settings, home)
    for folder in index_folders(home.indexes):
        index = described(folder)
        damage = index.get("error") or find_damage(folder / "record.db")
        broken = broken or damage is not None
        say(f"index {folder.name}", damage or f"{index['count']:,} items in {index['chain']}, record readable")
    for name in without_record(home.indexes):
        broken = True
        say(f"index {name}", "its record.db is missing")
    typer.echo("\nMissing, and what that costs:")
    for missing in shortfalls(settings, machine):
        say(missing.what, missing.cost)
    if problem or absent or damaged or broken:
        raise typer.Exit(1)


def say_state_folder(home: "Home") -> str | None:
    """Show whether the state folder can be used, and by whom; why it cannot be used, None if it can."""
    try:
        problem = home.open()
        say("state folder", f"{home.root} can be written" if problem is None else f"{problem}: {home.root}")
        for caution in home.cautions():
            say("state folder", caution)
    except ValueError as error:
        problem = str(error)
        say("state folder", problem)
    return problem


def where_from(spec: EncoderSpec) -> tuple[str, bool]:
    """Where an encoder's files come from, and whether they are there or can be fetched."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HFValidationError

    from training.encoder.encoder import locate_model

    if locate_model(spec.model) != spec.model:
        return "from its offline package", True
    if Path(spec.model).expanduser().is_dir():
        return "a folder", True
    try:
        found = try_to_load_from_cache(spec.model, "config.json", revision=spec.revision)
    except HFValidationError:
        return "missing: there is no such folder, and the hub has no such names", False
    if isinstance(found, str):
        return "from the hub, downloaded", True
    if HF_HUB_OFFLINE:
        return "missing: it was not downloaded from the hub, and HF_HUB_OFFLINE forbids to", False
    return "from the hub, to be downloaded at the first start", True


def say_servers(settings: "Settings", home: "Home") -> bool:
    """Show the servers that the settings name; whether one of them cannot be used."""
    problems = []
    if settings.index_url:
        problems.append(milvus_problem(settings, home))
        say("Milvus", problems[-1] or "answers")
    if settings.redis_url:
        problems.append(say_redis(settings))
    return any(problems)


def milvus_problem(settings: "Settings", home: "Home") -> str | None:
    """Why the indexes in Milvus cannot be reached; None if they can."""
    from service.cli.index_reading import no_texts
    from service.index.backend import open_indexes

    indexes = open_indexes(settings, home, no_texts)
    try:
        indexes.names()
    except ServiceError as error:
        return error.message
    finally:
        indexes.close()
    return None


def say_redis(settings: "Settings") -> str | None:
    """Show the Redis that replicas share; why it cannot be used, None if it can."""
    settings.require_redis_extra()
    from service.cli.redis_checkup import report

    try:
        for subject, sentence in report(settings.redis_url):
            say(subject, sentence)
    except ServiceError as error:
        say("Redis", error.message)
        return error.message
    return None


def say(what: str, state_of_it: str) -> None:
    """One line of the report."""
    typer.echo(f"{what:32}{state_of_it}")


def installed(package: str) -> str:
    """A package's version."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
