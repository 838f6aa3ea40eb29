"""Which instructions the CPU has, and which of them the libraries compute with."""

import os
from collections.abc import Mapping, Set

X86 = ("x86_64", "AMD64")

AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
"""What torch and NumPy want of a CPU before they take kernels for AVX-512."""

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
"""Environment variables that choose other kernels than the libraries themselves would."""


def describe_instructions(flags: Set[str], machine: str) -> str:
    """Return in words which instruction sets a CPU has of those that make encoding quick, and which it lacks.

    Args:
        flags: what the CPU says it has; empty where the system does not tell.
        machine: the kind of CPU, as `platform.machine` names it.
    """
    from training.encoder.precision import CPU_BFLOAT16

    if not flags:
        return "this system does not tell which the CPU has"
    sets = {"bfloat16": not CPU_BFLOAT16.isdisjoint(flags)}
    if machine in X86:
        sets = {"AVX2": "avx2" in flags, "AVX-512": flags >= AVX512, **sets, "AMX": "amx_tile" in flags}
    there, absent = ([name for name, found in sets.items() if found is wanted] for wanted in (True, False))
    return ", ".join([*there, *(f"no {name}" for name in absent)])


def lacks_avx512(flags: Set[str], machine: str) -> bool:
    """Return whether an x86 CPU is known to have no AVX-512; arguments as of `describe_instructions`."""
    return machine in X86 and bool(flags) and not flags >= AVX512


def describe_kernels(environment: Mapping[str, str] = os.environ) -> str:
    """Return in words the kernels that torch and NumPy chose, and the environment variables that had a say."""
    import numpy as np
    import torch

    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    taken = [*extensions.get("baseline", []), *extensions.get("found", [])]
    chosen = f"torch {torch.backends.cpu.get_cpu_capability()}, NumPy {taken[-1] if taken else 'plain'}"
    said = [f"{name}={environment[name]}" for name in VARIABLES if name in environment]
    return f"{chosen}; set by {', '.join(said)}" if said else chosen
