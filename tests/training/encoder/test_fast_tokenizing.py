import random
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import AddedToken, Tokenizer, normalizers

from lathe.training.encoder import fast_tokenizing
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.fast_tokenizing import PROBES, WordTokenizer, open_fast_tokenizer
from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec

NORMALIZERS = [
    normalizers.BertNormalizer(),
    normalizers.BertNormalizer(lowercase=False, strip_accents=True),
    normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False),
]
WORDS = ["don't", "İstanbul", "ΣΑΣ", "e\u0301té", "東京は", "🙂", "[MASK]", "[mask]", "tool", "stool", "x" * 120, "<b>"]
SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]
MARKS = ["\0", "\x1c", "\u200b", "\ufeff", "\ufffd", "\u0301", "\u00ad", ".", "-"]


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


def load_rust_tokenizer():
    return Tokenizer.from_file(str(Path(locate_model(DEFAULT_MODEL)) / "tokenizer.json"))


def make_odd_texts(count):
    """Return texts of words, white space of all kinds, control characters and marks, in any order."""
    draw = random.Random(0)
    kinds = [WORDS, SPACES, MARKS, [" "]]
    return ["".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randrange(30))) for _ in range(count)]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_words_alone_have_the_tokens_that_they_have_in_a_text(normalizer, texts):
    rust = load_rust_tokenizer()
    rust.normalizer = normalizer
    rust.add_tokens(
        [AddedToken("tool", single_word=True), AddedToken("Saw"), AddedToken("<b>", lstrip=True, rstrip=True)]
    )
    assert WordTokenizer.splits_at_spaces(rust)
    words = WordTokenizer(rust)
    for part in (texts, make_odd_texts(1000), make_odd_texts(1000)[::-1]):
        assert words.tokenize(part) == [encoding.ids for encoding in rust.encode_batch(part, add_special_tokens=False)]


def test_few_and_short_words_are_kept(monkeypatch):
    monkeypatch.setattr(fast_tokenizing, "MAX_WORDS", 4)
    words = WordTokenizer(load_rust_tokenizer())
    first = words.tokenize(["a b c", "a" * 100])
    assert sorted(words.tokens) == ["a", "b", "c"]
    assert words.tokenize(["c d e f"]) != first and sorted(words.tokens) == ["c", "d", "e", "f"]
    assert words.tokenize(["a b c", "a" * 100]) == first


def test_a_tokenizer_whose_tokens_may_join_words_sees_whole_texts(model):
    assert open_fast_tokenizer(model).words is not None
    model.tokenizer.add_tokens(["New York"])
    assert open_fast_tokenizer(model).words is None


def test_a_static_encoder_looks_words_up(texts, tmp_path):
    rust = load_rust_tokenizer()
    rust.no_truncation()
    SentenceTransformer(modules=[StaticEmbedding(rust, embedding_dim=8)], device="cpu").save(str(tmp_path))
    encoder = Encoder(EncoderSpec("static", str(tmp_path)), "cpu")
    assert encoder.words is not None
    odd = [*texts, *make_odd_texts(100), "long " * 20_000]
    found = encoder.encode(odd)
    encoder.words = None
    expected = encoder.encode(odd)
    assert (found.vectors == expected.vectors).all() and (found.tokens == expected.tokens).all()
