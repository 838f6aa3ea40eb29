"""The vectors of `LatheEmbedding` against a running server.

`LATHE_TEST_URL` names the server, `LATHE_TEST_VECTORS` a file with texts and their vectors by sentence-transformers.
"""

import asyncio
import os
import pickle

import numpy as np
import pytest
from lathe_client import ServerError, SpaceMismatchError
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.embeddings.lathe import LatheEmbedding

URL = os.environ["LATHE_TEST_URL"]
EXPECTED = np.load(os.environ["LATHE_TEST_VECTORS"])
TEXTS = EXPECTED["texts"].tolist()


def assert_same(vectors, expected):
    """Assert equal shapes, and values within 1e-5."""
    assert np.shape(vectors) == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_the_class_is_an_embedding_of_llama_index():
    assert BaseEmbedding.__name__ in [base.__name__ for base in LatheEmbedding.__mro__]


def test_vectors_are_those_of_sentence_transformers_plain_and_through_a_chain():
    plain, compact = LatheEmbedding(base_url=URL), LatheEmbedding(base_url=URL, chain="compact", embed_batch_size=4)
    assert_same(plain.get_text_embedding_batch(TEXTS), EXPECTED["plain"])
    assert_same(plain.get_text_embedding(TEXTS[0]), EXPECTED["plain"][0])
    assert_same(asyncio.run(plain.aget_text_embedding(TEXTS[0])), EXPECTED["plain"][0])
    assert_same(compact.get_text_embedding_batch(TEXTS), EXPECTED["compact"])
    assert_same(asyncio.run(compact.aget_text_embedding_batch(TEXTS)), EXPECTED["compact"])
    assert plain.space_id and compact.space_id and plain.space_id != compact.space_id


def test_queries_and_texts_have_their_own_prompts():
    embedding = LatheEmbedding(base_url=URL, model="prompted")
    assert_same(embedding.get_text_embedding_batch(TEXTS), EXPECTED["document"])
    assert_same(embedding.get_query_embedding(TEXTS[0]), EXPECTED["query"][0])
    assert_same(asyncio.run(embedding.aget_query_embedding(TEXTS[1])), EXPECTED["query"][1])


def test_an_index_finds_each_text_by_itself():
    embedding = LatheEmbedding(base_url=URL, dimensions=64)
    index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=embedding)
    retriever = index.as_retriever(similarity_top_k=1)
    assert [retriever.retrieve(text)[0].text for text in TEXTS] == TEXTS


def test_vectors_of_another_space_than_the_stored_ones_are_refused():
    stored = LatheEmbedding(base_url=URL, chain="compact@1")
    stored.get_query_embedding("x")
    other = LatheEmbedding(base_url=URL, chain="debias", expected_space_id=stored.space_id)
    with pytest.raises(SpaceMismatchError, match=stored.space_id):
        other.get_query_embedding("x")


def test_settings_are_serialized_without_the_key_and_read_again():
    embedding = LatheEmbedding(base_url=URL, model="plain", chain="compact", api_key="a-key")
    assert embedding.model_name == "plain+compact"
    shown = [repr(embedding), embedding.to_json(), str(embedding.to_payload())]
    assert not [text for text in shown if "a-key" in text]
    again = LatheEmbedding.from_dict(embedding.to_dict())
    assert (again.chain, again.model_name) == ("compact", "plain+compact")
    assert_same(again.get_query_embedding(TEXTS[0]), EXPECTED["compact"][0])
    copied = pickle.loads(pickle.dumps(again))
    assert_same(copied.get_query_embedding(TEXTS[0]), EXPECTED["compact"][0])


def test_errors_have_the_servers_text():
    with pytest.raises(ServerError, match="nothing"):
        LatheEmbedding(base_url=URL, chain="nothing").get_query_embedding("x")
