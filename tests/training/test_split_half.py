import numpy as np
import pytest
from scipy.stats import rankdata

from training.split_half import count_scripts, cut_in_two, reciprocal_ranks
from transforms import InputError


def test_a_text_is_cut_between_words():
    assert cut_in_two("one two three four five six seven eight nine") == (
        "one two three four",
        "five six seven eight nine",
    )


@pytest.mark.parametrize(
    "text", ["", "word", "one two three four five six seven", "短い文章です", "https://example.org/a/very/long/address"]
)
def test_what_is_too_short_is_not_cut(text):
    assert cut_in_two(text) is None


def test_scripts_without_spaces_are_cut_between_characters():
    text = "这是一个没有空格的句子它足够长可以切成两半来互相寻找对方"
    first, second = cut_in_two(text)
    assert first + second == text and abs(len(first) - len(second)) <= 1


def test_reciprocal_ranks_are_those_of_the_ranked_cosines():
    random = np.random.default_rng(0)
    first, second = random.standard_normal((2, 30, 5))
    cosines = (first @ second.T) / np.outer(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    wanted = [
        (1 / rankdata(-cosines[row])[row] + 1 / rankdata(-cosines[:, row])[row]) / 2 for row in range(30)
    ]  # fmt: skip
    np.testing.assert_allclose(reciprocal_ranks(first, second), wanted)


def test_halves_that_are_all_alike_share_the_average_rank():
    np.testing.assert_allclose(reciprocal_ranks(np.ones((5, 3)), np.ones((5, 3))), 1 / 3)


def test_zero_vectors_find_nothing_sooner_than_others():
    found = reciprocal_ranks(np.zeros((4, 3)), np.eye(4, 3))
    np.testing.assert_allclose(found, 1 / 2.5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused(wrong):
    rows = np.ones((5, 3))
    rows[2, 1] = wrong
    for sides in ((rows, np.ones((5, 3))), (np.ones((5, 3)), rows)):
        with pytest.raises(InputError, match="row 2"):
            reciprocal_ranks(*sides)


def test_scripts_are_counted_by_text():
    assert count_scripts(["hello", "здравствуй", "мир", "123"]) == {
        "Cyrillic": pytest.approx(2 / 3),
        "Latin": pytest.approx(1 / 3),
    }
    assert count_scripts(["123", "…"]) == {}
    assert count_scripts(["これはペンです", "漢字", "カタカナ"]) == {"Chinese or Japanese": 1.0}
