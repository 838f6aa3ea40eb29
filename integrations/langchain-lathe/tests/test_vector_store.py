"""`LatheVectorStore` in an index of a running server, before and after the index is calibrated."""

import os
import time

import httpx2
import pytest
from langchain_core.documents import Document
from langchain_lathe import LatheVectorStore
from lathe_client import Client

URL, KEY = os.environ["LATHE_TEST_URL"], os.environ["LATHE_TEST_ADMIN_KEY"]
ANIMALS, VERBS = ("dog", "cat", "horse", "cow", "bird", "fish", "snake", "mouse"), ("eats", "sleeps", "runs", "hides")
TEXTS = [f"The {animal} {verb} {place}." for animal in ANIMALS for verb in VERBS for place in ("at home", "outside")]


@pytest.fixture
def store():
    with Client(URL, KEY) as client:
        ids = [str(number) for number in range(len(TEXTS))]
        metadatas = [{"place": text.split()[-1]} for text in TEXTS]
        options = {"index": "langchain", "client": client, "encoder": "plain"}
        yield LatheVectorStore.from_texts(TEXTS, metadatas=metadatas, ids=ids, **options)
        client.delete_index("langchain")


def calibrate():
    headers = {"authorization": f"Bearer {KEY}"}
    job = httpx2.post(f"{URL}/indexes/langchain/calibrate", json={}, headers=headers).json()["status_url"]
    while (state := httpx2.get(f"{URL}{job}", headers=headers).json()["state"]) in ("queued", "running"):
        time.sleep(0.1)
    assert state == "succeeded"


def test_texts_are_found_with_their_metadata_replaced_and_deleted(store):
    [(document, score)] = store.similarity_search_with_score(TEXTS[5], k=1)
    assert document == Document(page_content=TEXTS[5], metadata={"place": "outside."}, id="5")
    assert score == pytest.approx(1, abs=1e-5)
    [document] = store.similarity_search(TEXTS[5], k=1, filter={"place": "home."})
    assert document.metadata == {"place": "home."}

    [added] = store.add_texts(["Rates were left unchanged."])
    [found] = store.similarity_search("interest rates", k=1)
    assert (found.page_content, found.metadata, found.id) == ("Rates were left unchanged.", {}, added)
    store.add_documents([Document(page_content="A lathe turns wood.", id=added)])
    assert store.similarity_search("woodworking", k=1)[0].id == added
    assert store.delete([added]) and store.similarity_search("woodworking", k=1)[0].id != added
    store.delete(filter={"place": "home."})
    assert {found.metadata["place"] for found in store.similarity_search("x", k=64)} == {"outside."}
    with pytest.raises(ValueError, match="filter"):
        store.delete()


async def test_relevance_scores_are_probabilities_and_their_threshold_is_a_minimum(store):
    with pytest.raises(ValueError, match="lathe index calibrate langchain"):
        store.similarity_search_with_relevance_scores("a dog")
    calibrate()
    query = "Where does the dog sleep?"
    found = store.similarity_search_with_relevance_scores(query, k=10)
    hits = store.client.search("langchain", query, k=10).hits[0]
    assert [(document.id, score) for document, score in found] == [
        (hit.id, pytest.approx(hit.probability)) for hit in hits
    ]
    assert [score for _, score in await store.asimilarity_search_with_relevance_scores(query, k=10)] == [
        pytest.approx(score) for _, score in found
    ]

    least = sorted(score for _, score in found)[5]
    expected = [document for document, score in found if score >= least]
    assert 0 < len(expected) < 10
    search = {"k": 10, "score_threshold": least - 1e-6}
    retriever = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=search)
    assert retriever.invoke(query) == expected
    assert store.similarity_search(query, k=10, min_probability=least - 1e-6) == expected
