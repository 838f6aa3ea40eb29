"""Client libraries as their users run them, against a real `lathe serve`, and requests made from the schema.

The vectors of the libraries are compared with those of sentence-transformers.
"""

import asyncio
import base64
import json
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub
import numpy as np
import openai
import pytest
import schemathesis
from huggingface_hub.errors import BadRequestError, HfHubHTTPError
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lathe import service
from lathe.transforms import Chain

pytestmark = pytest.mark.services

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

KEY = "use-key"
PLAIN = "all-MiniLM-L6-v2"
PROMPTS = {"query": "query: ", "passage": "passage: "}
MODEL = f"sentence-transformers/{PLAIN}"
# TEI's clients name no model: they get the first encoder, with the prompt "passage" unless they name another.
ENCODERS = [
    {"name": "prompted", "model": MODEL, "prompts": PROMPTS, "default_prompt_name": "passage"},
    {"name": PLAIN, "model": MODEL},
]
LONG = "begin " + "filler " * 400 + "end"


@pytest.fixture(scope="module")
def server(serving, tmp_path_factory):
    home = tmp_path_factory.mktemp("clients") / "home"
    variables = {"LATHE_API_KEYS": KEY, "LATHE_ENCODERS": json.dumps(ENCODERS), "LATHE_MAX_TEXTS": "64"}
    with serving(home, HF_HUB_OFFLINE="1", **variables) as server:
        yield server


@pytest.fixture(scope="module")
def url(server):
    return server.url


@pytest.fixture(scope="module")
def compact(plain):
    return Chain.load(Path(service.__file__).parent / "chains/starter_chains/compact/1").transform(plain)


@pytest.fixture(scope="module")
def speaker(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def inference(url):
    with huggingface_hub.InferenceClient(model=url, token=KEY) as client:
        yield client


def assert_same(vectors, expected):
    assert np.shape(vectors) == expected.shape  # which would be broadcast else
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def cut(vectors, size):
    return vectors[:, :size] / np.linalg.norm(vectors[:, :size], axis=1, keepdims=True)


def rows_of(answer):
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return [item.embedding for item in answer.data]


# openai-python: asks for base64 unless told otherwise, and decodes only what it asked for by itself


def test_openai_client_gets_the_models_vectors_as_base64_by_default_and_as_floats(speaker, sentences, plain):
    assert_same(rows_of(speaker.embeddings.create(input=sentences, model=PLAIN)), plain)
    assert_same(rows_of(speaker.embeddings.create(input=sentences, model=PLAIN, encoding_format="float")), plain)
    assert_same(rows_of(speaker.embeddings.create(input=sentences[0], model=PLAIN, user="someone")), plain[:1])
    rows = rows_of(speaker.embeddings.create(input=sentences, model=PLAIN, encoding_format="base64"))
    assert_same([np.frombuffer(base64.b64decode(row), "<f4") for row in rows], plain)


def test_openai_client_selects_chain_and_size_by_model_plus_chain_or_by_dimensions(speaker, sentences, compact):
    answer = speaker.embeddings.create(input=sentences, model=f"{PLAIN}+compact")
    assert_same(rows_of(answer), compact)
    assert answer.model == f"{PLAIN}+compact"
    assert_same(rows_of(speaker.embeddings.create(input=sentences, model=PLAIN, dimensions=48)), cut(compact, 48))
    assert_same(rows_of(speaker.embeddings.create(input=sentences, model=f"{PLAIN}+compact:64")), cut(compact, 64))
    assert_same(rows_of(speaker.embeddings.create(input=sentences, model=f"{PLAIN}:128")), compact)
    listed = [model.id for model in speaker.models.list()]
    assert listed[:2] == ["prompted", PLAIN] and {f"{PLAIN}+compact", f"{PLAIN}+compact:64"} <= set(listed[2:])
    assert speaker.models.retrieve(f"{PLAIN}+compact:64").id == f"{PLAIN}+compact:64"
    with pytest.raises(openai.BadRequestError, match="leave one of them out"):
        speaker.embeddings.create(input="x", model=f"{PLAIN}:64", dimensions=128)


def test_openai_client_gets_the_models_own_token_count(speaker, reference, sentences):
    texts = [*sentences, "counted for the first time, unlike those before"]
    counted = sum(len(ids) for ids in reference.tokenizer(texts)["input_ids"])
    for _ in range(2):  # the second time from the cache
        usage = speaker.embeddings.create(input=texts, model=PLAIN).usage
        assert (usage.prompt_tokens, usage.total_tokens) == (counted, counted)


def test_openai_client_raises_its_own_exceptions_for_error_responses(speaker, url):
    with pytest.raises(openai.NotFoundError, match="prompted, all-MiniLM-L6-v2") as unknown:
        speaker.embeddings.create(input="x", model="nobody")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert unknown.value.request_id
    with pytest.raises(openai.NotFoundError, match="nothing"):
        speaker.embeddings.create(input="x", model=f"{PLAIN}+nothing")
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        speaker.embeddings.create(input="x", model=PLAIN, dimensions=200)
    stranger = speaker.with_options(api_key="nobody's")
    for call in (stranger.models.list, lambda: stranger.embeddings.create(input="x", model=PLAIN)):
        with pytest.raises(openai.AuthenticationError) as refused:
            call()
        assert refused.value.code == "invalid_api_key"


def test_openai_client_gets_a_hint_when_token_ids_are_refused(speaker):
    for ids in ([101, 2023, 102], [[101, 2023, 102], [101, 102]]):
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
            speaker.embeddings.create(input=ids, model=PLAIN)


# langchain-openai


@pytest.fixture
def langchain(url):
    """Return a function that builds LangChain's OpenAI embeddings with settings."""
    from langchain_openai import OpenAIEmbeddings

    def embeddings(**settings):
        return OpenAIEmbeddings(model=PLAIN, base_url=f"{url}/v1", api_key=KEY, max_retries=0, **settings)

    return embeddings


def test_langchain_openai_gets_the_models_vectors_and_dimensions(langchain, sentences, plain, compact):
    embeddings = langchain(check_embedding_ctx_length=False)
    assert_same(embeddings.embed_documents(sentences), plain)
    assert_same(embeddings.embed_query(sentences[0]), plain[0])
    short = langchain(check_embedding_ctx_length=False, dimensions=64, chunk_size=4)  # two requests
    assert_same(short.embed_documents(sentences), cut(compact, 64))
    assert_same(short.embed_query(sentences[0]), cut(compact, 64)[0])


def test_langchain_openai_gets_a_hint_which_setting_sends_texts(langchain, sentences, monkeypatch):
    """By default it sends tiktoken's ids. Their vocabulary comes with llama-index-core, else it would be fetched."""
    vocabulary = Path(find_spec("llama_index.core").submodule_search_locations[0]) / "_static/tiktoken_cache"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(vocabulary))
    with pytest.raises(openai.BadRequestError, match="OpenAIEmbeddings set check_embedding_ctx_length=False"):
        langchain().embed_documents(sentences)


