"""Chains that map queries otherwise than documents, over HTTP: reduced vectors, texts and searches of an index."""

import numpy as np
import pytest
import torch

from lathe.transforms import PCA, Chain, QueryAdapter, TransformCoding

D = 384


@pytest.fixture(scope="module")
def documents():
    rows = np.random.default_rng(0).normal(size=(500, D)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def queries(documents):
    mixing = np.eye(D) + 1.5 * np.random.default_rng(1).normal(size=(D, D)) / np.sqrt(D)
    rows = (documents[:300] @ mixing).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def chains(app, documents, queries):
    """Publish chains with an adapter alone, before a reduction, and before codes."""
    weight = torch.from_numpy(np.linalg.lstsq(queries, documents[:300])[0].T).float() + torch.eye(D)
    adapter = QueryAdapter().restore({"weight": weight, "query_count": torch.tensor([300])})
    made = {
        "adapted": Chain([adapter]),
        "adapted-small": Chain([adapter, PCA(64, center="none").fit(documents)]),
        "adapted-codes": Chain([adapter, TransformCoding(48).fit(documents)]),
    }
    fingerprint = app.services.embedder.default.info.fingerprint
    for name, chain in made.items():
        chain.metadata = {"encoder": {"fingerprint": fingerprint}}
        app.services.registry.publish(chain, name, True)
    return made


def reduce(app, rows, chain, **more):
    answer = app.client.post("/reduce", json={"vectors": rows.tolist(), "chain": chain} | more)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("name", ["adapted", "adapted-codes"])
def test_reduce_maps_queries_and_documents_each_by_its_own_map_into_one_space(app, chains, documents, queries, name):
    asked = reduce(app, queries[:9], name, input_type="query")
    stored = reduce(app, documents[:9], name)
    assert asked.headers["x-space-id"] == stored.headers["x-space-id"]
    np.testing.assert_allclose(asked.json()["vectors"], chains[name].transform_queries(queries[:9]), atol=1e-5)
    np.testing.assert_allclose(stored.json()["vectors"], chains[name].floats(documents[:9]), atol=1e-5)


def test_an_index_of_a_chain_without_an_encoder_takes_vectors_and_refuses_an_encoder(app, documents):
    app.services.registry.publish(Chain([PCA(64, center="none").fit(documents)]), "of-vectors", True)
    body = {"chain": "of-vectors", "encoder": "all-MiniLM-L6-v2"}
    refused = app.client.put("/indexes/texts", json=body, headers=app.admin)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "space_mismatch")
    space = reduce(app, documents[:2], "of-vectors").headers["x-space-id"]
    created = app.client.put("/indexes/rows", json={"chain": "of-vectors"}, headers=app.admin)
    assert created.json()["space_id"] == space


@pytest.mark.parametrize("name", ["adapted-small", "adapted-codes"])
def test_searches_of_an_index_score_mapped_queries_against_stored_documents(app, chains, documents, queries, name):
    path = f"/indexes/of-{name}"
    body = {"chain": name, "width": D, "metric": "cosine"}
    assert app.client.put(path, json=body, headers=app.admin).status_code == 200
    ids = [str(number) for number in range(len(documents))]
    stored = {"ids": ids, "vectors": documents.tolist()}
    assert app.client.post(f"{path}/upsert", json=stored, headers=app.admin).status_code == 200
    expected = chains[name].transform_queries(queries) @ chains[name].floats(documents).T

    def found(**more):
        asked = {"vectors": queries[:20].tolist(), "k": 5} | more
        return app.client.post(f"{path}/search", json=asked).json()["results"]

    for row, hits in enumerate(found()):
        for hit in hits:
            assert hit["score"] == pytest.approx(expected[row, int(hit["id"])], abs=2e-3)
        assert hits[0]["score"] == pytest.approx(expected[row].max(), abs=2e-3)
    # Rescoring compares originals with what an adapter at the beginning of the chain makes of the query.
    asked = chains["adapted"].transform_queries(queries)
    exact = asked @ documents.T
    for row, hits in enumerate(found(rescore=20)):
        for hit in hits:
            assert hit["score"] == pytest.approx(exact[row, int(hit["id"])], abs=2e-3)
