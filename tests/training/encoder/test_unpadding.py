from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from lathe.training.encoder import encoder as encoder_module
from lathe.training.encoder import unpadding
from lathe.training.encoder.devices import PROBES, measure_agreement
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.encoder.unpadding import NAME, CannotUnpadError, attend_on_gpu, attend_within_texts, try_unpadding

LICENSE = Path(__file__).parents[3] / "LICENSE"


@pytest.mark.parametrize(
    ("causal", "lengths", "learns"),
    [(False, [31], ()), (True, [16, 32], (2,)), (False, [1, 15, 16, 17], (0, 1, 2)), (True, [40, 3], ())],
)
def test_attend_within_texts_equals_attention_of_each_text_alone(causal, lengths, learns):
    torch.manual_seed(0)
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    states = torch.randn(3, 1, 4, sum(lengths), 8).unbind()

    def attend():
        found, _ = attend_within_texts(torch.nn.Module(), *states, None, is_causal=causal, cu_seq_lens_q=bounds)
        return found

    with torch.inference_mode():  # which leaves masks behind that no gradient may need
        attend()
    for index in learns:
        states[index].requires_grad_()
    found = attend()
    assert found.requires_grad is bool(learns)
    for start, stop in zip(bounds, bounds[1:], strict=False):
        expected = scaled_dot_product_attention(*(some[:, :, start:stop] for some in states), is_causal=causal)
        torch.testing.assert_close(found[:, start:stop], expected.transpose(1, 2), rtol=0, atol=1e-5)
    if learns:
        found.sum().backward()
        assert all(states[index].grad is not None for index in learns)


def test_attend_within_texts_keeps_nan_in_its_text():
    bounds, states = torch.tensor([0, 3, 5, 9], dtype=torch.int32), torch.randn(1, 2, 9, 8)
    states[:, :, 3:5] = torch.nan
    found, _ = attend_within_texts(torch.nn.Module(), states, states, states, None, cu_seq_lens_q=bounds)
    assert found[:, 3:5].isnan().all() and not found[:, :3].isnan().any() and not found[:, 5:].isnan().any()


@pytest.mark.parametrize("largest", [1, 1e4])  # scores whose exponential is infinite too
def test_attention_by_products_equals_attention_of_each_text_alone(largest, monkeypatch):
    monkeypatch.setattr(unpadding, "_prefers_products", lambda: True)
    torch.manual_seed(0)
    lengths = [100, 100, 40, 48, 5, 7, 300, 65, 66]
    states = torch.randn(3, 1, 4, sum(lengths), 8).bfloat16()
    states[0, :, :, :1] *= largest
    states[:, :, :, -66:] = torch.nan
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    found, _ = attend_within_texts(torch.nn.Module(), *states, None, cu_seq_lens_q=bounds)
    for start, stop in zip(bounds, bounds[1:], strict=False):
        query, key, value = states[:, :, :, start:stop].float()
        expected = scaled_dot_product_attention(query, key, value).transpose(1, 2)
        torch.testing.assert_close(found[:, start:stop].float(), expected, rtol=0, atol=0.03, equal_nan=True)
        alone, _ = attend_within_texts(
            torch.nn.Module(), *states[:, :, :, start:stop], None, cu_seq_lens_q=torch.tensor([0, stop - start]).int()
        )
        if largest == 1:
            torch.testing.assert_close(alone, found[:, start:stop], rtol=0, atol=0.01, equal_nan=True)


def test_attend_within_texts_refuses_a_sliding_window():
    states = torch.zeros(1, 1, 2, 4)
    with pytest.raises(CannotUnpadError):
        attend_within_texts(
            torch.nn.Module(), states, states, states, None, sliding_window=8, cu_seq_lens_q=torch.tensor([0, 2]).int()
        )


