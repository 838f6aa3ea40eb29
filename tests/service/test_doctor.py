"""What `lathe doctor` finds missing, and how it says what that costs."""

import shutil
from collections import namedtuple
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import torch

from service.cli import requirements, shortfalls
from service.cli.kernels import describe_instructions, describe_kernels, lacks_avx512
from service.cli.requirements import unmet
from service.cli.shortfalls import EXTRAS
from service.settings import Settings

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def installed(monkeypatch):
    """Sets which versions are installed, None for a package that is not."""
    changed = {}
    real = requirements.version

    def version(name):
        if name not in changed:
            return real(name)
        if changed[name] is None:
            raise PackageNotFoundError(name)
        return changed[name]

    monkeypatch.setattr(requirements, "version", version)
    unmet.cache_clear()
    yield changed
    unmet.cache_clear()


def said(home, **options):
    """What is missing, by its subject."""
    return {found.what: found.cost for found in shortfalls.shortfalls(Settings(home=home, **options))}


def test_every_extra_that_users_install_is_known_with_what_its_absence_costs():
    assert set(metadata("lathe").get_all("Provides-Extra")) - {"dev"} == set(EXTRAS)


def test_a_version_that_is_too_old_is_named_with_the_one_that_is_wanted(tmp_path, installed):
    assert unmet("lathe") == ()
    assert "an old version" not in said(tmp_path)
    unmet.cache_clear()
    installed["torch"] = "2.3.1"
    assert unmet("lathe") == ("torch>=2.9 (2.3.1 is installed)",)
    assert "torch>=2.9 (2.3.1 is installed)" in said(tmp_path)["an old version"]


def test_an_extra_counts_as_missing_if_anything_it_brings_is_even_through_another_extra(tmp_path, installed):
    installed["mteb"] = None
    found = said(tmp_path)
    assert "`lathe evaluate` does not work; pip install 'lathe[evaluation]' brings mteb" in found["no extra evaluation"]
    assert "`lathe train` does not work" in found["no extra training"]
    assert "no extra redis" not in found
    assert unmet("lathe") == ()


@pytest.mark.parametrize(
    ("compiler", "headers", "words"),
    [
        (False, False, "install a C++ compiler and Python's headers, then pip install 'lathe[index]', brings hnswlib"),
        (False, True, "install a C++ compiler, then pip"),
        (True, True, "with the rows; pip install 'lathe[index]' brings hnswlib"),
    ],
)
def test_without_a_graph_it_says_what_has_to_be_there_to_build_it(
    tmp_path, installed, monkeypatch, compiler, headers, words
):
    installed["hnswlib"] = None
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name: (name if compiler else None) if name in shortfalls.COMPILERS else which(name)
    )
    monkeypatch.setattr(shortfalls.sysconfig, "get_path", lambda _name: str(tmp_path))
    if headers:
        (tmp_path / "Python.h").touch()
    assert words in said(tmp_path)["no extra index"]


def test_the_speed_of_a_machine_is_said_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(shortfalls, "best_device", lambda: "cpu")
    monkeypatch.setattr(shortfalls, "has_bfloat16", lambda _device: False)
    monkeypatch.setattr(shortfalls, "has_driver", lambda: False)
    monkeypatch.setattr(shortfalls.os, "cpu_count", lambda: 1)
    found = said(tmp_path)
    assert "cores: 1" in found["no GPU"] and "half the speed" in found["no bfloat16"] and "one CPU core" in found
    monkeypatch.setattr(shortfalls, "has_driver", lambda: True)
    assert "finds no GPU" in said(tmp_path)["no GPU"]
    monkeypatch.setattr(shortfalls, "best_device", lambda: "cuda")
    monkeypatch.setattr(shortfalls, "has_bfloat16", lambda _device: True)
    monkeypatch.setattr(shortfalls.os, "cpu_count", lambda: 16)
    assert not {"no GPU", "no bfloat16", "one CPU core"} & set(said(tmp_path))


AVX2_ONLY = {"sse4_2", "avx", "avx2", "fma"}
AVX512 = AVX2_ONLY | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "machine", "words"),
    [
        (set(), "x86_64", "this system does not tell which the CPU has"),
        ({"sse4_2"}, "x86_64", "no AVX2, no AVX-512, no bfloat16, no AMX"),
        (AVX2_ONLY, "x86_64", "AVX2, no AVX-512, no bfloat16, no AMX"),
        (AVX2_ONLY | {"avx512f"}, "x86_64", "AVX2, no AVX-512, no bfloat16, no AMX"),
        (AVX512, "AMD64", "AVX2, AVX-512, no bfloat16, no AMX"),
        (AVX512 | {"avx512_bf16"}, "x86_64", "AVX2, AVX-512, bfloat16, no AMX"),
        (AVX512 | {"amx_tile", "amx_bf16"}, "x86_64", "AVX2, AVX-512, bfloat16, AMX"),
        ({"asimd"}, "aarch64", "no bfloat16"),
        ({"asimd", "bf16"}, "aarch64", "bfloat16"),
    ],
)
def test_the_instructions_of_a_cpu_are_told_with_those_it_lacks(flags, machine, words):
    assert describe_instructions(flags, machine) == words
    assert lacks_avx512(flags, machine) == ("no AVX-512" in words)


def test_the_kernels_that_are_used_are_told_with_the_variables_that_chose_them():
    plain = describe_kernels({})
    assert plain.startswith(f"torch {torch.backends.cpu.get_cpu_capability()}, NumPy ")
    assert describe_kernels({"MKL_CBWR": "COMPATIBLE", "HOME": "/root"}) == f"{plain}; set by MKL_CBWR=COMPATIBLE"


def test_a_full_disk_and_an_absent_redis_are_told_of_before_they_hurt(tmp_path, monkeypatch):
    found = said(tmp_path / "not" / "yet" / "there")
    assert "no Redis" in found and "little disk" not in found
    monkeypatch.setattr(shortfalls.shutil, "disk_usage", lambda _place: Usage(10**12, 10**12, 300_000_000))
    found = said(Path("~"), redis_url="redis://127.0.0.1:1/0")
    assert "no Redis" not in found and "0.3 GB are free" in found["little disk"]
