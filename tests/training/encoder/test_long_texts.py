"""Division of long texts into chunks, by real tokenizers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.training.encoder.long_texts import OVERLAP, WINDOW_CHARACTERS, Pieces, split_texts
from lathe.training.errors import TooLongError

TOKENS = 40
PROSE = " ".join(
    f"Sentence {number} tells of ledgers, rivers and unbelievably overcomplicated lathes." for number in range(1500)
)
assert len(PROSE) > 2 * WINDOW_CHARACTERS


@pytest.fixture(scope="module")
def tokenizer(encoder):
    return encoder.model.tokenizer


def divide(tokenizer, *texts, tokens=TOKENS, **more):
    return split_texts(texts, tokenizer, tokens, "tiny", **({"positions": None, "limit": None} | more))


def count(tokenizer, text):
    return len(tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "".join(f"東京{number}は日本の首都です。" for number in range(400)),
        "a" * 3000,
        "ab" * 30_000 + " end",
        " " * 60_000 + " ".join(map(str, range(100))) + " " * 60_000 + " ".join(map(str, range(900, 905))),
        "\n\t " * 300,
        "".join(f"naïve café {number} 😀 " for number in range(200)),
    ],
    ids=["prose", "japanese", "one_letter", "one_word", "spaces", "blank", "accents"],
)
def test_chunks_fit_the_limit_come_in_order_and_cover_every_word(tokenizer, text):
    pieces = divide(tokenizer, text)
    assert all(count(tokenizer, chunk) <= TOKENS + 2 for chunk in pieces.texts)
    position = covered = 0
    for chunk in pieces.texts:
        position = text.find(chunk, position)
        assert position >= 0  # each is a part of the text, after the start of the one before
        assert not text[covered:position].strip()
        covered = max(covered, position + len(chunk))
        position += 1
    assert not text[covered:].strip()


def test_chunks_of_prose_begin_and_end_between_words_and_overlap(tokenizer):
    chunks = divide(tokenizer, PROSE).texts
    words = PROSE.split()
    assert set(" ".join(chunks).split()) <= {*words, *(word.rstrip(".,") for word in words)}
    together = sum(count(tokenizer, chunk) for chunk in chunks)
    whole = count(tokenizer, PROSE)
    assert 1 + 1 / (2 * OVERLAP) < together / whole < 1.6


def test_a_text_of_more_tokens_than_the_limit_is_refused_by_its_position(tokenizer):
    assert len(divide(tokenizer, "tea", "word " * 200, limit=200).texts) > 2
    with pytest.raises(TooLongError, match="^input 1 has more than 199 tokens"):
        divide(tokenizer, "tea", "word " * 200, limit=199)
    with pytest.raises(TooLongError, match="^input 7 has more than 1,000 tokens"):
        divide(tokenizer, "tea", PROSE, limit=1000, positions=[3, 7])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans(), st.randoms(use_true_random=False))
def test_join_gives_each_text_the_weighted_mean_of_its_chunks(sizes, normalize, random):
    owners = np.repeat(np.arange(len(sizes)), sizes)
    seed = np.random.default_rng(random.randint(0, 2**32))
    vectors = seed.normal(size=(len(owners), 3)).astype(np.float32)
    tokens = seed.integers(1, 300, len(owners))
    joined, sums = Pieces([""] * len(owners), owners, len(sizes)).join(torch.from_numpy(vectors), tokens, normalize)
    for row, size in enumerate(sizes):
        mine = owners == row
        expected = np.average(vectors[mine], axis=0, weights=tokens[mine])
        if normalize and size > 1:
            expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(joined[row], expected, atol=1e-5)
        assert sums[row] == tokens[mine].sum()
