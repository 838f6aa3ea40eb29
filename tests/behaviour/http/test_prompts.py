"""Where the side of a search is known, documents get the encoder's prompt of documents and queries that of queries."""

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec

PROMPTS = {"query": "query: ", "passage": "passage: "}
TEXTS = ["A heron stands in the shallow water.", "Prices fell for a third month.", "The lathe turns slowly."]
QUESTION = "Which bird stands in water?"


@pytest.fixture(scope="module")
def lathe(start_app, tmp_path_factory, tiny_model):
    encoder = {"name": "tiny", "model": str(tiny_model), "prompts": PROMPTS, "dtype": "float32"}
    with start_app(home=tmp_path_factory.mktemp("home"), encoders=[encoder]) as app:
        assert app.client.put("/indexes/texts", json={"chain": "none"}, headers=app.admin).status_code == 200
        yield app


@pytest.fixture(scope="module")
def encode(tiny_model):
    """Return a function that encodes texts with a prompt, which is part of the text."""
    encoder = Encoder(EncoderSpec("tiny", str(tiny_model)))
    return lambda prompt, texts: encoder.encode([prompt + text for text in texts]).vectors


def post(lathe, path, **body):
    answer = lathe.client.post(path, json=body, headers=lathe.admin)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_index_stores_documents_with_their_prompt_and_searches_with_that_of_queries(lathe, encode):
    post(lathe, "/indexes/texts/upsert", ids=["a", "b", "c"], texts=TEXTS)
    items = post(lathe, "/indexes/texts/get", ids=["a", "b", "c"], vectors=True)["items"]
    documents = encode("passage: ", TEXTS)
    np.testing.assert_allclose([item["vector"] for item in items], documents, atol=1e-5)
    hits = post(lathe, "/indexes/texts/search", texts=[QUESTION], k=3)["results"][0]
    scores = {hit["id"]: hit["score"] for hit in hits}
    expected = documents @ encode("query: ", [QUESTION])[0]
    np.testing.assert_allclose([scores[name] for name in "abc"], expected, atol=1e-4)
    assert lathe.client.get("/indexes/texts").json()["prompts"] == {"document": "passage", "query": "query"}


def test_a_prompt_that_the_request_names_decides(lathe, encode):
    post(lathe, "/indexes/texts/upsert", ids=["d"], texts=[TEXTS[0]], prompt_name="query")
    (item,) = post(lathe, "/indexes/texts/get", ids=["d"], vectors=True)["items"]
    np.testing.assert_allclose(item["vector"], encode("query: ", TEXTS[:1])[0], atol=1e-5)
    post(lathe, "/indexes/texts/delete", ids=["d"])


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"input_type": "query"}, "query: "),
        ({"input_type": "document"}, "passage: "),
        ({"input_type": "document", "prompt_name": "query"}, "query: "),
        ({"prompt_name": "document"}, "passage: "),  # sentence-transformers wrote an empty prompt of that name
        ({"input_type": "document", "prompt_name": "document"}, "passage: "),
        ({}, ""),
    ],
)
def test_the_input_type_of_a_request_for_vectors_decides_on_the_prompt(lathe, encode, fields, prompt):
    expected = encode(prompt, [QUESTION])
    np.testing.assert_allclose(post(lathe, "/embed", inputs=[QUESTION], **fields), expected, atol=1e-5)
    found = post(lathe, "/v1/embeddings", input=[QUESTION], **fields)["data"][0]["embedding"]
    np.testing.assert_allclose([found], expected, atol=1e-5)
