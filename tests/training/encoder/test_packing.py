from dataclasses import replace

import numpy as np
import pytest
import torch

from lathe.training.encoder.devices import PROBES
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.packing import PackedLinear, can_pack, pack_linear_layers


@pytest.fixture
def pack_float32(monkeypatch):
    """Let encoders pack their layers in float32, as on a processor of AMD."""
    monkeypatch.setattr("lathe.training.encoder.packing.prefers_onednn", lambda: True)


@pytest.fixture
def plain(tiny):
    """An encoder in float32 with its own layers, as on other processors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lathe.training.encoder.packing.prefers_onednn", lambda: False)
        return Encoder(tiny, "cpu")


def count_packed(encoder):
    return sum(isinstance(module, PackedLinear) for module in encoder.transformer.modules())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gelu", [True, False])
def test_packed_linear_equals_the_layer_and_the_gelu_after_it_and_is_unpacked_to_it(bias, gelu):
    torch.manual_seed(0)
    linear = torch.nn.Linear(24, 40, bias=bias)
    packed = PackedLinear(linear, gelu)
    for shape in ((5,), (1, 33), (2, 3, 7), (0,)):
        inputs = torch.randn(*shape, 24)
        with torch.inference_mode():
            expected = torch.nn.functional.gelu(linear(inputs)) if gelu else linear(inputs)
            torch.testing.assert_close(packed(inputs), expected, rtol=0, atol=1e-5)
    found = packed.unpack()
    assert torch.equal(found.weight, linear.weight) and found.in_features == 24 and found.out_features == 40
    assert found.bias is None if not bias else torch.equal(found.bias, linear.bias)


def test_pack_linear_layers_leaves_subclasses_and_other_activations():
    class Own(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(Own(4, 4), torch.nn.Linear(4, 4))
    model.intermediate_act_fn, model.dense = torch.nn.ReLU(), torch.nn.Linear(4, 4)
    pack_linear_layers(model)
    assert type(model[0]) is Own and type(model[1]) is PackedLinear
    assert type(model.intermediate_act_fn) is torch.nn.ReLU and not model.dense.gelu


@pytest.mark.parametrize(("dtype", "device"), [("float32", "meta"), ("float16", "cpu"), ("bfloat16", "meta")])
def test_can_pack_neither_float16_nor_another_device_than_a_cpu(pack_float32, dtype, device):
    assert not can_pack(torch.nn.Linear(2, 2, dtype=getattr(torch, dtype), device=device))
    assert not can_pack(torch.nn.Identity())


@pytest.mark.parametrize("amd", [True, False])
def test_can_pack_float32_exactly_on_processors_of_amd(monkeypatch, amd):
    monkeypatch.setattr("lathe.training.encoder.packing.prefers_onednn", lambda: amd)
    assert can_pack(torch.nn.Linear(2, 2)) == amd


def test_encoder_in_bfloat16_is_packed_exactly_if_the_cpu_multiplies_it(tiny):
    encoder = Encoder(replace(tiny, dtype="bfloat16"), "cpu")
    layer = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    assert count_packed(encoder) == (6 + 1 if can_pack(layer) else 0)
    assert encoder.model_bytes == 2 * sum(tensor.numel() for tensor in encoder.model.state_dict().values())
    assert encoder.agreement.mean > 0.999


def test_encoder_gives_the_same_vectors_with_packed_layers(tiny, plain, pack_float32):
    packed = Encoder(tiny, "cpu")
    assert count_packed(packed) == 6 + 1 and count_packed(plain) == 0
    assert packed.fingerprint == plain.fingerprint and packed.agreement.min > 0.999999
    np.testing.assert_allclose(packed.encode(PROBES).vectors, plain.encode(PROBES).vectors, rtol=0, atol=1e-5)


@pytest.mark.parametrize("wrong", ["an error", "other numbers"])
def test_encoder_unpacks_layers_that_do_not_work_in_its_model(tiny, plain, pack_float32, monkeypatch, wrong):
    def forward(self, inputs):
        if wrong == "an error":
            raise NotImplementedError
        return torch.randn(*inputs.shape[:-1], self.out_features)  # where all vectors are near one another

    monkeypatch.setattr(PackedLinear, "forward", forward)
    found = Encoder(tiny, "cpu")
    assert count_packed(found) == 0
    np.testing.assert_allclose(found.encode(PROBES).vectors, plain.encode(PROBES).vectors, rtol=0, atol=1e-6)
    assert found.agreement.min > 0.999999


def test_restore_model_unpacks_layers_for_exports(tiny, plain, pack_float32):
    found = Encoder(tiny, "cpu")
    assert count_packed(found) > 0
    found.restore_model()
    assert count_packed(found) == 0 and not found.unpadded
    np.testing.assert_allclose(found.encode(PROBES).vectors, plain.encode(PROBES).vectors, rtol=0, atol=1e-5)
