import pytest
import torch

from lathe.training.encoder.devices import has_bfloat16, resolve_dtype


@pytest.fixture
def cpuinfo(tmp_path):
    """Return a path for a description of another processor."""
    return tmp_path / "cpuinfo"


X86 = "processor\t: 0\nmodel name\t: A processor with bf16 in its name\nflags\t\t: fpu avx2 {}\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd {}\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (X86.format("avx512_bf16"), True),
        (X86.format("amx_tile amx_bf16 amx_int8"), True),
        (X86.format("avx512f avx512_vnni"), False),
        (ARM.format("i8mm bf16"), True),
        (ARM.format("sve"), False),
        ("", False),
    ],
)
def test_resolve_dtype_auto_is_bfloat16_exactly_if_the_cpu_flags_have_it(cpuinfo, text, has):
    cpuinfo.write_text(text)
    assert has_bfloat16("cpu", cpuinfo) is has
    assert resolve_dtype("auto", "cpu", cpuinfo) == ("bfloat16" if has else "float32")


def test_resolve_dtype_auto_on_a_gpu_asks_torch_without_emulation(monkeypatch):
    asked = []

    def supported(including_emulation):
        asked.append(including_emulation)
        return len(asked) == 1

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert [resolve_dtype("auto", "cuda:1"), resolve_dtype("auto", "cuda")] == ["bfloat16", "float32"]
    assert asked == [False, False]


def test_resolve_dtype_auto_is_float32_on_mps_and_a_named_dtype_is_kept(cpuinfo):
    cpuinfo.write_text(X86.format("avx512_bf16"))
    assert resolve_dtype("auto", "mps", cpuinfo) == "float32"
    assert [resolve_dtype(dtype, "cpu", cpuinfo) for dtype in ("float32", "float16")] == ["float32", "float16"]
    assert resolve_dtype("bfloat16", "mps", cpuinfo) == "bfloat16"