# llama-index


def test_llama_index_gets_the_default_encoders_vectors(url, reference, sentences):
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(model_name="prompted", base_url=url, auth_token=KEY, embed_batch_size=4)
    expected = reference.encode(sentences, prompt=PROMPTS["passage"])
    assert_same(client.get_text_embedding(sentences[0]), expected[0])
    assert_same(client.get_text_embedding_batch(sentences), expected)
    assert_same(asyncio.run(client.aget_text_embedding_batch(sentences)), expected)
    assert_same(client.get_query_embedding(sentences[1]), expected[1])
    # Before 0.4.2 its asynchronous calls sent the token without the word Bearer; test_access does so.
    client = TextEmbeddingsInference(model_name="", base_url=url, auth_token=lambda _: KEY, query_instruction="find:")
    expected = reference.encode(f"find: {sentences[1]}", prompt=PROMPTS["passage"])
    assert_same(client.get_query_embedding(sentences[1]), expected)


# huggingface_hub; langchain-huggingface hands its texts to feature_extraction too, but does not take this version of it


def test_inference_client_gets_the_default_encoders_vectors_at_each_path(url, reference, sentences):
    expected = reference.encode(sentences, prompt=PROMPTS["passage"])
    for path in ("", "/", "/embed"):
        client = huggingface_hub.InferenceClient(base_url=url + path, api_key=KEY)
        assert_same(client.feature_extraction(sentences), expected)
        assert_same(client.feature_extraction(sentences[0]), expected[:1])


def test_inference_client_raises_its_own_exceptions_for_error_responses(inference, url):
    with pytest.raises(HfHubHTTPError, match="256 that prompted reads; shorten it") as too_long:
        inference.feature_extraction(LONG, truncate=False)
    assert too_long.value.response.status_code == 413
    with pytest.raises(BadRequestError, match="there are: document, passage, query"):
        inference.feature_extraction("x", prompt_name="nothing")
    with huggingface_hub.InferenceClient(model=url, token="nobody's") as stranger:
        with pytest.raises(HfHubHTTPError) as refused:
            stranger.feature_extraction("x")
    assert refused.value.response.status_code == 401


# the schema: the last, for its requests delete


def test_generated_requests_are_answered_as_the_openapi_schema_says_and_never_with_5xx(server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    answered = []
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=6, deadline=None, database=None, derandomize=True, suppress_health_check=HealthCheck)
        def attempt(case):
            answered.append(case.call_and_validate(checks=CHECKS, headers=server.admin, timeout=30).status_code)

        attempt()
    assert len(operations) > 30
    assert {200, 404} <= set(answered)
