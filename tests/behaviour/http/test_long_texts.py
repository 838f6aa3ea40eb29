"""Texts far longer than the model's maximum length: cutting, refusing, and estimating their cost."""

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec

PROSE = "The ledger is closed at the end of every month. " * 2000


@pytest.mark.parametrize(
    ("text", "short", "tokens"),
    [
        (PROSE * 20, PROSE[:4000], 256),
        (" " * 2_000_000 + "hello ledger", "hello ledger", 4),
        ("ab" * 1_000_000 + " hello", "ab" * 100 + " hello", 4),
    ],
    ids=["prose", "spaces", "one_word"],
)
def test_a_megabyte_of_text_gets_the_vector_and_token_count_of_its_truncation(client, text, short, tokens):
    answers = [client.post("/v1/embeddings", json={"input": [some]}).json() for some in (text, short)]
    found, expected = ([item["embedding"] for item in answer["data"]] for answer in answers)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [tokens, tokens]


def test_the_metrics_count_texts_and_tokens_that_were_cut_also_from_the_cache(client):
    def read():
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
        return [
            float(lines.get(f'lathe_cut_{what}_total{{encoder="all-MiniLM-L6-v2"}}', 0)) for what in ("texts", "tokens")
        ]

    texts = ["short", "counted and cut " * 300, PROSE * 7]
    for _ in range(2):
        before = read()
        cut = int(client.post("/embed", json={"inputs": texts}).headers["x-tokens-cut"])
        after = read()
        assert [new - old for new, old in zip(after, before, strict=True)] == [2, cut] and cut > 100_000
    client.post("/embed", json={"inputs": texts[:1]})
    assert read() == after


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


LONGER = " ".join(f"Sentence {number} tells of something else." for number in range(100))  # tokenized whole


def ask(client, text, path="/embed", **fields):
    """Embed a text and return its vector and the tokens that were read and cut."""
    field = "inputs" if path == "/embed" else "input"
    answer = client.post(path, json={field: ["tea", text]} | fields)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    rows = content if path == "/embed" else [item["embedding"] for item in content["data"]]
    read, cut = (int(answer.headers[name]) for name in ("x-tokens", "x-tokens-cut"))
    assert path == "/embed" or content["usage"]["prompt_tokens"] == read
    return np.array(rows[1]), read - 3, cut


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_long_text_of_a_request_says_what_becomes_of_a_long_text_and_the_answer_how_much_was_cut(client, path, encoder):
    whole = len(encoder.model.tokenizer(LONGER, truncation=False, verbose=False)["input_ids"])
    for choice in ("truncate", "mean"):
        expected = encoder.encode([LONGER], long_text=choice)
        for _ in range(2):  # the second time from the cache
            vector, read, cut = ask(client, LONGER, path, long_text=choice)
            np.testing.assert_allclose(vector, expected.vectors[0], atol=1e-5)
            assert (read, cut) == ((256, whole - 256) if choice == "truncate" else (expected.tokens[0], 0))
    field = "inputs" if path == "/embed" else "input"
    refused = client.post(path, json={field: ["tea", LONGER], "long_text": "error"})
    assert refused.status_code == 413 and refused.json()["error"]["message"].startswith("input 1 has")
    default = ask(client, LONGER, path)
    assert default[2] == whole - 256 and ask(client, "short", path)[1:] == (3, 0)


def test_a_text_too_long_for_a_mean_is_answered_413_and_named_by_its_position(client):
    for text, message in ((PROSE * 12, "characters long"), ("a b " * 20_000, "input 1 has more than 32,768 tokens")):
        refused = client.post("/embed", json={"inputs": ["tea", text], "long_text": "mean"})
        assert refused.status_code == 413 and message in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"truncate": True, "long_text": "error"}, 400),
        ({"truncate": False, "long_text": "truncate"}, 400),
        ({"truncate": True, "long_text": "mean"}, 200),
        ({"truncate": False, "long_text": "error"}, 413),
        ({"long_text": "split"}, 400),
    ],
)
def test_truncate_and_long_text_must_agree(client, fields, status):
    assert client.post("/embed", json={"inputs": LONGER} | fields).status_code == status


@pytest.fixture(scope="module")
def meaning(serve_encoder, tiny_model):
    """Serve an encoder of 32 tokens whose long texts are means, and return its name."""
    with serve_encoder("meaning", model=str(tiny_model), long_text="mean"):
        yield "meaning"


def test_an_encoders_long_text_applies_unless_a_request_says_otherwise(lathe, meaning, tiny_model):
    """Texts of an index are encoded alike."""
    encoder = Encoder(EncoderSpec("tiny", str(tiny_model)))
    mean, cut = (encoder.encode([LONGER], long_text=choice).vectors[0] for choice in ("mean", "truncate"))
    client = lathe.client
    for fields, expected in (
        ({}, mean),
        ({"truncate": True}, mean),  # clients of TEI always say so: they want no error
        ({"long_text": "truncate"}, cut),
        ({"truncate": None}, mean),
    ):
        np.testing.assert_allclose(ask(client, LONGER, model=meaning, **fields)[0], expected, atol=1e-5)
    refused = client.post("/embed", json={"inputs": LONGER, "model": meaning, "truncate": False})
    assert refused.status_code == 413
    settings = {"encoder": meaning, "chain": "none"}
    assert client.put("/indexes/long", json=settings, headers=lathe.admin).status_code in (200, 201)
    client.post("/indexes/long/upsert", json={"ids": ["a"], "texts": [LONGER]})
    client.post("/indexes/long/upsert", json={"ids": ["b"], "texts": [LONGER], "long_text": "truncate"})
    items = client.post("/indexes/long/get", json={"ids": ["a", "b"], "vectors": True}).json()["items"]
    for item, expected in zip(items, (mean, cut), strict=True):
        np.testing.assert_allclose(item["vector"], expected, atol=1e-5)
    assert client.delete("/indexes/long", headers=lathe.admin).status_code == 200
