from dataclasses import replace

import numpy as np
import pytest
import torch

from lathe.training.encoder.devices import PROBES, has_bfloat16, measure_agreement, resolve_dtype
from lathe.training.encoder.encoder import BATCH_TOKENS, Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER


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


def test_a_bfloat16_encoder_gives_unit_float32_vectors_near_those_of_float32(encoder):
    """The encoder measures this agreement, has the same fingerprint and pools in float32."""
    half = Encoder(replace(DEFAULT_ENCODER, dtype="bfloat16"))
    assert {tensor.dtype for tensor in half.transformer.parameters()} == {torch.bfloat16}
    assert half.agreement.min > 0.99 and half.agreement.min <= half.agreement.mean < 1
    pooled = [half.run_transformer(batch)["token_embeddings"] for _, batch in half.batches(PROBES, None)]
    assert {tensor.dtype for tensor in pooled} == {torch.float32}
    vectors = half.encode(PROBES).vectors
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors.astype(np.float64), axis=1), 1, rtol=0, atol=1e-6)
    measured = measure_agreement(vectors, encoder.encode(PROBES).vectors)
    assert measured.min == pytest.approx(half.agreement.min, abs=1e-4)
    assert half.fingerprint == encoder.fingerprint
    assert encoder.spec.dtype == "float32" and encoder.agreement.min == pytest.approx(1, abs=1e-6)
    assert half.batch_tokens == BATCH_TOKENS["bfloat16"]
