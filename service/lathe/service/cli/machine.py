"""Properties of this machine that matter to Lathe, for `lathe doctor`."""

import os
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from lathe.service.settings import Settings
from lathe.training.encoder.devices import best_device
from lathe.training.encoder.precision import has_bfloat16, read_cpu_flags

COMPILERS = ("c++", "g++", "clang++", "cl")
INCLUDE = Path(sysconfig.get_path("include"))


@dataclass(frozen=True)
class Machine:
    """Properties of a machine that matter to Lathe.

    Attributes:
        device: torch device of the encoders.
        bfloat16: whether that device supports bfloat16 in hardware.
        cpu_flags: instruction sets of the CPU, as Linux names them; empty if the system does not report them.
        driver: whether an NVIDIA driver is installed.
        cores: number of CPU cores.
        free_bytes: free bytes on the disk of the state folder.
        compiler: whether there is a C++ compiler.
        headers: whether Python's C headers are installed.
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
    """Determine the properties of this machine.

    Args:
        settings: settings with the state folder and the device, if one is set.
        include: folder of Python's C headers.
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
    """Return the folder, or its nearest parent that exists."""
    folder = path.expanduser()
    while not folder.exists():
        folder = folder.parent
    return folder
