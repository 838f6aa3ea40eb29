"""Texts far longer than the model's maximum length: cutting, refusing, and estimating their cost."""

from types import SimpleNamespace

import numpy as np
import pytest

from service.encoders.embedder import cut_texts
from service.encoders.engine.work import EncodeOptions, Work, estimate_cost
from training.errors import TooLongError

ENCODER = SimpleNamespace(name="tiny", max_length=256)
PROSE = "The ledger is closed at the end of every month. " * 2000


def test_cut_texts_shortens_a_long_text_from_the_truncated_side():
    """Short texts, and long ones of few tokens, stay unchanged."""
    right, left, short, spaces = (
        *cut_texts([PROSE + "end"], ENCODER, EncodeOptions()),
        *cut_texts([PROSE + "end"], ENCODER, EncodeOptions(truncation_side="left")),
        *cut_texts(["short", " " * 50_000], ENCODER, EncodeOptions(truncate=False)),
    )
    assert len(right) == len(left) < 10_000
    assert PROSE.startswith(right) and left.endswith("end")
    assert (short, spaces) == ("short", " " * 50_000)


def test_cut_texts_raises_too_long_error_if_a_long_text_must_not_be_truncated():
    with pytest.raises(TooLongError, match="input 1 is 96000 characters long, of which tiny reads 256 tokens"):
        cut_texts(["short", PROSE], ENCODER, EncodeOptions(truncate=False))


def test_estimate_cost_counts_long_whitespace_above_the_maximum_length():
    assert [estimate_cost("x" * count, 256) for count in (400, 4000, 8000)] == [102, 256, 256]
    assert estimate_cost(" " * 1_000_000, 256) > 4000
    work = Work([" " * 1_000_000, "short"], EncodeOptions(), None, False, 256)
    assert work.tokens_estimated > 4000
    assert work.take(1000).rows == [0]


@pytest.mark.parametrize(
    ("text", "short", "tokens"),
    [
        (PROSE * 20, PROSE[:4000], 256),
        (" " * 2_000_000 + "hello ledger", "hello ledger", 4),
        ("ab" * 1_000_000 + " hello", "ab" * 100 + " hello", 4),
        ("\0" * 300_000 + "hello", "hello", 3),
    ],
    ids=["prose", "spaces", "one_word", "nul"],
)
def test_a_megabyte_of_text_gets_the_vector_and_token_count_of_its_truncation(client, text, short, tokens):
    answers = [client.post("/v1/embeddings", json={"input": [some]}).json() for some in (text, short)]
    found, expected = ([item["embedding"] for item in answer["data"]] for answer in answers)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [tokens, tokens]


def test_a_megabyte_with_truncate_false_is_answered_413_unless_it_fits(client):
    refused = client.post("/embed", json={"inputs": ["short", "a b " * 250_000], "truncate": False})
    assert refused.status_code == 413
    assert "input 1 is 1000000 characters long" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "inputs"
    # Chinese without a comma tells nothing by its words; its encoder finds out.
    refused = client.post("/embed", json={"inputs": "東京" * 100_000, "truncate": False})
    assert (refused.status_code, "200000 characters" in refused.text) == (413, True)
    taken = client.post("/embed", json={"inputs": " " * 100_000 + "hello", "truncate": False})
    assert taken.status_code == 200
