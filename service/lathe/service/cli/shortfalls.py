"""Things that a machine or an installation lacks, each with its consequence."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from lathe.service.cli.kernels import lacks_avx512
from lathe.service.cli.machine import Machine, read_machine
from lathe.service.cli.requirements import find_unmet_of_extra, find_unmet_of_lathe
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
    "lathe-training[lora]": "`training.lora` of a job does not work: all weights are trained, or none",
    "lathe-training[ray]": "`--engine ray` does not work: fits and encoding stay on one machine",
    "lathe-service[ray-serve]": "the service does not run under Ray Serve",
    "lathe-service[redis]": "LATHE_REDIS_URL does not work: replicas share nothing",
    "lathe-service[otel]": "LATHE_TRACING does not work",
}
"""What does not work without each extra, in the form in which pip takes it."""

FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12")
"""Packages that bring the module `faiss`."""

FIT_BYTES = 2_000_000_000
"""Bytes of a million vectors of 384 dimensions and their hashes."""


@dataclass(frozen=True)
class Shortfall:
    """Something that is missing.

    Attributes:
        what: name in two or three words.
        cost: sentence with the consequence and what to do about it.
    """

    what: str
    cost: str


def find_shortfalls(
    settings: Settings, machine: Machine | None = None, version: Callable[[str], str] = version
) -> Iterator[Shortfall]:
    """Yield what the machine and the installation lack, most important first.

    Args:
        settings: settings of the server.
        machine: machine the server runs on; None for this one.
        version: returns the installed version of a package, or raises `PackageNotFoundError`.
    """
    machine = machine or read_machine(settings)
    yield from _find_device_shortfalls(machine)
    for problem in find_unmet_of_lathe(version):
        yield Shortfall("an old version", f"Lathe requires {problem}: pip install -U lathe-service")
    yield from _find_disk_shortfalls(machine.free_bytes)
    if not settings.redis_url:
        cost = "servers share no chains, jobs and cache: each has its own; set LATHE_REDIS_URL to share them"
        yield Shortfall("no Redis", cost)
    faiss = [name for name in FAISS if _is_installed(name, version)]
    if len(faiss) > 1:
        yield Shortfall(
            "two FAISS", f"{' and '.join(faiss)} overwrite each other's files: uninstall both, then install one"
        )
    for extra, cost in EXTRAS.items():
        if extra.endswith("[faiss]") and faiss and faiss[0] != "faiss-cpu":
            continue  # a build for GPUs will do
        if problems := find_unmet_of_extra(extra, version):
            yield Shortfall(
                f"no {extra}", f"{cost}; {_format_install_command(extra, machine)} installs {', '.join(problems)}"
            )


def _is_installed(package: str, version: Callable[[str], str]) -> bool:
    """Return whether a package is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _find_device_shortfalls(machine: Machine) -> Iterator[Shortfall]:
    """Yield what the machine lacks for fast encoding: GPU, bfloat16, AVX-512, CPU cores."""
    if machine.device == "cpu":
        yield Shortfall("no GPU", _describe_missing_gpu(machine))
    if not machine.bfloat16:
        device = "this CPU" if machine.device == "cpu" else "this device"
        yield Shortfall(
            "no bfloat16",
            f"{device} has no instructions for it: `auto` selects float32, at about half the speed; bfloat16 would be "
            "even slower",
        )
    if machine.device == "cpu" and lacks_avx512(machine.cpu_flags, platform.machine()):
        yield Shortfall("no AVX-512", "this CPU computes with 8 numbers at a time instead of 16")
    if machine.cores == 1:
        yield Shortfall("one CPU core", "a fit shares the core with requests, which take longer while it runs")


def _describe_missing_gpu(machine: Machine) -> str:
    """Describe the consequence of encoding on the CPU, or the fix if there is a GPU driver that torch cannot use."""
    if machine.driver:
        return (
            f"there is an NVIDIA driver, but this torch ({torch.__version__}) finds no GPU: install a build of torch "
            "for its CUDA version"
        )
    return (
        f"the CPU encodes (cores: {machine.cores}): fast enough for short texts and small models; docs/scaling.md has "
        "the hours a corpus takes"
    )


def _find_disk_shortfalls(free: int) -> Iterator[Shortfall]:
    """Yield a shortfall if the state folder's disk has too few free bytes for a fit on a million texts."""
    if free < FIT_BYTES:
        needed = f"a fit on a million texts needs {FIT_BYTES / 1e9:.0f} GB"
        yield Shortfall("little disk", f"{needed}, and {free / 1e9:.1f} GB are free on the disk of the state folder")


def _format_install_command(extra: str, machine: Machine) -> str:
    """Return the command that installs an extra, after the tools that must be installed first."""
    command = f"pip install '{extra}'"
    if extra != "lathe-service[index]":
        return command
    missing = [] if machine.compiler else ["a C++ compiler"]
    if not machine.headers:
        missing.append("Python's headers")
    return f"install {' and '.join(missing)}, then {command}," if missing else command
