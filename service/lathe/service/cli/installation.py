"""What this machine and installation have and lack, for `lathe doctor`: device, disk, packages."""

import os
import platform
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch
from packaging.requirements import Requirement

from lathe.service.build_info import DISTRIBUTIONS
from lathe.service.settings import Settings
from lathe.training.encoder.devices import best_device, has_bfloat16, read_cpu_flags
from lathe.transforms.files import expand_home

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


def read_machine(settings: Settings, include: Path = INCLUDE) -> Machine:
    """Find out what this machine has (device, CPU, disk, compiler), and return it.

    `include` is the folder in which Python's headers are looked for.
    """
    device = settings.device or best_device()
    return Machine(
        device=device,
        bfloat16=has_bfloat16(device),
        cpu_flags=frozenset(read_cpu_flags()),
        driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        cores=os.cpu_count() or 1,
        free_bytes=shutil.disk_usage(find_existing_folder(settings.home)).free,
        compiler=any(shutil.which(name) for name in COMPILERS),
        headers=(include / "Python.h").exists(),
    )


def find_existing_folder(path: Path) -> Path:
    """Return the folder at `path`, or the nearest parent of it that exists."""
    folder = expand_home(path)
    while not folder.exists():
        folder = folder.parent
    return folder


def lacks_avx512(flags: Set[str], machine: str) -> bool:
    """Return whether the CPU is an x86 known to lack AVX-512.

    Args:
        flags: flags of the CPU; empty if the system does not report them.
        machine: type of the CPU, as `platform.machine` names it.
    """
    return machine in X86 and bool(flags) and not flags >= AVX512


@cache
def find_unmet(distribution: str, extra: str = "", version: Callable[[str], str] = version) -> tuple[str, ...]:
    """Return the requirements of a package that are not met, each as `torch>=2.9 (2.3.1 is installed)`.

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


def find_unmet_of_extra(extra: str, version: Callable[[str], str] = version) -> list[str]:
    """Return the requirements that an extra adds and that are not met.

    Args:
        extra: the extra, as `lathe-service[redis]`.
        version: see `find_unmet`.
    """
    return _check_requirement(Requirement(extra), version)


def _check_requirement(requirement: Requirement, version: Callable[[str], str]) -> list[str]:
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return [f"{requirement.name}{requirement.specifier} (missing)"]
    if not requirement.specifier.contains(installed, prereleases=True):
        return [f"{requirement.name}{requirement.specifier} ({installed} is installed)"]
    return [problem for extra in sorted(requirement.extras) for problem in find_unmet(requirement.name, extra, version)]


def find_shortfalls(
    settings: Settings, machine: Machine, version: Callable[[str], str] = version
) -> Iterator[tuple[str, str]]:
    """Yield (what is missing, its consequence) for machine and installation, most important first."""
    yield from _find_device_shortfalls(machine)
    unmet = [problem for name in DISTRIBUTIONS for problem in find_unmet(name, version=version)]
    for problem in dict.fromkeys(unmet):
        yield ("an old version", f"Lathe requires {problem}: pip install -U lathe-service")
    yield from _find_disk_shortfalls(machine.free_bytes)
    if not settings.redis_url:
        cost = "servers share no chains, jobs and cache: each has its own; set LATHE_REDIS_URL to share them"
        yield ("no Redis", cost)
    faiss = [name for name in FAISS if not _check_requirement(Requirement(name), version)]
    if len(faiss) > 1:
        yield ("two FAISS", f"{' and '.join(faiss)} overwrite each other's files: uninstall both, then install one")
    for extra, cost in EXTRAS.items():
        if extra.endswith("[faiss]") and faiss and faiss[0] != "faiss-cpu":
            continue  # a build for GPUs will do
        if problems := find_unmet_of_extra(extra, version):
            yield (f"no {extra}", f"{cost}; {_format_install_command(extra, machine)} installs {', '.join(problems)}")


def _find_device_shortfalls(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield (what is missing, its consequence) for the device: GPU, bfloat16, AVX-512 and CPU cores."""
    if machine.device == "cpu":
        yield ("no GPU", _describe_missing_gpu(machine))
    if not machine.bfloat16:
        device = "this CPU" if machine.device == "cpu" else "this device"
        yield (
            "no bfloat16",
            f"{device} has no instructions for it: `auto` selects float32, at about half the speed; bfloat16 would be "
            "even slower",
        )
    if machine.device == "cpu" and lacks_avx512(machine.cpu_flags, platform.machine()):
        yield ("no AVX-512", "this CPU computes with 8 numbers at a time instead of 16")
    if machine.cores == 1:
        yield ("one CPU core", "a fit shares the core with requests, which take longer while it runs")


def _describe_missing_gpu(machine: Machine) -> str:
    """Return why no GPU is used: a build of torch that does not fit the driver, or no driver."""
    if machine.driver:
        return (
            f"there is an NVIDIA driver, but this torch ({torch.__version__}) finds no GPU: install a build of torch "
            "for its CUDA version"
        )
    return (
        f"the CPU encodes (cores: {machine.cores}): fast enough for short texts and small models; docs/scaling.md has "
        "the hours a corpus takes"
    )


def _find_disk_shortfalls(free: int) -> Iterator[tuple[str, str]]:
    if free < FIT_BYTES:
        needed = f"a fit on a million texts needs {FIT_BYTES / 1e9:.0f} GB"
        yield ("little disk", f"{needed}, and {free / 1e9:.1f} GB are free on the disk of the state folder")


def _format_install_command(extra: str, machine: Machine) -> str:
    command = f"pip install '{extra}'"
    if extra != "lathe-service[index]":
        return command
    missing = [] if machine.compiler else ["a C++ compiler"]
    if not machine.headers:
        missing.append("Python's headers")
    return f"install {' and '.join(missing)}, then {command}," if missing else command
