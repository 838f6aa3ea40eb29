"""lathe_client, and the classes for LangChain and LlamaIndex, against a server on a port."""

import asyncio
import re
import threading
from pathlib import Path

import numpy as np
import openai
import pytest
import uvicorn
from langchain_lathe import LatheEmbeddings
from lathe_client import AsyncClient, Client, Retries, SearchEmbedder, ServerError, SpaceMismatchError
from llama_index.embeddings.lathe import LatheEmbedding

from lathe import service
from lathe.transforms import Chain
from tests.helpers import eventually

pytestmark = pytest.mark.services

KEY = "use-key"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PROMPTS = {"query": "query: ", "document": "passage: "}
ENCODERS = [
    {"name": "plain", "model": MODEL},
    {"name": "prompted", "model": MODEL, "prompts": PROMPTS, "default_prompt_name": "document"},
]


@pytest.fixture(scope="module")
def app(start_app, tmp_path_factory):
    home = tmp_path_factory.mktemp("lathe_client")
    with start_app(home=home, api_keys=KEY, encoders=ENCODERS, max_texts=4, max_queued_texts=5) as app:
        yield app


@pytest.fixture(scope="module")
def url(app):
    """Serve the app on a port, and return its URL."""
    server = uvicorn.Server(uvicorn.Config(app.client.app, port=0, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def client(url):
    """Open a client whose requests hold as many texts as the server accepts, fewer than there are sentences."""
    with Client(url, KEY, batch_size=4) as client:
        yield client


@pytest.fixture(scope="module")
def admin(app, url):
    with Client(url, app.admin["authorization"].removeprefix("Bearer "), batch_size=4) as client:
        yield client


def load_chain(name):
    return Chain.load(Path(service.__file__).parent / f"chains/starter_chains/{name}/1")


def assert_same(vectors, expected, tolerance=1e-5):
    assert np.shape(vectors) == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=tolerance)


def test_embeddings_are_those_of_sentence_transformers_and_of_the_openai_route(client, url, sentences, plain):
    found = client.embed(sentences)
    assert_same(found.vectors, plain)
    assert found.vectors.dtype == np.float32
    asked = {"model": "plain+compact", "dimensions": 64}
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as other:
        answers = [other.embeddings.create(input=text, **asked) for text in sentences]
    reduced = client.embed(sentences, **asked)
    assert_same(reduced.vectors, np.float32([answer.data[0].embedding for answer in answers]), 1e-6)
    assert reduced.tokens == found.tokens == sum(answer.usage.total_tokens for answer in answers)
    assert (reduced.chain, found.chain) == ("compact@1", "none")


def test_reduction_gives_what_embedding_through_the_chain_gives_in_the_same_space(client, sentences, plain):
    embedded, reduced = client.embed(sentences, chain="compact"), client.reduce(plain, "compact")
    assert_same(reduced.vectors, load_chain("compact").transform(plain))
    assert_same(reduced.vectors, embedded.vectors)
    reduced.require_space(embedded)
    with pytest.raises(SpaceMismatchError, match=embedded.space_id):
        client.embed("x").require_space(embedded)


def test_codes_are_bytes_of_the_chain_and_queries_stay_floats(client, sentences, plain):
    codes = client.embed(sentences, chain="codes48", output_dtype="codes")
    assert (codes.vectors.dtype, codes.vectors.shape, codes.output_dtype) == (np.uint8, (len(sentences), 48), "codes")
    np.testing.assert_array_equal(codes.vectors, client.reduce(plain, "codes48", output_dtype="codes").vectors)
    query = client.embed(sentences[0], chain="codes48", prompt_name="query")
    assert (query.vectors.dtype, query.input_type) == (np.float32, "query")
    query.require_space(codes)
    assert client.embed(sentences, chain="codes48").vectors.dtype == np.float32


def test_an_index_is_created_filled_searched_and_deleted(client, admin, sentences, plain):
    assert admin.create_index("docs", chain="compact", text_field="text")["count"] == 0
    ids = [str(number) for number in range(len(sentences))]
    notes = [{"even": number % 2 == 0} for number in range(len(sentences))]
    assert client.upsert("docs", ids, sentences, metadata=notes) == len(ids)
    assert client.upsert("docs", ids[:2], vectors=client.embed(sentences[:2])) == 2
    found = client.search("docs", sentences, k=1, rescore=4)
    assert [[hit.id for hit in hits] for hits in found.hits] == [[name] for name in ids]
    assert found.hits[3][0].metadata == {"even": False, "text": sentences[3]}
    assert found.hits[3][0].score == pytest.approx(1, abs=1e-3)
    assert (found.chain, found.space_id) == ("compact@1", client.embed("x", chain="compact").space_id)
    by_vector = client.search("docs", vectors=plain[:1], k=6, filter={"even": False})
    assert {hit.id for hit in by_vector.hits[0]} == {"3", "5"}  # the others lost their metadata
    with pytest.raises(ServerError) as refused:
        client.upsert("docs", ["other"], vectors=client.embed("x", model="prompted"))
    assert (refused.value.status, refused.value.code) == (409, "space_mismatch")
    assert client.delete_items("docs", ["0", "1", "nobody"]) == 2
    assert [index["count"] for index in client.list_indexes()] == [4]
    with pytest.raises(ServerError, match="403 forbidden"):
        client.delete_index("docs")
    admin.delete_index("docs")
    assert client.list_indexes() == []


def test_encoders_and_chains_are_listed(client):
    assert [encoder["name"] for encoder in client.list_encoders()] == ["plain", "prompted"]
    assert {chain["name"] for chain in client.list_chains()} == {"codes48", "compact", "debias"}
    assert client.info()["max_client_batch_size"] == 4


def test_errors_carry_the_servers_status_code_and_text(client, url):
    for call, status, code in [
        (lambda: client.embed("x", model="nobody"), 404, "model_not_found"),
        (lambda: client.embed(""), 400, "invalid_value"),
        (lambda: client.embed("x", dimensions=200), 400, "invalid_value"),
        (lambda: client.search("nothing", "x"), 404, "not_found"),
        (lambda: greedy.embed(["x"] * 5), 413, "too_large"),
        (lambda: stranger.embed("x"), 401, "invalid_api_key"),
    ]:
        with Client(url, KEY) as greedy, Client(url, "nobody's") as stranger:
            with pytest.raises(ServerError) as raised:
                call()
        assert (raised.value.status, raised.value.code) == (status, code)
        assert raised.value.message and raised.value.request_id


def test_the_asynchronous_client_gets_the_same(url, client, sentences, plain):
    async def ask():
        async with AsyncClient(url, KEY, batch_size=4) as other:
            parts = await asyncio.gather(*[other.embed(sentences, chain=chain) for chain in (None, "compact")])
            return *parts, await other.reduce(plain, "compact"), await other.list_indexes()

    raw, embedded, reduced, indexes = asyncio.run(ask())
    assert_same(raw.vectors, plain)
    assert_same(embedded.vectors, client.embed(sentences, chain="compact").vectors)
    assert_same(reduced.vectors, embedded.vectors)
    assert indexes == []


def test_an_overloaded_server_is_asked_again_until_it_accepts(app, url):
    """Of 4 requests with 4 texts at once, the queue of 5 texts refuses some at first."""

    async def ask():
        async with AsyncClient(url, KEY, retries=Retries(tries=10)) as other:
            calls = [
                other.embed([f"text {number} of request {request}" for number in range(4)]) for request in range(4)
            ]
            return await asyncio.gather(*calls)

    assert [len(answer) for answer in asyncio.run(ask())] == [4] * 4
    metrics = app.client.get("/metrics").text
    assert re.search(r'^lathe_\w+\{[^}]*status="429"[^}]*\} [1-9]', metrics, re.MULTILINE)


def test_the_classes_of_langchain_and_llama_index_get_the_vectors_of_sentence_transformers(url, reference, sentences):
    settings = {"base_url": url, "api_key": KEY, "model": "prompted"}
    documents, queries = (reference.encode(sentences, prompt=PROMPTS[name]) for name in ("document", "query"))
    langchain = LatheEmbeddings(**settings, batch_size=4)
    llama_index = LatheEmbedding(**settings, embed_batch_size=4)
    assert_same(langchain.embed_documents(sentences), documents)
    assert_same(langchain.embed_query(sentences[0]), queries[0])
    assert_same(llama_index.get_text_embedding_batch(sentences), documents)
    assert_same(llama_index.get_query_embedding(sentences[0]), queries[0])
    assert langchain.space_id == llama_index.space_id is not None


def test_a_search_embedder_refuses_a_chain_that_was_changed_meanwhile(url):
    with SearchEmbedder(url, KEY, chain="compact") as embedder:
        embedder.embed_query("x")
        embedder.chain = "debias"
        with pytest.raises(SpaceMismatchError, match=embedder.space_id):
            embedder.embed_query("x")
