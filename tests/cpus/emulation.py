"""Tests of the variables that make this CPU act as an older one. Only `python -m tests.cpus` runs them."""

import os

import numpy as np
import pytest
import torch
from numpy._core._multiarray_umath import __cpu_features__
from threadpoolctl import threadpool_info

SET = dict(os.environ)


def only_where(variable):
    """Skip a test where the variable is not set."""
    return pytest.mark.skipif(variable not in SET, reason=f"{variable} is not set")


def verbose_output(library, capfd):
    """Return what a library of torch prints of its kernels during a convolution and a product."""
    with library.verbose(library.VERBOSE_ON):
        torch.nn.functional.conv2d(torch.ones(4, 16, 8, 8), torch.ones(16, 16, 3, 3))
        torch.ones(33, 24) @ torch.ones(24, 9)
    return capfd.readouterr().out


@only_where("OMP_NUM_THREADS")
def test_torch_and_openblas_use_as_many_threads_as_omp_num_threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    threads = {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
    assert threads["openblas"] == torch.get_num_threads() == int(SET["OMP_NUM_THREADS"])


@only_where("ATEN_CPU_CAPABILITY")
def test_torch_uses_the_kernels_named_in_aten_cpu_capability():
    assert torch.backends.cpu.get_cpu_capability().lower() == SET["ATEN_CPU_CAPABILITY"]


@only_where("ONEDNN_MAX_CPU_ISA")
def test_onednn_uses_the_instructions_named_in_onednn_max_cpu_isa(capfd):
    said = verbose_output(torch.backends.mkldnn, capfd)
    assert f"convolution,jit:{SET['ONEDNN_MAX_CPU_ISA'].lower()}," in said


@only_where("MKL_CBWR")
def test_mkl_uses_the_branch_named_in_mkl_cbwr(capfd):
    assert f"CNR:{SET['MKL_CBWR']} " in verbose_output(torch.backends.mkl, capfd)


@only_where("OPENBLAS_CORETYPE")
def test_openblas_uses_the_kernels_named_in_openblas_coretype():
    np.ones((2, 2)) @ np.ones((2, 2))
    assert {pool.get("architecture") for pool in threadpool_info()} >= {SET["OPENBLAS_CORETYPE"]}


@only_where("NPY_DISABLE_CPU_FEATURES")
def test_numpy_uses_no_feature_named_in_npy_disable_cpu_features():
    assert not any(__cpu_features__[name] for name in SET["NPY_DISABLE_CPU_FEATURES"].split())
    if SET.get("ATEN_CPU_CAPABILITY") == "default":
        assert "found" not in np.show_config(mode="dicts")["SIMD Extensions"]


@only_where("FAISS_SIMD_LEVEL")
def test_faiss_uses_the_kernels_named_in_faiss_simd_level():
    faiss = pytest.importorskip("faiss")
    assert faiss.SIMDConfig.get_level_name() == SET["FAISS_SIMD_LEVEL"]
