"""LangChain's standard tests, and the vectors of `LatheEmbeddings` against a running server.

`LATHE_TEST_URL` names the server, `LATHE_TEST_VECTORS` a file with texts and their vectors by sentence-transformers.
"""

import os
import pickle

import numpy as np
import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_lathe import LatheEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests
from lathe_client import ServerError, SpaceMismatchError

URL = os.environ["LATHE_TEST_URL"]
EXPECTED = np.load(os.environ["LATHE_TEST_VECTORS"])
TEXTS = EXPECTED["texts"].tolist()


def assert_same(vectors, expected):
    """Assert equal shapes, and values within 1e-5."""
    assert np.shape(vectors) == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


class TestStandardUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self):
        return LatheEmbeddings

    @property
    def embedding_model_params(self):
        return {"base_url": URL, "chain": "compact"}

    @property
    def init_from_env_params(self):
        return {"LATHE_API_KEY": "from-the-environment"}, {}, {"api_key": "from-the-environment"}


class TestStandardIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return LatheEmbeddings

    @property
    def embedding_model_params(self):
        return {"base_url": URL, "chain": "compact"}


async def test_vectors_are_those_of_sentence_transformers_plain_and_through_a_chain():
    plain, compact = LatheEmbeddings(base_url=URL), LatheEmbeddings(base_url=URL, chain="compact", batch_size=4)
    assert_same(plain.embed_documents(TEXTS), EXPECTED["plain"])
    assert_same(await plain.aembed_documents(TEXTS), EXPECTED["plain"])
    assert_same(compact.embed_documents(TEXTS), EXPECTED["compact"])
    assert_same(await compact.aembed_query(TEXTS[0]), EXPECTED["compact"][0])
    assert plain.space_id and compact.space_id and plain.space_id != compact.space_id


async def test_queries_and_documents_have_their_own_prompts():
    embeddings = LatheEmbeddings(base_url=URL, model="prompted")
    assert_same(embeddings.embed_documents(TEXTS), EXPECTED["document"])
    assert_same([embeddings.embed_query(text) for text in TEXTS], EXPECTED["query"])
    assert_same([await embeddings.aembed_query(text) for text in TEXTS], EXPECTED["query"])
    named = LatheEmbeddings(base_url=URL, model="prompted", query_prompt_name="document", document_prompt_name="query")
    assert_same(named.embed_documents(TEXTS), EXPECTED["query"])
    assert_same(named.embed_query(TEXTS[0]), EXPECTED["document"][0])


def test_a_vector_store_finds_each_text_by_itself():
    store = InMemoryVectorStore(LatheEmbeddings(base_url=URL, dimensions=64))
    store.add_texts(TEXTS)
    assert [store.similarity_search(text, k=1)[0].page_content for text in TEXTS] == TEXTS


def test_vectors_of_another_space_than_the_stored_ones_are_refused():
    stored = LatheEmbeddings(base_url=URL, chain="compact@1")
    stored.embed_query("x")
    other = LatheEmbeddings(base_url=URL, chain="debias", expected_space_id=stored.space_id)
    with pytest.raises(SpaceMismatchError, match=stored.space_id):
        other.embed_query("x")


def test_errors_have_the_servers_text_and_the_key_is_shown_nowhere():
    with pytest.raises(ServerError, match="nothing"):
        LatheEmbeddings(base_url=URL, chain="nothing").embed_query("x")
    assert "a-key" not in repr(LatheEmbeddings(base_url=URL, api_key="a-key"))
    with pytest.raises(ValueError, match="the address is") as refused:
        LatheEmbeddings(base_url="localhost", api_key="a-key")
    assert "a-key" not in str(refused.value)


def test_a_pickled_copy_embeds():
    embeddings = LatheEmbeddings(base_url=URL, dimensions=64)
    copied = pickle.loads(pickle.dumps(embeddings))
    assert copied.embed_query("x") == embeddings.embed_query("x")
