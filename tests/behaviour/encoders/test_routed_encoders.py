"""Models whose queries and documents go through different modules: the side of a text chooses its route."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from lathe.training.deciding.encoder_training import find_training_obstacle
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import load_model
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.spec import EncoderSpec, StoreSettings, VectorStores
from lathe.training.encoder.text_encoder import encode_queries, with_document_prompt
from lathe.training.errors import EncoderError, ExportError
from lathe.training.evaluation.encoders import _describe_member
from lathe.training.export.onnx_graph import export_onnx
from lathe.training.export.sentence_transformers_folder import export_sentence_transformers
from lathe.transforms import PCA, Chain

TEXTS = ["a lathe turns wood", "x", "long words " * 300, *(f"text number {number} of a few" for number in range(40))]
SIDES = ("query", "document")


@pytest.fixture(scope="session", params=SIDES)
def routed_model(request, tiny_model, tmp_path_factory):
    """Save a model that reads documents by a transformer and queries by a table of token vectors."""
    torch.manual_seed(0)
    documents = SentenceTransformer(str(tiny_model), device="cpu")
    tokenizer = documents.tokenizer.backend_tokenizer
    tokenizer.no_padding()
    tokenizer.no_truncation()
    queries = [StaticEmbedding(tokenizer, embedding_dim=8), Dense(8, documents.get_embedding_dimension())]
    router = Router.for_query_document(queries, list(documents), default_route=request.param)
    folder = tmp_path_factory.mktemp("models") / f"routed-{request.param}"
    SentenceTransformer(modules=[router, Normalize()], device="cpu").save(str(folder), create_model_card=False)
    return folder


@pytest.fixture
def expected(routed_model):
    """Return the vectors of `TEXTS` by sentence-transformers, by side, and without one."""
    model = SentenceTransformer(str(routed_model), device="cpu")
    return {"query": model.encode_query(TEXTS), "document": model.encode_document(TEXTS), None: model.encode(TEXTS)}


@pytest.fixture
def encoder(routed_model):
    return Encoder(EncoderSpec("routed", str(routed_model)), "cpu")


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_each_side_has_the_vectors_of_its_route_and_both_are_one_space(encoder, expected):
    assert np.abs(expected["query"] - expected["document"]).max() > 0.1
    for side, vectors in expected.items():
        close(encoder.encode(TEXTS, side).vectors, vectors)
    close(encode_queries(encoder, TEXTS), expected["query"])
    documents = with_document_prompt(encoder)
    close(documents.encode(TEXTS).vectors, expected["document"])
    queries = encoder.with_default_prompt("query")
    close(queries.encode(TEXTS).vectors, expected["query"])
    assert queries.fingerprint == documents.fingerprint and queries.vectors_key != documents.vectors_key


def test_stored_vectors_of_one_side_are_not_taken_for_the_other(routed_model, expected, tmp_path):
    stores = VectorStores(StoreSettings(tmp_path / "upstream"), StoreSettings(tmp_path / "encoded"))
    encoder = open_encoder(EncoderSpec("routed", str(routed_model)), "cpu", stores)
    for _ in range(2):
        for side, vectors in expected.items():
            close(encoder.encode(TEXTS, side).vectors, vectors)
    keys = _describe_member(encoder, "routed", None).prompts
    assert keys["query"] != keys["document"]


def test_a_server_takes_the_route_of_the_side_in_one_batch_from_the_cache_and_in_an_index(
    serve_encoder, routed_model, expected
):
    with serve_encoder("routed", model=str(routed_model)) as app:
        client, default = app.client, routed_model.name.removeprefix("routed-")
        info = next(item for item in client.get("/encoders").json() if item["name"] == "routed")
        assert info["routed"] and info["default_prompt_name"] == default
        for fields, side in [
            ({}, None),
            ({"input_type": "query"}, "query"),
            ({"input_type": "document"}, "document"),
            ({"prompt_name": "query"}, "query"),
            ({"prompt_name": "document"}, "document"),
        ] * 2:
            answer = client.post("/embed", json={"inputs": TEXTS, "model": "routed", **fields})
            close(answer.json(), expected[side])
            assert answer.headers["x-input-type"] == (side or default)
            answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "routed", **fields})
            close([row["embedding"] for row in answer.json()["data"]], expected[side])
        contradiction = {"inputs": "x", "model": "routed", "prompt_name": "query", "input_type": "document"}
        assert client.post("/embed", json=contradiction).status_code == 400

        assert (
            client.put("/indexes/routed", json={"encoder": "routed", "chain": "none"}, headers=app.admin).status_code
            == 200
        )
        ids = [str(number) for number in range(len(TEXTS))]
        items = {"ids": ids, "texts": TEXTS}
        assert client.post("/indexes/routed/upsert", json=items, headers=app.admin).status_code == 200
        hits = client.post("/indexes/routed/search", json={"texts": TEXTS[:3], "k": 1}).json()["results"]
        scores = expected["query"][:3] @ expected["document"].T
        assert [row[0]["id"] for row in hits] == [str(best) for best in scores.argmax(axis=1)]
        assert client.delete("/indexes/routed", headers=app.admin).status_code in (200, 204)


def test_an_export_keeps_both_routes_and_a_graph_of_one_is_refused(encoder, expected, tmp_path):
    chain = Chain([PCA(8)]).fit(np.concatenate([expected["query"], expected["document"]]))
    export_sentence_transformers(chain, encoder, tmp_path / "model", "small@1")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    close(model.encode_query(TEXTS), chain.transform(expected["query"]))
    close(model.encode_document(TEXTS), chain.transform(expected["document"]))
    with pytest.raises(ExportError, match="routed encodes queries and documents by different modules"):
        export_onnx(chain, encoder, tmp_path / "graph", "small@1")


def test_a_routed_encoder_is_not_trained_as_if_it_were_one(encoder):
    assert "encodes queries and documents by different modules" in find_training_obstacle(encoder)
    with pytest.raises(EncoderError, match="train the two before they are joined"):
        load_model(encoder.spec, "cpu")


def test_a_router_before_which_a_module_is_shared_and_one_without_routes_of_the_sides(tiny_model, tmp_path):
    base = SentenceTransformer(str(tiny_model), device="cpu")
    torch.manual_seed(0)
    heads = {name: [Dense(base.get_embedding_dimension(), 6)] for name in ("a", "b")}
    mapped = Router(heads, default_route="b", route_mappings={("query", None): "b", ("document", None): "a"})
    SentenceTransformer(modules=[*base, mapped], device="cpu").save(str(tmp_path / "late"), create_model_card=False)
    model = SentenceTransformer(str(tmp_path / "late"), device="cpu")
    encoder = Encoder(EncoderSpec("late", str(tmp_path / "late")), "cpu")
    close(encoder.encode(TEXTS, "query", normalize=False).vectors, model.encode_query(TEXTS))
    close(encoder.encode(TEXTS, "document", normalize=False).vectors, model.encode_document(TEXTS))
    assert encoder.default_prompt_name == "query"

    unknown = SentenceTransformer(modules=[*base, Router(heads)], device="cpu")
    unknown.save(str(tmp_path / "unknown"), create_model_card=False)
    with pytest.raises(EncoderError, match="unknown has no route for queries or documents: .*task='a' and task='b'"):
        Encoder(EncoderSpec("unknown", str(tmp_path / "unknown")), "cpu")
