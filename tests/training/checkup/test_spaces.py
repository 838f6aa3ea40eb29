import numpy as np
import pytest

from lathe.training.checkup.spaces import encode_again, find_strangers
from lathe.training.errors import EncoderError
from tests.training.checkup.words import WordEncoder, known, make_rows, make_texts

TEXTS = make_texts(300)
DAMAGED = np.arange(0, 300, 12)
OWN, OTHER = WordEncoder(), WordEncoder(1)


def encode(texts, encoder=OWN, prompt="document"):
    return encoder.encode(texts, prompt).vectors


def check(vectors, encoder=OWN, texts=TEXTS):
    return encode_again(make_rows(vectors, texts), known(encoder), lambda *_: None)


DAMAGES = {
    "other_encoder": lambda texts: encode(texts, OTHER),
    "prompt": lambda texts: encode(texts, prompt=None),
    "truncated": lambda texts: encode([" ".join(text.split()[:11]) for text in texts]),
    "changed_text": lambda texts: encode(make_texts(400)[-len(texts) :]),
}


@pytest.mark.parametrize("cause", DAMAGES)
def test_each_cause_is_told_from_the_others_and_names_its_rows(cause):
    vectors = encode(TEXTS)
    vectors[DAMAGED] = DAMAGES[cause]([TEXTS[row] for row in DAMAGED])
    (finding,) = check(vectors).describe(300, "lathe embed")
    assert finding.advice == "Correct what writes them, and encode these rows again: lathe embed"
    assert (finding.kind, finding.severity, finding.share.value) == (cause, "fix", len(DAMAGED) / 300)
    assert set(finding.ids) <= {str(row) for row in DAMAGED}


def test_rows_that_were_rounded_or_scaled_are_their_texts_vectors():
    vectors = 3 * np.round(encode(TEXTS) * 127) / 127
    again = check(vectors)
    assert again.causes == {} and [finding.severity for finding in again.describe(300, "")] == ["fine"]


def test_where_many_rows_differ_a_part_is_explained():
    again = check(encode(TEXTS, OTHER))
    assert again.causes["other_encoder"].all() and len(again.ids) == 60
    (finding,) = again.describe(300, "")  # another encoder may have been named
    assert finding.advice == "Check that the right encoder and texts are named; if so, encode these rows again"


def test_rows_without_texts_are_not_encoded():
    assert check(encode(TEXTS), texts=None) is None
    assert check(encode(TEXTS), texts=[None, " "] * 150) is None
    assert check(encode(TEXTS), texts=[None, *TEXTS[1:]]).ids[0] == "1"


def test_an_encoder_of_other_dimensions_is_refused():
    with pytest.raises(EncoderError, match="words gives 64 dimensions, and the rows have 63: name their encoder"):
        check(encode(TEXTS)[:, :63])


def test_rows_of_another_encoder_are_found_without_texts():
    texts = make_texts(1200)
    vectors = encode(texts)
    assert list(find_strangers(make_rows(vectors))) == []
    assert list(find_strangers(make_rows(vectors[:200]))) == []  # too few for their directions

    vectors[::20] = encode(texts[::20], OTHER)
    (finding,) = find_strangers(make_rows(vectors))
    assert (finding.kind, finding.severity, finding.certainty) == ("strangers", "note", "possible")
    assert finding.share.value == pytest.approx(0.05, abs=0.01)
    assert finding.share.low < 0.05 < finding.share.high
    assert all(int(row) % 20 == 0 for row in finding.ids)
