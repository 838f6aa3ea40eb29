import pytest
import torch

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.fast_tokenizing import PROBES, open_fast_tokenizer
from lathe.training.encoder.unpadding import split_flat_batches, split_row


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


def test_tokens_in_a_row_make_the_same_batches_as_padded_ones(model, texts):
    fast = open_fast_tokenizer(model)
    found = list(split_row(*fast.tokenize_in_row(texts, "query: "), 500, first_position=0))
    expected = list(split_flat_batches(fast.tokenize(texts, "query: "), 500, first_position=0))
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert (one.rows == other.rows).all() and (one.tokens == other.tokens).all() and one.padded == other.padded
        assert one.features.keys() == other.features.keys()
        for name, value in other.features.items():
            same = one.features[name]
            assert torch.equal(same, value) if isinstance(value, torch.Tensor) else same == value


def test_tokens_are_counted_beyond_what_the_model_reads(model, texts):
    expected = model.tokenizer(texts, truncation=False, verbose=False)["input_ids"]
    assert open_fast_tokenizer(model).count_tokens(texts) == [len(tokens) for tokens in expected]
    assert max(map(len, expected)) > model.tokenizer.model_max_length


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