def test_unpadded_vectors_equal_those_after_restore_model():
    encoder = Encoder(DEFAULT_ENCODER)
    texts = LICENSE.read_text().split("\n\n")[:20] + PROBES + ["", "word " * 400]  # in several batches
    assert encoder.unpadded
    padded = Encoder(DEFAULT_ENCODER)
    padded.restore_model()
    assert not padded.unpadded
    assert padded.transformer.auto_model.config._attn_implementation == "sdpa"
    assert encoder.transformer.auto_model.config._attn_implementation == NAME
    one, other = encoder.encode(texts), padded.encode(texts)
    np.testing.assert_allclose(one.vectors, other.vectors, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert one.tokens.sum() <= one.padded < other.padded


def test_a_named_attention_implementation_is_kept_and_padding_with_it(tiny):
    named = Encoder(replace(tiny, attention="eager"))
    assert not named.unpadded and named.transformer.auto_model.config._attn_implementation == "eager"


def wrong_numbers(module, query, *_rest, **_more):
    """Return zeros as attention."""
    return torch.zeros_like(query.transpose(1, 2)), None


def no_such_input(*_rest, **_more):
    """Raise as a model does that cannot take flattened texts."""
    raise RuntimeError("a shape that this model does not expect")


@pytest.fixture(params=[wrong_numbers, no_such_input])
def attention_that_cannot(request):
    """Return an attention that fails on flattened texts, and the list of its calls."""
    called = []

    def other(*states, cu_seq_lens_q=None, **more):
        if cu_seq_lens_q is None:
            return attend_within_texts(*states, **more)
        called.append(request.param)
        return request.param(*states, **more)

    yield other, called
    AttentionInterface.register(NAME, attend_within_texts)


def test_try_unpadding_restores_padding_if_the_attention_fails_or_gives_other_vectors(attention_that_cannot, tiny):
    padded, (attention, called), encoder = Encoder(tiny), attention_that_cannot, Encoder(tiny)
    padded.restore_model()
    assert try_unpadding(padded.model, PROBES, attention) is None and called
    assert padded.transformer.auto_model.config._attn_implementation == "sdpa"
    AttentionInterface.register(NAME, attend_within_texts)
    found, expected = padded.encode(PROBES).vectors, encoder.encode(PROBES).vectors
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert measure_agreement(found, expected).min > 0.99999


@pytest.fixture
def padded_encoder(tiny):
    """Load an encoder with padded batches, as on a GPU before its attention is tried."""
    encoder = Encoder(tiny, "cpu")
    encoder.restore_model()
    return encoder


def test_a_gpu_without_padding_gives_the_same_vectors_in_windows_of_one_batch(padded_encoder, monkeypatch):
    monkeypatch.setattr(encoder_module, "attend_on_gpu", attend_within_texts)
    expected = padded_encoder.encode(PROBES).vectors
    agreement = padded_encoder._unpad_on_gpu(lambda: measure_agreement(padded_encoder.encode(PROBES).vectors, expected))
    assert padded_encoder.unpadded and agreement.min > 0.99999
    assert padded_encoder.window_tokens == 4 * padded_encoder.batch_tokens
    padded_encoder.device = "cuda"
    assert padded_encoder.window_tokens == padded_encoder.batch_tokens


@pytest.mark.parametrize("attention", [attend_on_gpu, wrong_numbers, no_such_input])
def test_a_gpu_keeps_padding_if_its_attention_fails_or_gives_other_vectors(padded_encoder, monkeypatch, attention):
    monkeypatch.setattr(encoder_module, "attend_on_gpu", attention)
    expected = padded_encoder.encode(PROBES).vectors
    agreement = padded_encoder._unpad_on_gpu(lambda: measure_agreement(padded_encoder.encode(PROBES).vectors, expected))
    assert not padded_encoder.unpadded and agreement.min > 0.99999
    np.testing.assert_array_equal(padded_encoder.encode(PROBES).vectors, expected)


@pytest.mark.parametrize(
    "more", [{"is_causal": True}, {"sliding_window": 8}, {"scaling": 1.0}, {"cu_seq_lens_q": None}]
)
def test_the_attention_of_a_gpu_refuses_what_it_does_not_compute(more):
    states, bounds = torch.zeros(1, 1, 2, 4), torch.tensor([0, 2]).int()
    with pytest.raises(CannotUnpadError):
        attend_on_gpu(torch.nn.Module(), states, states, states, None, **({"cu_seq_lens_q": bounds} | more))
