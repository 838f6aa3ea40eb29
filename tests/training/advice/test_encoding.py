from types import SimpleNamespace

import numpy as np
import pytest

from lathe.training.advice.encoding import SampleEncoder, encode_out_of_domain
from lathe.training.advice.sample import (
    MIN_HALVES,
    build_text_sample,
    count_heldout,
    cut_texts_in_two,
    list_texts_to_encode,
)
from lathe.training.errors import EncoderError
from lathe.training.fitting.out_of_domain import sample_texts
from lathe.training.sources.row_sample import RowSample
from lathe.training.sources.source import open_source

TEXTS = [f"text {number} speaks of the number {number} and then of {number + 1}" for number in range(200)]


class Scripted:
    """Encoder that raises for some texts and returns NaN for others."""

    name, dimensions, vectors_key = "scripted", 4, "print"

    def __init__(self, fails=(), nan=()):
        self.fails, self.nan, self.seen = set(fails), set(nan), []

    def encode(self, texts):
        self.seen.append(list(texts))
        if self.fails & set(texts):
            raise RuntimeError("index out of range")
        rows = np.array([[len(text), hash(text) % 97, 1, text.count("1")] for text in texts], np.float32)
        rows[[text in self.nan for text in texts]] = np.nan
        return SimpleNamespace(vectors=rows)


def ignore_progress(_fraction, _sentence):
    return


def test_sample_encoder_encodes_each_text_once_also_across_runs(tmp_path):
    encoder = Scripted()
    first = SampleEncoder(encoder, tmp_path)
    first.encode([*TEXTS[:5], *TEXTS[:5]], ignore_progress)
    assert encoder.seen == [TEXTS[:5]]
    again = SampleEncoder(encoder, tmp_path)
    again.encode(TEXTS[:7], ignore_progress)
    assert encoder.seen[1:] == [TEXTS[5:7]]
    np.testing.assert_array_equal(again.vectors(TEXTS[:5]), first.vectors(TEXTS[:5]))


def test_build_text_sample_leaves_out_texts_and_halves_on_which_the_encoder_fails(tmp_path):
    row_sample = RowSample(TEXTS, None, 200, 0, 0.0)
    half = list_texts_to_encode(row_sample)[201]
    encoder = Scripted(fails=[TEXTS[3], TEXTS[150]], nan=[TEXTS[7], half])
    encoding = SampleEncoder(encoder, tmp_path)
    encoding.encode(list_texts_to_encode(row_sample), ignore_progress)
    assert set(encoding.failed) == {TEXTS[3], TEXTS[150], TEXTS[7], half}
    sample = build_text_sample(row_sample, encoding.vectors, encoding.failed)
    aside = count_heldout(200)
    assert len(sample.heldout) == aside - 2 and len(sample.fit) == 200 - aside - 1
    assert sample.cut == len(sample.halves) == aside - 3 >= MIN_HALVES
    assert np.isfinite(sample.halves.first).all() and np.isfinite(sample.halves.second).all()
    assert len(sample.row_sample.texts) == 197
    (note,) = encoding.list_remarks()
    assert note.startswith("The encoder fails on 4 texts or halves")


def test_sample_encoder_raises_encoder_error_if_every_text_fails(tmp_path):
    with pytest.raises(EncoderError, match="scripted fails on every text: RuntimeError: index out of range"):
        SampleEncoder(Scripted(fails=TEXTS), tmp_path).encode(TEXTS, ignore_progress)


@pytest.fixture(scope="module")
def built_in():
    """Return the texts sampled from the built-in source of topics."""
    return sample_texts(open_source("pydoc:topics"))


def test_out_of_domain_texts_on_which_the_encoder_fails_are_left_out_and_counted(built_in, tmp_path):
    pairs = cut_texts_in_two(built_in)
    encoder = Scripted(fails=[built_in[3], pairs[2][0]], nan=[built_in[5]])
    found, said = encode_out_of_domain("pydoc:topics", encoder, tmp_path)
    assert len(found.vectors) == len(built_in) - 2 and len(found.halves) == len(pairs) - 1
    assert np.isfinite(found.vectors).all() and np.isfinite(found.halves.first).all()
    assert said == [
        f"The encoder fails on 2 of {len(built_in):,} built-in out-of-domain texts and on halves of 1, "
        "which were left out."
    ]


def test_out_of_domain_text_is_encoded_once_and_then_read_from_the_cache(built_in, tmp_path):
    encoder = Scripted()
    found, said = encode_out_of_domain("pydoc:topics", encoder, tmp_path)
    assert (len(found.vectors), len(found.halves), said) == (len(built_in), len(cut_texts_in_two(built_in)), [])
    calls = len(encoder.seen)
    again, _ = encode_out_of_domain("pydoc:topics", encoder, tmp_path)
    assert len(encoder.seen) == calls
    np.testing.assert_array_equal(again.vectors, found.vectors)


def test_encode_out_of_domain_returns_none_and_a_remark_if_every_text_fails(built_in, tmp_path):
    found, (said,) = encode_out_of_domain("pydoc:topics", Scripted(fails=built_in), tmp_path)
    assert found is None and said.startswith(f"The encoder fails on {len(built_in):,} of {len(built_in):,} built-in")
