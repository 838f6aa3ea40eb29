"""Offline, rows of a source are documents: fits and advice encode them with the prompt of documents."""

from itertools import islice

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.prompts import find_missing_prompts
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import NO_PROMPT, encode_queries, with_document_prompt
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.training.sources.readers import read_docstring_paragraphs
from lathe.transforms.progress import no_progress

PROMPTS = {"query": "query: ", "passage": "passage: ", "title": "title: "}


@pytest.fixture(scope="module")
def prompted(tiny_model):
    return Encoder(EncoderSpec("tiny", str(tiny_model), prompts=PROMPTS))


@pytest.fixture(scope="module")
def texts():
    return list(dict.fromkeys(" ".join(text.split()) for text in islice(read_docstring_paragraphs(), 80)))


@pytest.mark.parametrize(("prompt_name", "text"), [(None, "passage: "), ("title", "title: "), ("query", "query: ")])
def test_a_fit_encodes_rows_with_the_prompt_of_documents_or_the_one_it_is_told(
    prompted, texts, tmp_path, prompt_name, text
):
    (tmp_path / "rows.txt").write_text("\n".join(texts))
    request = NewFit(name="any", steps=[{"kind": "r2"}], source=str(tmp_path / "rows.txt"), prompt_name=prompt_name)
    with fit_new_chain(request, prompted, tmp_path / "work", no_progress) as fitted:
        found = np.array(fitted.encoded.vectors)
    expected = prompted.encode([text + row for row in texts], NO_PROMPT).vectors
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_another_default_prompt_shares_the_model_and_keeps_its_vectors_apart(prompted, texts):
    documents = with_document_prompt(prompted)
    assert documents.model is prompted.model and documents.fingerprint == prompted.fingerprint
    assert documents.vectors_key != prompted.vectors_key != with_document_prompt(prompted, "query").vectors_key
    np.testing.assert_array_equal(documents.encode(texts[:2]).vectors, prompted.encode(texts[:2], "passage").vectors)
    np.testing.assert_array_equal(encode_queries(documents, texts[:2]), prompted.encode(texts[:2], "query").vectors)
    assert prompted.default_prompt_name is None


def test_an_encoder_without_prompts_of_its_own_keeps_its_vectors_and_their_key(encoder, texts):
    documents = with_document_prompt(encoder)
    assert documents.vectors_key == encoder.vectors_key
    np.testing.assert_array_equal(documents.encode(texts[:2]).vectors, encoder.encode(texts[:2]).vectors)


@pytest.mark.parametrize(
    ("model", "prompts", "missing"),
    [
        ("intfloat/multilingual-e5-small", {}, {"query": "query: ", "passage": "passage: "}),
        ("/models/e5-base-v2/", {"query": "", "document": ""}, {"query": "query: ", "passage": "passage: "}),
        ("intfloat/multilingual-e5-small", {"query": "query: "}, {}),
        ("nomic-ai/nomic-embed-text-v1.5", {}, {"query": "search_query: ", "document": "search_document: "}),
        ("BAAI/bge-m3", {}, {}),
    ],
)
def test_models_that_need_prompts_are_known_by_name(model, prompts, missing):
    assert find_missing_prompts(model, prompts) == missing


@pytest.mark.parametrize("model", ["intfloat/e5-mistral-7b-instruct", "Qwen/Qwen3-Embedding-0.6B"])
def test_instructed_models_need_a_prompt_of_queries_alone(model):
    assert find_missing_prompts(model, {}).keys() == {"query"}


@pytest.mark.parametrize("default", ["query", "passage"])
def test_a_default_prompt_of_one_side_does_not_stand_before_texts_of_the_other(tiny_model, texts, default):
    prompts = {default: "of one side: "}
    encoder = Encoder(EncoderSpec("tiny", str(tiny_model), prompts=prompts, default_prompt_name=default))
    found = {
        "passage": with_document_prompt(encoder).encode(texts[:2]).vectors,
        "query": encode_queries(encoder, texts[:2]),
    }
    plain = encoder.encode(texts[:2], NO_PROMPT).vectors
    assert {side for side, vectors in found.items() if not np.array_equal(vectors, plain)} == {default}
