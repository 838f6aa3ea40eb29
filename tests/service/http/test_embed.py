import base64
import io

import numpy as np
import pytest

from training.encoder.encoder import Encoder
from training.encoder.spec import DEFAULT_ENCODER

HEADERS = ("x-space-id", "x-chain", "x-dimensions", "x-request-id", "x-queue-time", "x-inference-time")


@pytest.mark.parametrize("size", [128, 96, 32, 1])
def test_a_nested_starter_chain_serves_any_size_up_to_its_own_with_norm_1(client, sentences, size):
    answer = client.post("/embed", json={"inputs": sentences, "dimensions": size})
    vectors = np.array(answer.json())
    assert vectors.shape == (len(sentences), size)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert answer.headers["x-chain"] == "compact@1"
    assert answer.headers["x-dimensions"] == str(size)


def test_every_vector_answer_has_the_headers_of_the_contract(client, sentences, raw):
    answers = [
        client.post("/embed", json={"inputs": sentences}),
        client.post("/", json={"inputs": "one text"}),
        client.post("/v1/embeddings", json={"input": sentences, "model": "all-MiniLM-L6-v2"}),
        client.post("/reduce", json={"vectors": raw, "chain": "compact"}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert all(answer.headers[name] for name in HEADERS)


def test_raw_vectors_are_the_encoders_own(client, sentences, raw):
    expected = Encoder(DEFAULT_ENCODER).encode(sentences).vectors
    np.testing.assert_allclose(raw, expected, atol=1e-5)
    answer = client.post("/embed", json={"inputs": sentences, "dimensions": 384})
    assert answer.headers["x-chain"] == "none"
    np.testing.assert_allclose(answer.json(), expected, atol=1e-5)


@pytest.mark.parametrize("size", [128, 32])
def test_embed_openai_and_reduce_answer_the_same_vector(client, sentences, raw, size):
    embedded = client.post("/embed", json={"inputs": sentences, "dimensions": size})
    openai = client.post("/v1/embeddings", json={"input": sentences, "dimensions": size})
    reduced = client.post("/reduce", json={"vectors": raw, "chain": "compact", "dimensions": size})
    rows = [item["embedding"] for item in openai.json()["data"]]
    np.testing.assert_allclose(rows, embedded.json(), atol=1e-5)
    np.testing.assert_allclose(reduced.json()["vectors"], embedded.json(), atol=1e-5)
    assert embedded.headers["x-space-id"] == openai.headers["x-space-id"] == reduced.headers["x-space-id"]


def test_a_batch_answers_what_each_text_answers_alone(client, sentences):
    together = client.post("/embed", json={"inputs": sentences, "dimensions": 64}).json()
    for text, vector in zip(sentences, together, strict=True):
        alone = client.post("/embed", json={"inputs": text, "dimensions": 64}).json()[0]
        np.testing.assert_allclose(alone, vector, atol=1e-5)


def test_base64_holds_the_same_floats(client, sentences):
    floats = client.post("/embed", json={"inputs": sentences, "dimensions": 16}).json()
    rows = client.post("/embed", json={"inputs": sentences, "dimensions": 16, "encoding_format": "base64"}).json()
    decoded = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    np.testing.assert_allclose(decoded, floats, atol=1e-6)


def test_spaces_differ_by_chain_and_size_and_by_nothing_else(client):
    def space(**body):
        return client.post("/embed", json={"inputs": "text"} | body).headers["x-space-id"]

    assert len({space(), space(dimensions=128), space(dimensions=64), space(chain="debias")}) == 4
    assert space(dimensions=128) == space(chain="compact") == space(chain="compact@1", prompt_name="query")
    assert space() == space(dimensions=384)


def test_a_model_names_a_chain_after_a_plus(client):
    listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert listed[0] == "all-MiniLM-L6-v2"
    assert {"all-MiniLM-L6-v2+compact", "all-MiniLM-L6-v2+debias"} <= set(listed)
    answer = client.post("/v1/embeddings", json={"input": "text", "model": "all-MiniLM-L6-v2+compact@1"})
    assert answer.headers["x-chain"] == "compact@1"
    assert answer.json()["model"] == "all-MiniLM-L6-v2+compact@1"
    hub_name = client.post("/v1/embeddings", json={"input": "text", "model": "sentence-transformers/all-MiniLM-L6-v2"})
    assert hub_name.headers["x-chain"] == "none"


def test_usage_counts_real_tokens(client):
    usage = client.post("/v1/embeddings", json={"input": ["one two three", "four"]}).json()["usage"]
    assert usage == {"prompt_tokens": 8, "total_tokens": 8}


def test_normalize_off_leaves_the_chains_own_length(client):
    vector = client.post("/embed", json={"inputs": "some text", "dimensions": 64, "normalize": False}).json()[0]
    unit = client.post("/embed", json={"inputs": "some text", "dimensions": 64}).json()[0]
    assert abs(np.linalg.norm(vector) - 1) > 1e-3
    np.testing.assert_allclose(vector / np.linalg.norm(vector), unit, atol=1e-5)


def test_a_text_of_a_million_characters_is_cut_or_refused(client):
    text = "word " * 200_000
    assert len(client.post("/embed", json={"inputs": text, "dimensions": 128}).json()[0]) == 128
    refused = client.post("/embed", json={"inputs": text, "truncate": False})
    assert refused.status_code == 413
    assert "256" in refused.json()["error"]["message"]


def test_truncation_can_keep_either_end(client):
    text = "begin " + "filler " * 400 + "end"
    left, right = (
        client.post("/embed", json={"inputs": text, "truncation_direction": side}).json()[0]
        for side in ("Left", "right")  # TEI writes it with a capital, others do not
    )
    assert not np.allclose(left, right, atol=1e-3)


def test_null_means_the_default_and_unknown_fields_are_ignored(client):
    body = {"inputs": "text", "truncate": None, "normalize": None, "prompt_name": None, "chain": None, "novel": 1}
    assert client.post("/embed", json=body).status_code == 200


def test_the_request_id_is_passed_through_or_made(client):
    def id_of(given):
        return client.post("/embed", json={"inputs": "x"}, headers={"x-request-id": given}).headers["x-request-id"]

    assert id_of("abc-1") == "abc-1"
    made = id_of("a b")
    assert made and made != "a b"
    assert client.post("/embed", json={"inputs": []}).headers["x-request-id"]


def test_openai_python_gets_what_embed_gives(client, sentences):
    import openai

    speaker = openai.OpenAI(base_url="http://localhost/v1", api_key="anything", http_client=client)
    answer = speaker.embeddings.create(input=sentences, model="all-MiniLM-L6-v2", dimensions=96)
    expected = client.post("/embed", json={"inputs": sentences, "dimensions": 96}).json()
    np.testing.assert_allclose([item.embedding for item in answer.data], expected, atol=1e-6)
    assert [model.id for model in speaker.models.list()][0] == "all-MiniLM-L6-v2"


def test_npy_is_answered_where_it_is_asked_for(client, sentences):
    body = {"inputs": sentences, "dimensions": 32}
    answer = client.post("/embed", json=body, headers={"accept": "application/x-npy"})
    assert answer.headers["content-type"] == "application/x-npy"
    found = np.load(io.BytesIO(answer.content), allow_pickle=False)
    np.testing.assert_allclose(found, client.post("/embed", json=body).json(), atol=1e-6)


def test_a_model_and_a_chain_may_stand_in_the_query(client, sentences):
    answer = client.post("/embed?model=all-MiniLM-L6-v2&chain=debias", json={"inputs": sentences})
    assert answer.headers["x-chain"] == "debias@1"
    assert client.post("/embed?chain=debias", json={"inputs": "x", "chain": "none"}).headers["x-chain"] == "none"
    assert client.post("/embed?model=nobody", json={"inputs": "x"}).status_code == 404


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "all-MiniLM-L6-v2+compact"])
def test_a_model_can_be_looked_up_by_its_name(client, name):
    assert client.get(f"/v1/models/{name}").json()["id"] == name
    assert client.get(f"/v1/models/{name}x").status_code == 404


def test_an_encoder_without_chains_says_which_size_it_has(client):
    answer = client.post("/embed", json={"inputs": "x", "dimensions": 200})
    assert answer.status_code == 400
    assert "384" in answer.json()["error"]["message"]
