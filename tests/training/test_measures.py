import numpy as np
import pytest
from scipy.stats import rankdata

from lathe.training.measures import TextHalves, compute_script_shares, cut_in_two, rank_halves
from lathe.transforms import InputError
from lathe.transforms.chain import Chain


def test_cut_in_two_cuts_between_words():
    assert cut_in_two("one two three four five six seven eight nine") == (
        "one two three four",
        "five six seven eight nine",
    )


def test_cut_in_two_returns_none_for_short_texts_and_single_words():
    for text in ("", "one two three four five six seven", "短い文章です", "https://example.org/a/very/long/address"):
        assert cut_in_two(text) is None, text


def test_cut_in_two_cuts_chinese_text_in_the_middle():
    text = "这是一个没有空格的句子它足够长可以切成两半来互相寻找对方"
    first, second = cut_in_two(text)
    assert first + second == text and abs(len(first) - len(second)) <= 1


def ranks(first, second, distractors=None):
    """Return the reciprocal ranks of halves whose vectors are only normalized."""
    return rank_halves(Chain([]), TextHalves(first.astype(np.float32), second.astype(np.float32)), distractors)


def test_reciprocal_ranks_equal_those_of_ranked_cosines_averaged_over_both_directions():
    random = np.random.default_rng(0)
    first, second = random.standard_normal((2, 30, 5))
    cosines = (first @ second.T) / np.outer(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
    wanted = [
        (1 / rankdata(-cosines[row])[row] + 1 / rankdata(-cosines[:, row])[row]) / 2 for row in range(30)
    ]  # fmt: skip
    np.testing.assert_allclose(ranks(first, second), wanted)
    among_copies = ranks(first, second, distractors=np.concatenate([first, second]).astype(np.float32))
    assert (among_copies <= 0.5).all(), "the half that searches is among the distractors, and is nearer"


def test_reciprocal_ranks_of_equal_vectors_are_those_of_the_average_rank():
    np.testing.assert_allclose(ranks(np.ones((5, 3)), np.ones((5, 3))), 1 / 3)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_reciprocal_ranks_refuses_vectors_that_are_not_finite(wrong):
    rows = np.ones((5, 3))
    rows[2, 1] = wrong
    for sides in ((rows, np.ones((5, 3))), (np.ones((5, 3)), rows)):
        with pytest.raises(InputError, match="NaN or inf"):
            ranks(*sides)


def test_count_scripts_returns_the_share_of_texts_in_each_script():
    assert compute_script_shares(["hello", "здравствуй", "мир", "123"]) == {
        "Cyrillic": pytest.approx(2 / 3),
        "Latin": pytest.approx(1 / 3),
    }
    assert compute_script_shares(["123", "…"]) == {}
    assert compute_script_shares(["これはペンです", "漢字", "カタカナ"]) == {"Chinese or Japanese": 1.0}
