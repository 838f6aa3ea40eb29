"""Older CPUs as environment variables make them of this one, and the tests that are run on each."""

import platform
from dataclasses import dataclass, field

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

AVX512 = ("AVX512", "X86_V4")
"""How NumPy's names for groups of AVX-512 instructions begin."""


def numpy_groups(*prefixes: str) -> str:
    """Return the groups of instructions this CPU has by which NumPy chooses kernels and whose names begin so.

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
MACHINES = {"two-threads": Machine(threads=2, variables={"OMP_WAIT_POLICY": "passive"})}  # others use the cores too
if platform.machine() in ("x86_64", "AMD64"):
    MACHINES = {"sse4": Machine(threads=1, variables=SSE4), **MACHINES}  # the slowest first
    MACHINES["avx2"] = Machine(threads=1, needs="AVX2", variables=AVX2)

TESTS = {
    "tests/behaviour/transforms/test_every_transform.py": (
        "test_loaded_chain_of_any_step_is_equal_and_has_bit_equal_outputs",
        "test_every_buffer_has_torchs_standard_strides_and_alignment",
        "test_transform_is_bit_equal_for_any_memory_layout_of_the_rows",
        "test_a_repeated_fit_is_bit_equal_and_leaves_the_rows_unchanged",
        "test_transform_of_a_single_row_equals_its_output_in_a_batch",
        "test_transform_of_any_float_dtype_equals_that_of_the_float32_copy",
        "test_fit_on_any_float_dtype_equals_the_fit_on_the_float32_copy",
        "test_folded_chain_of_one_step_equals_the_chain",
        "test_folded_chain_with_the_step_between_others_equals_the_chain",
        "test_fit_on_merged_moments_equals_the_fit_on_the_rows",
        "test_inverse_is_exact_approximate_or_refused_as_inverse_kind_states",
    ),
    "tests/transforms/statistics/test_spectrum.py": (),
    "tests/transforms/linear/test_whitening.py": (),
    "tests/transforms/codes/test_quantization.py": (),
    "tests/transforms/artifact/test_fit_distribution.py": (),
    "tests/transforms/baselines/test_flow.py": ("test_flow_results_do_not_depend_on_the_number_of_torch_threads",),
    "tests/service/index/embedded/test_exact.py": (),
    "tests/training/distributed/test_engine.py": (
        "test_moments_by_blocks_equal_those_of_one_pass_bit_for_bit",
        "test_a_serialized_chain_is_the_same_map_without_metadata",
    ),
    "tests/training/encoder/test_encoder.py": (
        "test_a_text_has_the_same_vector_alone_and_in_a_batch",
        "test_the_fingerprint_does_not_depend_on_dtype_name_and_folder",
    ),
    "tests/training/encoder/test_unpadding.py": ("test_unpadded_vectors_equal_those_after_restore_model",),
    "tests/training/export/test_onnx_graph.py": (
        "test_the_graph_equals_the_chain_on_any_number_of_real_random_and_zero_rows",
        "test_the_graphs_codes_equal_those_of_the_chain",
    ),
    "tests/training/export/test_faiss_transforms.py": (
        "test_exported_transforms_are_numbered_and_an_index_behind_them_holds_the_chains_vectors",
    ),
    "tests/service/encoders/engine/test_dispatcher.py": (
        "TestWorkerProcess::test_vectors_equal_those_of_the_encoder_itself",
        "TestWorkerProcess::test_options_and_chains_applied_by_the_worker_equal_those_applied_directly",
    ),
}
"""The tests that compare numbers and are quick, by file; all of a file where none is named."""


QUICK_TESTS = [
    "tests/behaviour/transforms/test_every_transform.py::test_loaded_chain_of_any_step_is_equal_and_has_bit_equal_outputs",
    "tests/behaviour/transforms/test_every_transform.py::test_folded_chain_of_one_step_equals_the_chain",
    "tests/service/http/routes/test_embed.py",
]
"""Tests of every change: what the starter chains and `/embed` answer, and that chains are the same map on any CPU."""


def select_tests() -> list[str]:
    """Return the tests as pytest takes them."""
    return [f"{file}::{name}" if name else file for file, names in TESTS.items() for name in names or ("",)]
