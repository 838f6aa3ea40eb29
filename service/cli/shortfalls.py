"""What a machine and an installation lack, each with what that costs."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

import torch

from service.cli.kernels import lacks_avx512
from service.cli.machine import Machine, read_machine
from service.cli.requirements import unmet
from service.settings import Settings

EXTRAS = {
    "offline": "the default encoder has to come from the hub, over the network",
    "parquet": "parquet files are neither read nor written",
    "onnx": "`lathe export --format onnx` does not work",
    "faiss": "`lathe export --format faiss` and the import of FAISS indexes do not work",
    "index": "indexes have no graph: they compare a query with every row, in time that grows with the rows",
    "milvus": "LATHE_INDEX_URL does not work: indexes stay on one machine",
    "hdf5": "files of ann-benchmarks are not read",
    "remote": "sources at URLs (s3://…) are not read",
    "evaluation": "`lathe evaluate` does not work",
    "training": "`lathe train` does not work, and data sets of the Hugging Face hub (hf:…) are not read",
    "lora": "`training.lora` of a job does not work: all weights are trained, or none",
    "ray": "`--engine ray` does not work: fits and encoding stay on one machine",
    "ray-serve": "the service does not run under Ray Serve",
    "redis": "LATHE_REDIS_URL does not work: replicas share nothing",
    "otel": "LATHE_TRACING does not work",
}
"""What does not work without an extra."""

ROOM_BYTES = 2_000_000_000
"""Of a million vectors, 384 wide, with their hashes."""


@dataclass(frozen=True)
class Shortfall:
    """Something that is not there.

    Attributes:
        what: in two or three words.
        cost: what follows, and what to do about it, in a sentence.
    """

    what: str
    cost: str


def shortfalls(
    settings: Settings, machine: Machine | None = None, version: Callable[[str], str] = version
) -> Iterator[Shortfall]:
    """Yield all of them, the most felt first.

    Args:
        settings: of the server.
        machine: it runs on; this one where None.
        version: tells which version of a package is installed.
    """
    machine = machine or read_machine(settings)
    yield from of_device(machine)
    for problem in unmet("lathe", version=version):
        yield Shortfall("an old version", f"Lathe is made and tested with {problem}: pip install -U lathe")
    yield from of_disk(machine.free_bytes)
    if not settings.redis_url:
        cost = "this server is alone: another would have chains, jobs and a cache of its own; set LATHE_REDIS_URL"
        yield Shortfall("no Redis", cost)
    for extra, cost in EXTRAS.items():
        if problems := unmet("lathe", extra, version):
            yield Shortfall(f"no extra {extra}", f"{cost}; {how_to_get(extra, machine)} brings {', '.join(problems)}")


def of_device(machine: Machine) -> Iterator[Shortfall]:
    """Yield what encoding does without."""
    if machine.device == "cpu":
        yield Shortfall("no GPU", without_gpu(machine))
    if not machine.bfloat16:
        where = "this CPU does" if machine.device == "cpu" else "this device does"
        yield Shortfall(
            "no bfloat16",
            f"{where} not multiply it itself: `auto` means float32, at about half the speed; bfloat16 would be slower "
            "still",
        )
    if machine.device == "cpu" and lacks_avx512(machine.cpu_flags, platform.machine()):
        yield Shortfall("no AVX-512", "this CPU computes with 8 numbers at a time and not with 16")
    if machine.cores == 1:
        yield Shortfall("one CPU core", "a fit takes turns with requests, which wait longer while it runs")


def without_gpu(machine: Machine) -> str:
    """Say what encoding on a CPU means here; a GPU that torch cannot use is worth a word."""
    if machine.driver:
        return (
            f"there is an NVIDIA driver, but this torch ({torch.__version__}) finds no GPU: install a build of torch "
            "for its CUDA version"
        )
    return (
        f"the CPU encodes (cores: {machine.cores}): enough for short texts and small models; docs/scaling.md says how "
        "many hours a corpus takes"
    )


def of_disk(free: int) -> Iterator[Shortfall]:
    """Yield a shortfall if the state folder's disk has no room to work."""
    if free < ROOM_BYTES:
        needed = f"a fit on a million texts takes {ROOM_BYTES / 1e9:.0f} GB"
        yield Shortfall("little disk", f"{needed}, and beside the state folder {free / 1e9:.1f} GB are free")


def how_to_get(extra: str, machine: Machine) -> str:
    """Return the command that installs an extra, and what has to be there first."""
    command = f"pip install 'lathe[{extra}]'"
    if extra != "index":
        return command
    missing = [] if machine.compiler else ["a C++ compiler"]
    if not machine.headers:
        missing.append("Python's headers")
    return f"install {' and '.join(missing)}, then {command}," if missing else command
