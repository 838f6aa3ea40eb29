"""Older CPUs as environment variables make them of this one, and the tests that are run on each."""

import platform
from dataclasses import dataclass, field

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

AVX512 = ("AVX512", "X86_V4")
"""How NumPy's names for groups of AVX-512 instructions begin."""


def numpy_groups(*prefixes: str) -> str:
    """Return the groups of instructions that this NumPy chooses kernels by, that this CPU has, and whose names begin so.

    Releases name the groups differently (AVX2 and FMA3, then X86_V3), and NumPy warns of names that it does not know.
    """
    return " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name] and name.startswith(prefixes or ""))


@dataclass(frozen=True)
class Machine:
    """A CPU to act as.

    Attributes:
        threads: for OpenMP, which torch, MKL and OpenBLAS follow.
        needs: an instruction set of this CPU, by NumPy's name, without which it cannot act as that one.
        variables: what makes the libraries leave newer instructions alone.
    """

    threads: int
    needs: str | None = None
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables to set."""
        return {"OMP_NUM_THREADS": str(self.threads)} | self.variables

    @property
    def possible(self) -> bool:
        """Whether this CPU can act as that one."""
        return self.needs is None or __cpu_features__.get(self.needs, False)


# ATEN_CPU_CAPABILITY       torch's own kernels: sums, norms, products by element
# ONEDNN_MAX_CPU_ISA        oneDNN, which multiplies for torch in bfloat16
# MKL_CBWR                  MKL, which multiplies for torch in float32 and float64: the branch that any x86 gets, the
#                           same at every address. Its other branches are for CPUs of Intel, and ignored on others
# OPENBLAS_CORETYPE         OpenBLAS, which multiplies and decomposes for NumPy
# NPY_DISABLE_CPU_FEATURES  NumPy's own kernels
# FAISS_SIMD_LEVEL          FAISS; releases before 1.14 read FAISS_OPT_LEVEL
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": numpy_groups(*AVX512),
    "FAISS_SIMD_LEVEL": "AVX2",
    "FAISS_OPT_LEVEL": "avx2",
}
SSE4 = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": numpy_groups(),
    "FAISS_SIMD_LEVEL": "NONE",
    "FAISS_OPT_LEVEL": "generic",
}

# `make test` itself runs on this CPU as it is, with one thread.
MACHINES = {"two-threads": Machine(threads=2)}
if platform.machine() in ("x86_64", "AMD64"):
    MACHINES |= {
        "avx2": Machine(threads=1, needs="AVX2", variables=AVX2),
        "sse4": Machine(threads=1, variables=SSE4),
    }

TESTS = [
    "tests/cpus/emulation.py",  # that the variables do what is said above
    "tests/transforms/test_every_transform.py",
]
"""Those that compare numbers, and are quick."""
