import pytest
import torch

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.fast_tokenizing import PROBES, open_fast_tokenizer


@pytest.fixture
def model(tiny):
    """Load a model of this test's own, because tests change its tokenizer."""
    return Encoder(tiny, "cpu").model


@pytest.fixture(scope="module")
def texts(paragraphs):
    return [*PROBES, *paragraphs[:100]]


@pytest.mark.parametrize(
    ("padding", "truncation", "prompt"),
    [("left", "left", None), ("right", "left", "query: "), ("left", "right", "query: "), ("right", "right", None)],
)
def test_the_input_is_that_of_the_model_itself(model, texts, padding, truncation, prompt):
    model.tokenizer.padding_side, model.tokenizer.truncation_side = padding, truncation
    fast = open_fast_tokenizer(model)
    for part in (texts, texts[:1], texts[1:2], texts[-40:]):
        found, expected = fast.tokenize(part, prompt), model.preprocess(part, prompt=prompt)
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value


def test_an_encoder_tokenizes_fast_and_its_vectors_stay(texts, tiny):
    encoder = Encoder(tiny, "cpu")
    assert encoder.fast_tokenizer is not None
    found = encoder.encode(texts[:50], truncation_side="left").vectors
    encoder.fast_tokenizer = None
    assert (encoder.encode(texts[:50], truncation_side="left").vectors == found).all()


@pytest.mark.parametrize("change", ["other keys", "other tokens", "no pad token", "an error"])
def test_a_model_whose_input_would_differ_keeps_its_own_way(model, monkeypatch, change):
    preprocess = model.preprocess

    def changed(inputs, **options):
        features = preprocess(inputs, **options)
        if change == "other keys":
            return features | {"pixels": torch.zeros(1)}
        if change == "other tokens":
            return features | {"input_ids": features["input_ids"] + 1}
        raise RuntimeError("no tokenizer")

    if change == "no pad token":
        model.tokenizer.pad_token = None
    else:
        monkeypatch.setattr(model, "preprocess", changed)
    assert open_fast_tokenizer(model) is None
