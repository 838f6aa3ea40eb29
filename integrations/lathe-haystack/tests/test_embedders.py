"""Haystack's embedders against a running server.

`LATHE_TEST_URL` names the server, `LATHE_TEST_VECTORS` a file with texts and their vectors by sentence-transformers.
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from haystack_integrations.components.embedders.lathe import LatheDocumentEmbedder, LatheTextEmbedder
from lathe_client import ServerError, SpaceMismatchError

URL = os.environ["LATHE_TEST_URL"]
EXPECTED = np.load(os.environ["LATHE_TEST_VECTORS"])
TEXTS = EXPECTED["texts"].tolist()
DOCUMENTS = [Document(content=text) for text in TEXTS]


def assert_same(vectors, expected):
    """Assert equal shapes, and values within 1e-5."""
    assert np.shape(vectors) == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def rows_of(result):
    """Return the embeddings of a result's documents."""
    return [document.embedding for document in result["documents"]]


def test_vectors_are_those_of_sentence_transformers_plain_and_through_a_chain():
    plain = LatheDocumentEmbedder(base_url=URL).run(DOCUMENTS)
    assert_same(rows_of(plain), EXPECTED["plain"])
    embedder = LatheDocumentEmbedder(base_url=URL, chain="compact", batch_size=4)
    compact = embedder.run(DOCUMENTS)
    assert_same(rows_of(compact), EXPECTED["compact"])
    assert_same(rows_of(asyncio.run(embedder.run_async(DOCUMENTS))), EXPECTED["compact"])
    query = LatheTextEmbedder(base_url=URL, chain="compact")
    assert_same(query.run(TEXTS[0])["embedding"], EXPECTED["compact"][0])
    assert_same(asyncio.run(query.run_async(TEXTS[0]))["embedding"], EXPECTED["compact"][0])
    assert compact["meta"] == query.run("x")["meta"] != plain["meta"]
    assert all(document.embedding is None for document in DOCUMENTS)


def test_texts_and_documents_have_their_own_prompts():
    assert_same(rows_of(LatheDocumentEmbedder(base_url=URL, model="prompted").run(DOCUMENTS)), EXPECTED["document"])
    assert_same(LatheTextEmbedder(base_url=URL, model="prompted").run(TEXTS[0])["embedding"], EXPECTED["query"][0])


def test_metadata_is_embedded_before_the_content():
    embedder = LatheDocumentEmbedder(base_url=URL, meta_fields_to_embed=["title", "none"], embedding_separator=" ")
    first, _, rest = TEXTS[0].partition(" ")
    documents = [Document(content=rest, meta={"title": first, "none": None})]
    assert_same(rows_of(embedder.run(documents)), EXPECTED["plain"][:1])


@pytest.fixture
def store():
    return InMemoryDocumentStore()


def test_pipelines_find_each_text_by_itself_also_after_they_were_written_and_read(store):
    indexing = Pipeline()
    indexing.add_component("embedder", LatheDocumentEmbedder(base_url=URL, dimensions=64))
    indexing.add_component("writer", DocumentWriter(document_store=store))
    indexing.connect("embedder.documents", "writer.documents")
    indexing.run({"embedder": {"documents": DOCUMENTS}})
    querying = Pipeline()
    querying.add_component("embedder", LatheTextEmbedder(base_url=URL, dimensions=64))
    querying = Pipeline.loads(querying.dumps())
    querying.add_component("retriever", InMemoryEmbeddingRetriever(document_store=store, top_k=1))
    querying.connect("embedder.embedding", "retriever.query_embedding")
    found = [querying.run({"embedder": {"text": text}})["retriever"]["documents"][0].content for text in TEXTS]
    assert found == TEXTS


@pytest.mark.parametrize("kind", [LatheTextEmbedder, LatheDocumentEmbedder])
def test_components_are_serialized_with_the_name_of_the_keys_variable(kind):
    component = kind(base_url=URL, chain="compact", dimensions=64, expected_space_id="s", timeout=5.0, max_retries=1)
    data = component.to_dict()
    module = {LatheTextEmbedder: "text_embedder", LatheDocumentEmbedder: "document_embedder"}[kind]
    assert data["type"] == f"haystack_integrations.components.embedders.lathe.{module}.{kind.__name__}"
    assert data["init_parameters"]["api_key"] == {"type": "env_var", "env_vars": ["LATHE_API_KEY"], "strict": False}
    assert kind.from_dict(data).to_dict() == data
    with pytest.raises(ValueError, match="token"):
        kind(api_key=Secret.from_token("a-key")).to_dict()


def test_vectors_of_another_space_than_the_stored_ones_are_refused():
    space_id = LatheTextEmbedder(base_url=URL, chain="compact@1").run("x")["meta"]["space_id"]
    with pytest.raises(SpaceMismatchError, match=space_id):
        LatheTextEmbedder(base_url=URL, chain="debias", expected_space_id=space_id).run("x")


def test_wrong_inputs_and_the_servers_errors_are_raised():
    with pytest.raises(TypeError, match="LatheDocumentEmbedder"):
        LatheTextEmbedder(base_url=URL).run(DOCUMENTS)
    for wrong in ("text", ["text"]):
        with pytest.raises(TypeError, match="LatheTextEmbedder"):
            LatheDocumentEmbedder(base_url=URL).run(wrong)
    assert LatheDocumentEmbedder(base_url=URL).run([])["documents"] == []
    with pytest.raises(ServerError, match="nothing"):
        LatheTextEmbedder(base_url=URL, chain="nothing").run("x")


def test_example_of_the_readme_runs():
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("http://localhost:8080", URL), names)
    assert len(names["documents"][0].embedding) == len(names["query"]["embedding"]) == 64
