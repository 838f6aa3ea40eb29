"""Choice of the device and of the dtype that a model runs in, and settings of the C memory allocator.

An `Agreement` measures how much an encoder's vectors in a lower precision differ from the vectors in float32.
"""

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lathe.transforms.processor import CPUINFO, read_cpu_field

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


def best_device() -> str:
    """Return the name of the default torch device: `cuda` if available, else `mps`, else `cpu`."""
    import torch  # here, so that settings and command lines can be read without it

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device(device: str | None) -> None:
    """Raise `ValueError` if torch does not find the named CUDA or MPS device on this machine.

    The CPU, kinds of devices other than CUDA and MPS, and None always pass.
    """
    if device is None or device == "cpu":
        return

    import torch

    kind, _, index = device.partition(":")
    count = {"cuda": torch.cuda.device_count, "mps": torch.mps.device_count}.get(kind)
    if count is not None and count() <= (int(index) if index.isdecimal() else 0):
        raise ValueError(f"the device {device} is not available to torch on this machine: set LATHE_DEVICE to another")


Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Dtypes an encoder can run in; `auto` is bfloat16 if the hardware supports it, else float32."""

CPU_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of processors with bfloat16 multiplication (x86 and Arm); others emulate it slowly."""

FREQUENCIES = "inv_freq"
"""End of the names of the buffers that hold the frequencies of rotary positions."""

PROBES = [
    "yes",
    "What is a lathe?",
    "How do I cancel my subscription before the next payment?",
    "Revenue grew 12.4 % to $3.1 bn, while operating costs fell by a third.",
    "The committee postponed its decision until spring; nobody objected.",
    "def mean(values): return sum(values) / len(values)",
    "Der Zug nach Hamburg fährt heute von Gleis sieben.",
    "東京は日本の首都です。",
    "A lathe is a machine tool that rotates a workpiece about an axis of rotation to perform various operations such "
    "as cutting, sanding, knurling, drilling, deformation, facing, threading and turning, with tools that are "
    "applied to the workpiece to create an object with symmetry about that axis.",
]
"""Texts on which an encoder is warmed up and compared: short and long, prose and code, in three languages."""


@dataclass(frozen=True)
class Agreement:
    """Mean and minimum cosine similarity between an encoder's vectors and the vectors in float32, over `PROBES`."""

    mean: float
    min: float


def resolve_dtype(dtype: Dtype, device: str, cpuinfo: Path = CPUINFO) -> Dtype:
    """Resolve `auto` to bfloat16 if the device supports it, else to float32. Other dtypes are returned unchanged."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if has_bfloat16(device, cpuinfo) else "float32"


def has_bfloat16(device: str, cpuinfo: Path = CPUINFO) -> bool:
    """Return whether a device computes in bfloat16 without emulation. Only CUDA devices and CPUs can.

    A CPU is judged by the feature flags in /proc/cpuinfo. The result is False for any other device.
    """
    if device.startswith("cuda"):
        import torch  # only here: settings take the names of formats from this module

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and not CPU_BFLOAT16.isdisjoint(read_cpu_flags(cpuinfo))


def read_cpu_flags(cpuinfo: Path = CPUINFO) -> set[str]:
    """Read the processor's feature flags, such as `avx512_bf16`, from Linux's /proc/cpuinfo.

    Other systems give none.
    """
    return set((read_cpu_field("flags", cpuinfo) or read_cpu_field("Features", cpuinfo)).split())


def convert_dtype(model: "torch.nn.Module", dtype: "torch.dtype") -> None:
    """Convert a model's weights and buffers to a dtype, in place. Frequencies of rotary positions become float32.

    `Module.to` would round the frequencies too: in bfloat16, a position of 500 then turns a vector by up to a radian
    too much.
    """
    frequencies = {name: buffer.float() for name, buffer in model.named_buffers() if name.endswith(FREQUENCIES)}
    model.to(dtype)
    for name, buffer in frequencies.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, buffer)


def measure_agreement(vectors: "NDArray[np.float32]", reference: "NDArray[np.float32]") -> Agreement:
    """Compute the mean and minimum cosine between corresponding rows of two matrices of unit vectors `(n, d)`."""
    cosines = (vectors.astype("float64") * reference).sum(axis=1)
    return Agreement(float(cosines.mean()), float(cosines.min()))


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_FROM_BYTES = 32 * 2**20
"""Bytes from which glibc allocates a block by mmap, 32 MiB, the most it allows; smaller ones come from the heap."""

MAX_FREE_BYTES = 512 * 2**20
"""Free bytes at the end of the heap that glibc keeps instead of returning them to the system, 512 MiB."""


def keep_freed_blocks() -> None:
    """Set glibc's malloc, for the whole process, to keep large freed blocks for reuse instead of returning them.

    Without glibc, nothing happens. A new block costs a page fault every 4 kB: a body of 6 MB took twice as long, and
    long batches of an encoder a tenth to a quarter longer.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_FROM_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, MAX_FREE_BYTES)
