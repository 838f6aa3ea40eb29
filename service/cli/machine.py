"""What `lathe doctor` asks of the machine it runs on."""

import os
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from service.settings import Settings
from training.encoder.devices import best_device
from training.encoder.precision import has_bfloat16, read_cpu_flags

COMPILERS = ("c++", "g++", "clang++", "cl")
INCLUDE = Path(sysconfig.get_path("include"))


@dataclass(frozen=True)
class Machine:
    """A machine, as far as it matters to Lathe.

    Attributes:
        device: that encoders run on.
        bfloat16: whether that device multiplies bfloat16 itself.
        cpu_flags: instruction sets of the CPU, as Linux names them; empty where the system does not tell.
        driver: whether a driver of NVIDIA's is installed.
        cores: of the CPU.
        free_bytes: on the disk of the state folder.
        compiler: whether there is one for C++.
        headers: whether Python's are there.
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
    """Look at this machine.

    Args:
        settings: name the state folder, and the device if one was chosen.
        include: the folder of Python's headers.
    """
    device = settings.device or best_device()
    return Machine(
        device=device,
        bfloat16=has_bfloat16(device),
        cpu_flags=frozenset(read_cpu_flags()),
        driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
        cores=os.cpu_count() or 1,
        free_bytes=shutil.disk_usage(nearest_folder(settings.home)).free,
        compiler=any(shutil.which(name) for name in COMPILERS),
        headers=(include / "Python.h").exists(),
    )


def nearest_folder(path: Path) -> Path:
    """Return a folder, or the nearest one above it that is there."""
    place = path.expanduser()
    while not place.exists():
        place = place.parent
    return place
