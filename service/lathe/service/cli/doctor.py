"""`lathe doctor`: what this machine and installation have and lack, and the consequences."""

import os
import platform
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Set
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from packaging.requirements import Requirement

from lathe.service.build_info import DISTRIBUTIONS, describe_build, describe_package, find_mixed_installation
from lathe.service.cli.options import load_state
from lathe.service.errors import ServiceError
from lathe.training.encoder.devices import best_device, has_bfloat16, read_cpu_flags, resolve_dtype
from lathe.training.encoder.prompts import describe_chat_template, find_chat_template
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec, UpstreamSpec
from lathe.training.endpoint import read_key
from lathe.transforms.files import expand_home

if TYPE_CHECKING:
    from lathe.service.home import Home
    from lathe.service.settings import Settings

EXTRAS = {
    "lathe-training[offline]": "the default encoder has to come from the hub, over the network",
    "lathe-training[parquet]": "parquet files are neither read nor written",
    "lathe-training[onnx]": "`lathe export --format onnx` does not work",
    "lathe-training[faiss]": "`lathe export --format faiss` and the import of FAISS indexes do not work",
    "lathe-service[faiss]": "indexes of codes take as much memory as those of floats",
    "lathe-service[index]": "graphs of floats are those of FAISS, which are slower; without FAISS too, a query is "
    "compared with all rows",
    "lathe-service[milvus]": "LATHE_INDEX_URL does not work: indexes stay on one machine",
    "lathe-service[pgvector]": "`lathe pgvector` and `lathe index export --to pgvector` do not work",
    "lathe-training[remote]": "sources at URLs (s3://…) are not read",
    "lathe-training[evaluation]": "`lathe evaluate` does not work",
    "lathe-training[finetuning]": "`lathe train` does not work, and data sets of the Hugging Face hub (hf:…) are "
    "not read",
    "lathe-training[engines]": "`lathe advise --verify` works for FAISS alone, not for Qdrant and LanceDB",
    "lathe-training[lora]": "`training.lora` of a job does not work: all weights are trained, or none",
    "lathe-training[ray]": "`--engine ray` does not work: fits and encoding stay on one machine",
    "lathe-service[ray-serve]": "the service does not run under Ray Serve",
    "lathe-service[redis]": "LATHE_REDIS_URL does not work: replicas share nothing",
}
"""What does not work without each extra, in the form in which pip takes it."""

FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12")
"""Packages that bring the module `faiss`."""

FIT_BYTES = 2_000_000_000
"""Bytes of a million vectors of 384 dimensions and their hashes."""

COMPILERS = ("c++", "g++", "clang++", "cl")
INCLUDE = Path(sysconfig.get_path("include"))

X86 = ("x86_64", "AMD64")

AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
"""CPU flags that torch and NumPy require for kernels for AVX-512."""


def doctor() -> None:
    """Show what is installed, which device encodes, and what is missing with its consequence.

    The exit status is 1 if the state folder, an encoder or a server cannot be used.
    """
    settings, home = load_state()
    machine = read_machine(settings)
    _print_line("lathe", describe_build())
    if mixture := find_mixed_installation():
        _print_line("lathe", mixture)
    _print_line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "transformers", "sentence-transformers", "numpy"):
        _print_line(package, describe_package(package))
    _print_line(
        "device", f"{machine.device}, {resolve_dtype(settings.dtype, machine.device)}, {machine.cores} CPU cores"
    )
    extras = [extra for extra in EXTRAS if not _check_requirement(Requirement(extra), version)]
    _print_line("extras", ", ".join(extras) or "none")

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
    """Open the state folder, and print its state and warnings.

    Returns a sentence that says why the folder cannot be written, or None.
    """
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
    """
    origin, available = _locate_encoder(spec)
    loaded = spec.upstream is None
    _print_line(f"encoder {spec.name}", origin if loaded and spec.model == DEFAULT_MODEL else f"{spec.model}, {origin}")
    if loaded and spec.chat_template is None and find_chat_template(partial(_read_model_file, spec)):
        _print_line(f"encoder {spec.name}", describe_chat_template(spec.name))
    return available


def _locate_encoder(spec: EncoderSpec) -> tuple[str, bool]:
    """Return `(where an encoder's files or its API are, whether they can be used)`.

    Files that can be downloaded count as usable. An API is not called, since that may cost. Its key must be in the
    environment.
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
    """Return a file of an encoder's model, from the model's folder or the hub's cache, or None if it is not there."""
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
    """Return `(description of an embeddings API, whether its key is in the environment or not needed)`."""
    place = f"{upstream.protocol} at {upstream.url}"
    if upstream.api_key_env is None:
        return f"{place}, without a key", True
    try:
        read_key(upstream.api_key_env, "api_key_env")
    except ValueError as error:
        return f"{place}: {error}", False
    return f"{place}, key in {upstream.api_key_env}", True


def _check_servers(settings: "Settings", home: "Home") -> bool:
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


@dataclass(frozen=True)
class Machine:
    """Properties of a machine that matter to Lathe.

    Attributes:
        bfloat16: whether that device supports bfloat16 in hardware.
        cpu_flags: instruction sets of the CPU, as Linux names them; empty if the system does not report them.
        driver: whether an NVIDIA driver is installed.
        free_bytes: free bytes on the disk of the state folder.
    """

    device: str
    bfloat16: bool
    cpu_flags: frozenset[str]
    driver: bool
    cores: int
    free_bytes: int
    compiler: bool
    headers: bool


