"""The CPU's instruction sets, and the kernels that libraries choose by them."""

import os
from collections.abc import Mapping, Set

X86 = ("x86_64", "AMD64")

AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
"""CPU flags that torch and NumPy require for kernels for AVX-512."""

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "FAISS_SIMD_LEVEL",
    "FAISS_OPT_LEVEL",
)
"""Environment variables that override the libraries' choice of kernels."""


def describe_instructions(flags: Set[str], machine: str) -> str:
    """Describe which of the instruction sets that speed up encoding a CPU has, and which it lacks.

    Args:
        flags: flags of the CPU; empty if the system does not report them.
        machine: type of the CPU, as `platform.machine` names it.
    """
    from lathe.training.encoder.precision import CPU_BFLOAT16

    if not flags:
        return "not reported by this system"
    sets = {"bfloat16": not CPU_BFLOAT16.isdisjoint(flags)}
    if machine in X86:
        sets = {"AVX2": "avx2" in flags, "AVX-512": flags >= AVX512, **sets, "AMX": "amx_tile" in flags}
    present = [name for name, has in sets.items() if has]
    return ", ".join([*present, *(f"no {name}" for name, has in sets.items() if not has)])


def lacks_avx512(flags: Set[str], machine: str) -> bool:
    """Return whether the CPU is an x86 known to lack AVX-512; arguments as in `describe_instructions`."""
    return machine in X86 and bool(flags) and not flags >= AVX512


def describe_kernels(environment: Mapping[str, str] = os.environ) -> str:
    """Describe the kernels that torch and NumPy chose, and the environment variables that may override the choice."""
    import numpy as np
    import torch

    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    used = [*extensions.get("baseline", []), *extensions.get("found", [])]
    chosen = f"torch {torch.backends.cpu.get_cpu_capability()}, NumPy {used[-1] if used else 'plain'}"
    variables = [f"{name}={environment[name]}" for name in VARIABLES if name in environment]
    return f"{chosen}; set by {', '.join(variables)}" if variables else chosen
