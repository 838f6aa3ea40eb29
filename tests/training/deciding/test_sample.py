from types import SimpleNamespace

import numpy as np
import pytest

from lathe.training.deciding.advise import list_remarks
from lathe.training.deciding.sample import (
    MIN_HALVES,
    count_heldout,
    encode_leniently,
    encode_sample,
    list_texts_to_encode,
)
from lathe.training.errors import EncoderError
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.progress import no_progress

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


def test_encode_leniently_encodes_each_text_once():
    encoder = Scripted()
    vectors, failed = encode_leniently(encoder, [*TEXTS[:5], *TEXTS[:5]], no_progress)
    assert encoder.seen == [TEXTS[:5]] and failed == {}
    np.testing.assert_array_equal([vectors[text] for text in TEXTS[:5]], encoder.encode(TEXTS[:5]).vectors)


def test_encode_sample_leaves_out_texts_and_halves_on_which_the_encoder_fails():
    row_sample = RowSample(TEXTS, None, 200, 0, 0.0)
    half = list_texts_to_encode(row_sample)[201]
    encoder = Scripted(fails=[TEXTS[3], TEXTS[150]], nan=[TEXTS[7], half])
    sample = encode_sample(row_sample, encoder, True, no_progress)
    assert set(sample.failed) == {TEXTS[3], TEXTS[150], TEXTS[7], half}
    aside = count_heldout(200)
    assert len(sample.heldout) == aside - 2 and len(sample.fit) == 200 - aside - 1
    assert sample.cut == len(sample.halves.first) == aside - 3 >= MIN_HALVES
    assert np.isfinite(sample.halves.first).all() and np.isfinite(sample.halves.second).all()
    assert len(sample.row_sample.texts) == 197
    whole = encode_sample(row_sample, encoder, False, no_progress)
    assert (whole.cut, whole.halves, len(whole.heldout)) == (0, None, aside - 2)
    (note,) = list_remarks(sample)
    assert note.startswith("The encoder fails on 4 texts or halves")


def test_encode_leniently_raises_encoder_error_if_every_text_fails():
    with pytest.raises(EncoderError, match="scripted fails on every text: RuntimeError: index out of range"):
        encode_leniently(Scripted(fails=TEXTS), TEXTS, no_progress)
