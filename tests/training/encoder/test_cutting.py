import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lathe.training.encoder.cutting import MAX_EXAMINED, PIECE, STATIC_CHARACTERS, TextCutter, cut_by_words
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import TooLongError
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.run import count_truncated
from lathe.training.finetuning.trainer import build_dataset

LINES = [
    "The ledger is closed at the end of every month, and audited in the next one.",
    "A lathe turns wood or metal against a cutting tool; 12345 678 90.",
    "        def mean(values): return sum(values) / len(values)",
    "東京は日本の首都です。これは少し長い文です。",
    "naïve café Straße aaaa aaaaaaaa hello",
]
READ = 16
"""Tokens of the text that the tests' models read, so that short texts are long for them."""

LLAMA = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level():
    """Return a tokenizer and trainer like RoBERTa's: white space belongs to the tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made, trainers.BpeTrainer(vocab_size=500, special_tokens=["<mask>"], show_progress=False)


def digits_by_three():
    """Return a tokenizer and trainer like Llama's and Qwen's: digits are split into groups of three."""
    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(LLAMA), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return made, trainers.BpeTrainer(vocab_size=500, special_tokens=["<mask>"], show_progress=False)


def unigram():
    """Return a tokenizer and trainer like XLM-RoBERTa's: runs of spaces are one, unknown characters are fused."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<mask>"]
    return made, trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)


