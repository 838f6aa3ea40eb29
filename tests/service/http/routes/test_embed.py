import numpy as np

HEADERS = ("x-space-id", "x-chain", "x-dimensions", "x-request-id", "x-queue-time", "x-inference-time")


def test_every_vector_response_has_the_documented_headers(client, sentences, raw):
    answers = [
        client.post("/embed", json={"inputs": sentences}),
        client.post("/", json={"inputs": "one text"}),
        client.post("/v1/embeddings", json={"input": sentences, "model": "all-MiniLM-L6-v2"}),
        client.post("/reduce", json={"vectors": raw, "chain": "compact"}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert all(answer.headers[name] for name in HEADERS)


def test_embed_without_dimensions_or_with_all_of_them_answers_the_encoders_vectors(client, sentences, raw, encoder):
    expected = encoder.encode(sentences).vectors
    np.testing.assert_allclose(raw, expected, atol=1e-5)
    answer = client.post("/embed", json={"inputs": sentences, "dimensions": 384})
    assert answer.headers["x-chain"] == "none"
    np.testing.assert_allclose(answer.json(), expected, atol=1e-5)


def test_embed_openai_and_reduce_answer_the_same_vectors_and_space_id(client, sentences, raw):
    size = 32
    embedded = client.post("/embed", json={"inputs": sentences, "dimensions": size})
    openai = client.post("/v1/embeddings", json={"input": sentences, "dimensions": size})
    reduced = client.post("/reduce", json={"vectors": raw, "chain": "compact", "dimensions": size})
    rows = [item["embedding"] for item in openai.json()["data"]]
    np.testing.assert_allclose(rows, embedded.json(), atol=1e-5)
    np.testing.assert_allclose(reduced.json()["vectors"], embedded.json(), atol=1e-5)
    assert embedded.headers["x-space-id"] == openai.headers["x-space-id"] == reduced.headers["x-space-id"]


def test_space_ids_differ_by_chain_and_dimensions_only(client):
    def space(**body):
        return client.post("/embed", json={"inputs": "text"} | body).headers["x-space-id"]

    assert len({space(), space(dimensions=128), space(dimensions=64), space(chain="debias")}) == 4
    assert space(dimensions=128) == space(chain="compact") == space(chain="compact@1", prompt_name="query")
    assert space() == space(dimensions=384)


def test_starter_of_48_bytes_answers_floats_or_codes_and_has_no_size_route(client, sentences):
    body = {"inputs": sentences, "chain": "codes48"}
    floats, codes = (client.post("/embed", json=body | more).json() for more in ({}, {"output_dtype": "codes"}))
    assert np.shape(floats) == (len(sentences), 384) and np.shape(codes) == (len(sentences), 48)
    np.testing.assert_allclose(np.linalg.norm(floats, axis=1), 1, atol=1e-3)
    raw = client.post("/embed", json={"inputs": sentences}).json()
    assert (np.vecdot(raw, floats) > 0.8).all()
    assert client.post("/embed", json={"inputs": "x", "dimensions": 384}).headers["x-chain"] == "none"
    for size in (48, 128):
        assert client.post("/embed", json={"inputs": "x", "dimensions": size}).headers["x-chain"] == "compact@1"


def test_embed_with_normalize_false_keeps_the_chains_norm(client):
    vector = client.post("/embed", json={"inputs": "some text", "dimensions": 64, "normalize": False}).json()[0]
    unit = client.post("/embed", json={"inputs": "some text", "dimensions": 64}).json()[0]
    assert abs(np.linalg.norm(vector) - 1) > 1e-3
    np.testing.assert_allclose(vector / np.linalg.norm(vector), unit, atol=1e-5)


def test_a_valid_request_id_is_returned_and_another_is_replaced(client):
    def id_of(given):
        return client.post("/embed", json={"inputs": "x"}, headers={"x-request-id": given}).headers["x-request-id"]

    assert id_of("abc-1") == "abc-1"
    made = id_of("a b")
    assert made and made != "a b"
    assert client.post("/embed", json={"inputs": []}).headers["x-request-id"]


def test_embed_takes_model_and_chain_from_the_query_unless_the_body_has_them(client, sentences):
    answer = client.post("/embed?model=all-MiniLM-L6-v2&chain=debias", json={"inputs": sentences})
    assert answer.headers["x-chain"] == "debias@1"
    assert client.post("/embed?chain=debias", json={"inputs": "x", "chain": "none"}).headers["x-chain"] == "none"
    assert client.post("/embed?model=nobody", json={"inputs": "x"}).status_code == 404


def test_similarity_is_the_cosine_of_the_vectors_that_embed_answers(lathe):
    texts = ["What is a lathe?", "A lathe turns wood.", "It rains.", "What is a lathe?"]
    inputs = {"source_sentence": texts[0], "sentences": texts[1:]}
    for chain in ("none", "compact@1", "codes48@1"):
        vectors = np.array(lathe.client.post("/embed", json={"inputs": texts, "chain": chain}).json())
        body = {"inputs": inputs, "parameters": {"truncate": True}, "chain": chain}
        answer = lathe.client.post("/similarity", json=body)
        expected = vectors[1:] @ vectors[0] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1:], axis=1)
        assert np.abs(np.array(answer.json()) - expected).max() < 1e-6
        assert answer.headers["x-chain"] == chain
    for status, wrong in [
        (422, {"inputs": {"source_sentence": "a"}}),
        (422, {"inputs": "a"}),
        (400, {"inputs": {"source_sentence": "a", "sentences": []}}),
        (400, {"inputs": inputs, "parameters": {"prompt_name": "nothing"}}),
    ]:
        assert lathe.client.post("/similarity", json=wrong).status_code == status
