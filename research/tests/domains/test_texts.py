"""Characteristics of texts, and similarity of data sets."""

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from research.domains.characteristics import (
    Characteristics,
    average_characteristics,
    count_syllables,
    measure_characteristics,
    split_sentences,
)
from research.domains.similarity import build_similarity_map
from research.domains.tokens import find_token_counter


def test_split_sentences_splits_at_sentence_ends_and_not_within_numbers():
    text = "It's well-known. Profit rose 1,250.5 per cent!\nWhy? … 利润增长。很好"
    assert [" ".join(words) for words in split_sentences(text)] == [
        "It's well-known",
        "Profit rose 1,250.5 per cent",
        "Why",
        "利 润 增 长",
        "很 好",
    ]


@pytest.mark.parametrize(
    ("syllables", "words"),
    [(1, "the rate whole bank"), (2, "table Profit people agree"), (3, "company dividend"), (0, "3.5 größe it's")],
)
def test_count_syllables_counts_groups_of_vowels_without_a_silent_e(syllables, words):
    assert [count_syllables(word) for word in words.split()] == [syllables] * len(words.split())


def test_the_characteristics_of_two_texts_by_hand():
    found = measure_characteristics(
        ["The loan is late. It rose.", "Table"], "en", lambda texts: [7, 2], lambda texts: 1.5
    )
    assert found == Characteristics(2, 7 / 3, 24 / 7, 4.5, pytest.approx(8 / 7), 1.0, 1.5)


def test_average_characteristics_averages_over_data_sets_that_have_a_value():
    found = average_characteristics([Characteristics(10, 4.0, syllables_per_word=1.0), Characteristics(90, 8.0)])
    assert found == Characteristics(100, 6.0, syllables_per_word=1.0)


def test_token_counter_counts_all_tokens_of_long_texts(tiny_model):
    count = find_token_counter(EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32"))
    texts = ["The ledger is closed.", "loan " * 300]
    tokenizer = Encoder(EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32"), "cpu").model.tokenizer
    expected = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    assert count(texts) == [len(ids) for ids in expected]
    assert count(texts)[1] >= 300


def test_build_similarity_map_equals_a_hand_computation_within_and_between_suites():
    means = np.array([[1.0, 0.0], [3.0, 3.0], [0.0, 2.0]])
    found = build_similarity_map("tiny", ["a", "b", "c"], [0, 0, 1], means)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found.raw.matrix, [[1, half, 0], [half, 1, half], [0, half, 1]], atol=1e-9)
    assert found.raw.within == (pytest.approx(half), None)
    assert found.raw.between == pytest.approx(half / 2)


def test_build_similarity_map_centred_removes_the_shared_direction():
    random = np.random.default_rng(0)
    own = np.repeat(random.standard_normal((2, 40)), 3, axis=0) + 0.3 * random.standard_normal((6, 40))
    found = build_similarity_map("tiny", list("abcdef"), [0, 0, 0, 1, 1, 1], own + 50)
    assert min(found.raw.between, *found.raw.within) > 0.95
    assert min(found.centred.within) > 0.5 > -0.5 > found.centred.between