def unsplit():
    """Return a tokenizer and trainer like Gemma's: the whole text is one word."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    special = ["<unk>", "<mask>"]
    return made, trainers.BpeTrainer(vocab_size=300, max_token_length=12, special_tokens=special, show_progress=False)


@pytest.fixture(scope="module")
def tokenizers(encoder):
    """Return tokenizers of five kinds by name."""
    found = {"word_piece": encoder.model.tokenizer}
    for make in (byte_level, digits_by_three, unigram, unsplit):
        made, trainer = make()
        made.train_from_iterator(LINES, trainer)
        found[make.__name__] = PreTrainedTokenizerFast(tokenizer_object=made, mask_token="<mask>")
    return found


def tokens_read(tokenizer, text, side, read=READ):
    """Return the ids of the tokens that are read of a text after truncation."""
    tokenizer.truncation_side = side
    return tokenizer([text], truncation=True, max_length=read)["input_ids"][0]


def letters(count, alphabet="abcdefghij"):
    """Return random characters of an alphabet, the same for the same count."""
    return "".join(random.Random(count).choices(alphabet, k=count))


LONG = {
    "short_tokens": "a b " * 1000,
    "prose": " ".join(LINES) * 20,
    "spaces": " " * 5000 + "hello ledger" + " " * 5000,
    "white_space": letters(4000, " \t\n\u3000\u00a0") + "hello ledger" + letters(3000, " \t\n\u3000\u00a0"),
    "long_word": letters(3000) + " hello",
    "long_words": f"{letters(99)} {letters(101)} {letters(130)} " * 30,
    "word_of_one_letter": "hello " + "a" * 4001 + " the ledger",
    "word_that_grows_too_long_only_at_its_end": "a" + "\u0301" * 3000 + "b" * 100 + " hello",
    "combining_marks": "e\u0301a\u0308" * 1000,
    "many_marks": ("a" + "\u0301" * 50) * 99 + " " + ("b" + "\u0301" * 50) * 101 + " hello",
    "cases": "İΣςß Ǆ ŉ " * 400,
    "hangul_letter_by_letter": "\u1112\u1161\u11ab" * 1000,
    "control_characters": "\x01\u200b\0" * 2000 + "hello" + "\0" * 2000,
    "chinese": letters(4000, "東京日本の首都です。"),
    "emoji": "😀" * 3000 + "hello",
    "digits": letters(4000, "0123456789"),
    "dots_and_lines": "." * 2000 + "\n" * 2000,
    "added_tokens": "<mask>[MASK] " * 300,
    "all_together": f"{letters(700)}{' ' * 700}{'東' * 20}{'é' * 700} {letters(20, '0123456789')}😀" * 3,
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["word_piece", "byte_level", "digits_by_three", "unigram", "unsplit"])
def test_a_cut_text_has_the_same_truncated_tokens_as_the_whole_text(tokenizers, name, side):
    tokenizer = tokenizers[name]
    cutter = TextCutter(tokenizer, READ)
    for label, text in LONG.items():
        for prompt in ("", "query: "):
            cut = cutter.cut(text, prompt, side)
            expected = tokens_read(tokenizer, prompt + text, side)
            assert tokens_read(tokenizer, prompt + cut.text, side) == expected, (label, prompt)
            if not cut.whole:  # what is cut is known to be too long
                assert len(tokenizer([prompt + cut.text])["input_ids"][0]) > READ, (label, prompt)


PIECES = st.builds(
    lambda some, count, end: some * count + end,
    st.sampled_from(
        [" ", "a", "ab c", "é", "e\u0301", "\0", "\u200b", "日", "[SEP] ", "😀", ".", "x\u0301" * 9, "word", "\n "]
    ),
    st.integers(1, 900),
    st.sampled_from(["", " ", "b", "."]),
)


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(PIECES, min_size=1, max_size=6), side=st.sampled_from(["right", "left"]))
def test_a_cut_text_has_the_same_truncated_tokens_for_any_mixture_of_characters(encoder, pieces, side):
    text = "".join(pieces)
    tokenizer = encoder.model.tokenizer
    cut = TextCutter(tokenizer, READ).cut(text, "", side)
    assert tokens_read(tokenizer, cut.text, side) == tokens_read(tokenizer, text, side)


@pytest.mark.parametrize("side", ["right", "left"])
def test_cut_leaves_a_short_part_of_a_text_of_ordinary_tokens(tokenizers, side):
    for name, tokenizer in tokenizers.items():
        cutter = TextCutter(tokenizer, READ)
        for label in ("short_tokens", "prose", "chinese", "digits", "combining_marks"):
            assert len(cutter.cut(LONG[label] * 50, "", side).text) <= 4 * cutter.part + 500, (name, label)


def test_cut_leaves_out_the_middle_of_stretches_without_tokens_and_keeps_the_words_after(encoder):
    cutter = TextCutter(encoder.model.tokenizer, READ)
    for label in ("spaces", "white_space", "long_word", "control_characters", "emoji"):
        cut = cutter.cut(LONG[label] + " a later word")
        assert cut.whole and len(cut.text) < 2000, label
        assert "hello" in cut.text and cut.text.endswith(" a later word"), label


def test_cut_of_a_text_of_unknown_words_keeps_at_most_max_examined_characters(encoder):
    text = "".join(chr(0x250 + number * 7919 % 600) for number in range(3 * MAX_EXAMINED))  # unknown words of letters
    cutter = TextCutter(encoder.model.tokenizer, 4096)
    cut = cutter.cut(text)
    assert not cut.whole
    assert len(cut.text) <= MAX_EXAMINED


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("a b " * 1_000_000, "a b " * 500),
        (letters(10) * 400_000 + " hello", letters(10) * 40 + " hello"),
        (" " * 4_000_000 + "hello", "hello"),
    ],
    ids=["short_tokens", "one_word", "spaces"],
)
def test_encoding_megabytes_takes_under_a_second_and_equals_encoding_what_is_read(encoder, text, short):
    """Without cutting, the texts took 3 to 6 seconds."""
    begun = time.process_time()  # of this process: what others do does not count
    encoded = encoder.encode([text])
    assert time.process_time() - begun < 1
    expected = encoder.encode([short])
    np.testing.assert_allclose(encoded.vectors, expected.vectors, rtol=0, atol=1e-6)
    assert encoded.tokens.tolist() == expected.tokens.tolist()


def test_encode_without_truncation_refuses_a_text_of_megabytes_in_under_a_second(encoder):
    begun = time.process_time()
    with pytest.raises(
        TooLongError, match=r"input 1 is 4000000 characters long, more than the 256 tokens that .* reads"
    ):
        encoder.encode(["short", "a b " * 1_000_000], long_text="error")
    assert time.process_time() - begun < 1


def test_cut_by_words_keeps_the_truncated_tokens_of_every_tokenizer(tokenizers):
    for label, text in LONG.items():
        for side in ("right", "left"):
            part = cut_by_words(text, READ, side)
            for tokenizer in tokenizers.values() if part else ():
                assert tokens_read(tokenizer, part, side) == tokens_read(tokenizer, text, side), label


@pytest.fixture(scope="module")
def static(tmp_path_factory, tokenizers):
    """Return a static encoder (it looks up a vector for each token) with random vectors."""
    folder = str(tmp_path_factory.mktemp("static") / "model")
    torch.manual_seed(0)
    tokenizer = tokenizers["word_piece"].backend_tokenizer
    own = Tokenizer.from_str(tokenizer.to_str())
    own.no_truncation()
    SentenceTransformer(modules=[StaticEmbedding(own, embedding_dim=8)], device="cpu").save(folder)
    return Encoder(EncoderSpec("static", folder), "cpu")


def test_a_static_encoder_gives_long_texts_the_vectors_that_the_model_gives_them_whole(static):
    texts = ["short", " ".join(LINES) * (3 * PIECE // len(LINES[0])), "", letters(2 * PIECE), "  \n a word " * PIECE]
    encoded = static.encode(texts, normalize=False)
    features = static.model.preprocess(texts)
    expected = static.model(features)["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(encoded.vectors, expected, rtol=0, atol=1e-5)
    assert encoded.tokens.sum() == len(features["input_ids"])


def test_a_static_encoder_reads_at_most_static_characters_from_either_end(static):
    text = "a" * STATIC_CHARACTERS + "b"
    assert static.cut(text[:-1]).whole
    assert static.cut(text).text == text[:-1]
    assert static.cut(text, truncation_side="left").text == text[1:]
    with pytest.raises(TooLongError, match="input 1"):
        static.encode(["short", text], long_text="error")


def test_count_truncated_counts_texts_over_the_limit_in_under_a_second(encoder):
    begun = time.process_time()
    assert (
        count_truncated(encoder, ["a b " * 1_000_000, "short", "word " * 255, "word " * 254, " " * 10_000 + "x"]) == 2
    )
    assert time.process_time() - begun < 1


def test_build_dataset_cuts_long_anchors_and_negatives_and_keeps_short_ones(encoder):
    anchors, negatives = ["a b " * 100_000, "short"], [("e " * 99_999,), ()]
    mixture = Mixture(anchors, ["c", "d"], np.zeros(2, np.int64), ["one"], [], negatives=negatives)
    data = build_dataset(mixture, encoder.model)
    assert [len(text) < 4000 for text in data["anchor"]] == [True, True]
    assert data["anchor"][1] == "short"
    assert [[len(text) < 4000 for text in some] for some in data["negative"]] == [[True], []]
