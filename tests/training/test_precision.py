from dataclasses import replace

import numpy as np
import pytest
import torch

from training.encoder.encoder import BATCH_TOKENS, Encoder
from training.encoder.precision import PROBES, has_bfloat16, measure_agreement, resolve_dtype
from training.encoder.spec import DEFAULT_ENCODER


@pytest.fixture
def cpuinfo(tmp_path):
    """Where another processor may be described."""
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
def test_a_processors_flags_tell_whether_it_computes_in_bfloat16(cpuinfo, text, has):
    cpuinfo.write_text(text)
    assert has_bfloat16("cpu", cpuinfo) is has
    assert resolve_dtype("auto", "cpu", cpuinfo) == ("bfloat16" if has else "float32")


def test_where_nothing_is_known_of_the_processor_float32_is_taken(cpuinfo):
    assert not cpuinfo.exists()
    assert resolve_dtype("auto", "cpu", cpuinfo) == "float32"


def test_a_gpu_is_asked_whether_it_has_bfloat16_itself(monkeypatch):
    asked = []

    def supported(including_emulation):
        asked.append(including_emulation)
        return len(asked) == 1

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert [resolve_dtype("auto", "cuda:1"), resolve_dtype("auto", "cuda")] == ["bfloat16", "float32"]
    assert asked == [False, False]


def test_other_devices_run_in_float32_and_a_dtype_that_was_named_is_taken(cpuinfo):
    cpuinfo.write_text(X86.format("avx512_bf16"))
    assert resolve_dtype("auto", "mps", cpuinfo) == "float32"
    assert [resolve_dtype(dtype, "cpu", cpuinfo) for dtype in ("float32", "float16")] == ["float32", "float16"]
    assert resolve_dtype("bfloat16", "mps", cpuinfo) == "bfloat16"


def test_agreement_is_the_mean_and_the_least_cosine():
    angles = np.array([0.0, 0.1, 0.3])
    one = np.tile(np.float32([1, 0]), (3, 1))
    other = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    found = measure_agreement(one, other)
    assert found.min == pytest.approx(np.cos(0.3), abs=1e-7)
    assert found.mean == pytest.approx(np.cos(angles).mean(), abs=1e-7)


def test_in_bfloat16_norms_stay_at_one_and_the_vectors_near_those_of_float32(encoder):
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
    assert half.batch_tokens == BATCH_TOKENS["bfloat16"]


def test_in_float32_an_encoder_agrees_with_itself(encoder):
    assert encoder.spec.dtype == "float32"
    assert encoder.agreement.min == pytest.approx(1, abs=1e-6)
    assert encoder.agreement.mean == pytest.approx(1, abs=1e-6)
