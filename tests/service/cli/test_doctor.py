"""What `lathe doctor` finds missing, and how it says what that costs."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import pytest
import torch

from service.cli.kernels import describe_instructions, describe_kernels, lacks_avx512
from service.cli.machine import Machine, find_existing_folder, read_machine
from service.cli.requirements import find_unmet
from service.cli.shortfalls import EXTRAS, find_shortfalls
from service.settings import Settings

SMALL = Machine(
    "cpu",
    bfloat16=False,
    cpu_flags=frozenset({"sse4_2"}),
    driver=False,
    cores=1,
    free_bytes=10**12,
    compiler=True,
    headers=True,
)
"""A machine that has little but disk."""


def versions(**changed):
    """Tell which versions are installed, but for some: None is a package that is not."""

    def installed(name):
        if name not in changed:
            return version(name)
        if changed[name] is None:
            raise PackageNotFoundError(name)
        return changed[name]

    return installed


def said(home, machine=None, installed=version, **options):
    """Return what is missing, by its subject."""
    found = find_shortfalls(Settings(home=home, **options), machine, installed)
    return {one.what: one.cost for one in found}


def test_every_extra_that_users_install_is_known_with_what_its_absence_costs():
    assert set(metadata("lathe").get_all("Provides-Extra")) - {"dev"} == set(EXTRAS)


def test_a_version_that_is_too_old_is_named_with_the_one_that_is_wanted(tmp_path):
    assert find_unmet("lathe") == ()
    assert "an old version" not in said(tmp_path)
    old = versions(torch="2.3.1")
    assert find_unmet("lathe", version=old) == ("torch>=2.9 (2.3.1 is installed)",)
    assert "torch>=2.9 (2.3.1 is installed)" in said(tmp_path, installed=old)["an old version"]


def test_an_extra_counts_as_missing_if_anything_it_brings_is_even_through_another_extra(tmp_path):
    without = versions(mteb=None)
    found = said(tmp_path, installed=without)
    assert (
        "`lathe evaluate` does not work; pip install 'lathe[evaluation]' installs mteb" in found["no extra evaluation"]
    )
    assert "`lathe train` does not work" in found["no extra training"]
    assert "no extra redis" not in found
    assert find_unmet("lathe", version=without) == ()


@pytest.mark.parametrize(
    ("compiler", "headers", "words"),
    [
        (
            False,
            False,
            "install a C++ compiler and Python's headers, then pip install 'lathe[index]', installs hnswlib",
        ),
        (False, True, "install a C++ compiler, then pip"),
        (True, True, "with the rows; pip install 'lathe[index]' installs hnswlib"),
    ],
)
def test_without_a_graph_it_says_what_has_to_be_there_to_build_it(tmp_path, compiler, headers, words):
    machine = replace(SMALL, compiler=compiler, headers=headers)
    assert words in said(tmp_path, machine, versions(hnswlib=None))["no extra index"]


def test_the_speed_of_a_machine_is_said_in_words(tmp_path):
    found = said(tmp_path, SMALL)
    assert "cores: 1" in found["no GPU"] and "half the speed" in found["no bfloat16"] and "one CPU core" in found
    assert "finds no GPU" in said(tmp_path, replace(SMALL, driver=True))["no GPU"]
    large = replace(SMALL, device="cuda", bfloat16=True, driver=True, cores=16)
    assert not {"no GPU", "no bfloat16", "one CPU core"} & set(said(tmp_path, large))


AVX2_ONLY = {"sse4_2", "avx", "avx2", "fma"}
AVX512 = AVX2_ONLY | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "machine", "words"),
    [
        (set(), "x86_64", "not reported by this system"),
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


def test_a_full_disk_and_an_absent_redis_are_told_of_before_they_hurt():
    found = said(Path("~"), SMALL)
    assert "no Redis" in found and "little disk" not in found
    found = said(Path("~"), replace(SMALL, free_bytes=300_000_000), redis_url="redis://127.0.0.1:1/0")
    assert "no Redis" not in found and "0.3 GB are free" in found["little disk"]


def test_a_machine_is_looked_at_where_the_state_folder_is_to_be(tmp_path):
    assert (
        find_existing_folder(tmp_path / "not" / "yet" / "there") == tmp_path
        and find_existing_folder(Path("~")) == Path.home()
    )
    found = read_machine(Settings(home=tmp_path / "not" / "yet" / "there", device="cpu"))
    assert found.device == "cpu" and found.cores >= 1 and found.free_bytes > 0


@pytest.mark.parametrize("there", [True, False])
def test_a_compiler_headers_and_a_driver_are_found_by_their_files(tmp_path, monkeypatch, there):
    for name in ("g++", "nvidia-smi", "Python.h") if there else ():
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_machine(Settings(home=tmp_path, device="cpu"), include=tmp_path)
    assert (found.compiler, found.headers) == (there, there)
    assert found.driver is (there or Path("/proc/driver/nvidia/version").exists())