def read_machine(settings: "Settings", include: Path = INCLUDE) -> Machine:
    """Return what this machine has: device, CPU, disk, compiler, and Python's headers in the folder `include`."""
    device = settings.device or best_device()
    return Machine(
        device=device,
        bfloat16=has_bfloat16(device),
        cpu_flags=frozenset(read_cpu_flags()),
        driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        cores=os.cpu_count() or 1,
        free_bytes=shutil.disk_usage(_find_existing_folder(settings.home)).free,
        compiler=any(shutil.which(name) for name in COMPILERS),
        headers=(include / "Python.h").exists(),
    )


def _find_existing_folder(path: Path) -> Path:
    """Return the folder at `path`, or the nearest parent of it that exists."""
    folder = expand_home(path)
    while not folder.exists():
        folder = folder.parent
    return folder


def _lacks_avx512(flags: Set[str], machine: str) -> bool:
    """Return whether the CPU is an x86 known to lack AVX-512. Return False if its flags are unknown.

    Args:
        flags: flags of the CPU; empty if the system does not report them.
        machine: type of the CPU, as `platform.machine` names it.
    """
    return machine in X86 and bool(flags) and not flags >= AVX512


@cache
def find_unmet(distribution: str, extra: str = "", version: Callable[[str], str] = version) -> tuple[str, ...]:
    """Return the requirements of a package that are not met, as texts such as `torch>=2.9 (2.3.1 is installed)`.

    Args:
        distribution: name on the package index.
        extra: checks the requirements that this extra adds; empty checks those without extras.
        version: returns the installed version of a package, or raises `PackageNotFoundError`.
    """
    problems: list[str] = []
    for line in requires(distribution) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue  # required without the extra too
        if marker is None or marker.evaluate({"extra": extra}):
            problems += _check_requirement(requirement, version)
    return tuple(dict.fromkeys(problems))


def _check_requirement(requirement: Requirement, version: Callable[[str], str]) -> list[str]:
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return [f"{requirement.name}{requirement.specifier} (missing)"]
    if not requirement.specifier.contains(installed, prereleases=True):
        return [f"{requirement.name}{requirement.specifier} ({installed} is installed)"]
    return [problem for extra in sorted(requirement.extras) for problem in find_unmet(requirement.name, extra, version)]


def find_shortfalls(
    settings: "Settings", machine: Machine, version: Callable[[str], str] = version
) -> Iterator[tuple[str, str]]:
    """Yield `(what is missing, its consequence)` for the machine and the installation, most important first."""
    yield from _find_device_shortfalls(machine)
    unmet = [problem for name in DISTRIBUTIONS for problem in find_unmet(name, version=version)]
    for problem in dict.fromkeys(unmet):
        yield ("an old version", f"Lathe requires {problem}: pip install -U lathe-service")
    if machine.free_bytes < FIT_BYTES:
        sizes = f"needs {FIT_BYTES / 1e9:.0f} GB, and {machine.free_bytes / 1e9:.1f} GB are free"
        yield ("little disk", f"a fit on a million texts {sizes} on the disk of the state folder")
    if not settings.redis_url:
        cost = "servers share no chains, jobs and cache: each has its own; set LATHE_REDIS_URL to share them"
        yield ("no Redis", cost)
    faiss = [name for name in FAISS if not _check_requirement(Requirement(name), version)]
    if len(faiss) > 1:
        yield ("two FAISS", f"{' and '.join(faiss)} overwrite each other's files: uninstall both, then install one")
    for extra, cost in EXTRAS.items():
        if extra.endswith("[faiss]") and faiss and faiss[0] != "faiss-cpu":
            continue  # a build for GPUs will do
        if problems := _check_requirement(Requirement(extra), version):
            yield (f"no {extra}", f"{cost}; {_format_install_command(extra, machine)} installs {', '.join(problems)}")


def _find_device_shortfalls(machine: Machine) -> Iterator[tuple[str, str]]:
    if machine.device == "cpu":
        yield ("no GPU", _describe_missing_gpu(machine))
    if not machine.bfloat16:
        device = "this CPU" if machine.device == "cpu" else "this device"
        yield (
            "no bfloat16",
            f"{device} has no instructions for it: `auto` selects float32, at about half the speed; bfloat16 would be "
            "even slower",
        )
    if machine.device == "cpu" and _lacks_avx512(machine.cpu_flags, platform.machine()):
        yield ("no AVX-512", "this CPU computes with 8 numbers at a time instead of 16")
    if machine.cores == 1:
        yield ("one CPU core", "a fit shares the core with requests, which take longer while it runs")


def _describe_missing_gpu(machine: Machine) -> str:
    if machine.driver:
        return (
            f"there is an NVIDIA driver, but this torch ({version('torch')}) finds no GPU: install a build of torch "
            "for its CUDA version"
        )
    return (
        f"the CPU encodes (cores: {machine.cores}): fast enough for short texts and small models; docs/scaling.md has "
        "the hours a corpus takes"
    )


def _format_install_command(extra: str, machine: Machine) -> str:
    command = f"pip install '{extra}'"
    if extra != "lathe-service[index]":
        return command
    missing = [] if machine.compiler else ["a C++ compiler"]
    if not machine.headers:
        missing.append("Python's headers")
    return f"install {' and '.join(missing)}, then {command}," if missing else command
