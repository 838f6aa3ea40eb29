import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from pymilvus import MilvusClient

pytestmark = pytest.mark.release

SECRET, TOKEN = "what-opens-milvus", "root:another-secret"
RAW = {"chain": "none", "width": 4}
QUERY = {"vectors": [[1, 2, 3, 4]], "k": 10}
MAX_SECONDS = 5.0


@pytest.fixture(scope="module")
def own_milvus(start_milvus):
    """Start a Milvus that the tests of this file may stop and start again."""
    return start_milvus()


@pytest.fixture(scope="module")
def one(own_milvus, start_app, tmp_path_factory):
    """Start an app while its Milvus is stopped, then start Milvus."""
    own_milvus.stop()
    url = own_milvus.url.replace("//", f"//user:{SECRET}@")
    with start_app(home=tmp_path_factory.mktemp("one"), index_url=url, index_token=TOKEN) as app:
        app.asked_early = app.client.get("/indexes")
        own_milvus.start()
        listed(app)
        yield app


@pytest.fixture(scope="module")
def other(one, own_milvus, start_app, tmp_path_factory):
    with start_app(indexes_only=True, home=tmp_path_factory.mktemp("other"), index_url=own_milvus.url) as app:
        yield app


def listed(app, seconds=30):
    """Return the names of an app's indexes, once it can list them."""
    deadline = time.monotonic() + seconds
    while (answer := app.client.get("/indexes")).status_code != 200:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)
    return [index["name"] for index in answer.json()]


def put(app, name, **body):
    answer = app.client.put(f"/indexes/{name}", json=body, headers=app.admin)
    assert answer.status_code == 200, answer.text
    return answer.json()


def delete(app, name):
    assert app.client.delete(f"/indexes/{name}", headers=app.admin).status_code == 200


def ok(app, path, **body):
    answer = app.client.post(f"/indexes/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def upsert(app, name, ids, vectors=None, **more):
    vectors = [[1, 2, 3, 4]] * len(ids) if vectors is None else vectors
    return ok(app, f"{name}/upsert", ids=ids, vectors=vectors, **more)


def found(app, name, **query):
    return {item["id"] for item in ok(app, f"{name}/search", **(QUERY | query))["results"][0]}


def refused(answer, status, *words):
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    assert all(word in message for word in words), message
    return message


def every_call(app, name):
    """Yield the answer to each call on indexes, and the seconds it took."""
    item = {"ids": ["x"]}
    calls = [("GET", "", None), ("GET", f"/{name}", None), ("PUT", "/new", RAW), ("DELETE", f"/{name}", None)]
    calls += [("POST", f"/{name}/{call}", item) for call in ("get", "delete")]
    calls += [("POST", f"/{name}/search", QUERY), ("POST", f"/{name}/upsert", item | {"vectors": [[1, 2, 3, 4]]})]
    for method, path, body in calls:
        begun = time.monotonic()
        answer = app.client.request(method, f"/indexes{path}", json=body, headers=app.admin)
        yield answer, time.monotonic() - begun


def test_a_server_starts_without_its_milvus_and_uses_it_once_it_is_reachable(one, own_milvus):
    refused(one.asked_early, 503, f"the Milvus at 127.0.0.1:{own_milvus.port} cannot answer this request")
    assert int(one.asked_early.headers["retry-after"]) >= 1
    put(one, "late", **RAW)
    upsert(one, "late", ["x"])
    assert found(one, "late") == {"x"}
    delete(one, "late")


def test_two_servers_share_indexes_items_and_deletions_in_milvus(one, other):
    assert put(one, "shared", **RAW)["collection"] == put(other, "shared", **RAW)["collection"]
    upsert(one, "shared", ["a", "b"], metadata=[{"of": "one"}, None])
    assert found(other, "shared") == {"a", "b"} and found(other, "shared", filter={"of": "one"}) == {"a"}
    upsert(other, "shared", ["b", "c"])
    assert ok(one, "shared/delete", ids=["a"])["deleted"] == 1
    for app in (one, other):
        assert found(app, "shared") == {"b", "c"}
        assert app.client.get("/indexes/shared").json()["count"] == 2
        assert "shared" in listed(app)
    delete(other, "shared")
    for _ in range(2):
        refused(one.client.post("/indexes/shared/search", json=QUERY), 404, "shared")
    assert "shared" not in listed(one)


def test_search_on_another_server_finds_all_items_while_they_are_replaced(one, other):
    ids = [str(number) for number in range(30)]
    put(one, "replaced", **RAW)
    upsert(one, "replaced", ids)
    with ThreadPoolExecutor(1) as pool:
        writes = pool.submit(lambda: [upsert(one, "replaced", ids) for _ in range(40)])
        searches = []
        while not writes.done():
            searches.append(found(other, "replaced", k=100))
        writes.result()
    assert len(searches) > 5 and all(search == set(ids) for search in searches)
    delete(one, "replaced")


def test_names_that_differ_in_punctuation_only_are_different_indexes(one):
    names = ["a.b", "a-b", "a_b"]
    collections = {put(one, name, **RAW)["collection"] for name in names}
    assert len(collections) == len(names)
    for name in names:
        upsert(one, name, [f"only in {name}"])
    delete(one, "a_b")
    assert set(names) & set(listed(one)) == set(names) - {"a_b"}
    for name in set(names) - {"a_b"}:
        assert found(one, name) == {f"only in {name}"}
        delete(one, name)


def test_search_in_milvus_has_recall_of_099_and_uses_the_graph_settings(one, own_milvus):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 64))[random.integers(40, size=2000)] + 0.4 * random.normal(size=(2000, 64))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    shown = put(one, "many", chain="none", width=64, m=24, ef_construction=120)
    for start in range(0, 2000, 500):
        upsert(one, "many", [str(n) for n in range(start, start + 500)], vectors[start : start + 500].tolist())
    best = np.argsort(-vectors[:50] @ vectors.T, axis=1)[:, :10].tolist()
    results = ok(one, "many/search", vectors=vectors[:50].tolist(), k=10, rescore=4)["results"]
    shared = [len({int(item["id"]) for item in items} & set(row)) for items, row in zip(results, best, strict=True)]
    assert sum(shared) / 500 >= 0.99
    with closing(MilvusClient(own_milvus.url)) as client:
        in_milvus = client.describe_index(shown["collection"], "vector")
    assert (in_milvus["index_type"], in_milvus["metric_type"], in_milvus["total_rows"]) == ("HNSW", "IP", 2000)
    assert in_milvus["params"] == {"M": 24, "efConstruction": 120}
    assert (shown["m"], shown["ef_construction"]) == (24, 120)
    delete(one, "many")


def test_milvus_indexes_refuse_reindexing_other_originals_and_large_metadata(one):
    put(one, "limits", **RAW)
    reindexed = one.client.post("/indexes/limits/reindex", json={"chain": "compact"}, headers=one.admin)
    refused(reindexed, 501, "lathe index export limits")
    half = one.client.put("/indexes/half", json=RAW | {"originals": "float16"}, headers=one.admin)
    refused(half, 501, "float32")
    codes = one.client.put("/indexes/half", json={"chain": "codes48", "originals": "none"}, headers=one.admin)
    refused(codes, 501, "only embedded indexes store float16 or none")
    body = {"ids": ["x", "y"], "vectors": [[1, 2, 3, 4]] * 2, "metadata": [None, {"text": "é" * 32_768}]}
    refused(one.client.post("/indexes/limits/upsert", json=body), 413, "metadata[1]", "65,536 bytes")
    assert found(one, "limits") == set() and "half" not in listed(one)
    upsert(one, "limits", ["x"], metadata=[{"text": "é" * 32_700}])
    delete(one, "limits")


def test_acknowledged_writes_survive_a_killed_milvus(one, own_milvus, caplog, capfd):
    """Calls meanwhile are answered 503 within 5 s and show no credentials. Later the server works again."""
    caplog.set_level(logging.DEBUG)
    put(one, "kept", **RAW)
    acknowledged, writing = [], threading.Event()

    def write():
        for number in range(100_000):
            body = {"ids": [str(number)], "vectors": [[1, 2, 3, number]], "metadata": [{"n": number}]}
            answer = one.client.post("/indexes/kept/upsert", json=body)
            if answer.status_code != 200:
                return answer
            acknowledged.append(str(number))
            if number == 50:
                writing.set()

    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(write)
        assert writing.wait(30)
        own_milvus.stop()
        answers = [last.result(30)]
    try:
        for answer, seconds in every_call(one, "kept"):
            assert seconds < MAX_SECONDS
            answers.append(answer)
        assert one.client.post("/embed", json={"inputs": "goes on"}).status_code == 200
    finally:
        own_milvus.start()
    for answer in answers:
        refused(answer, 503, f"the Milvus at 127.0.0.1:{own_milvus.port} cannot answer this request")
    assert "kept" in listed(one)
    items = ok(one, "kept/get", ids=acknowledged)["items"]
    assert [item and item["metadata"] for item in items] == [{"n": int(item)} for item in acknowledged]
    assert found(one, "kept", filter={"n": {"lt": 3}}, rescore=2) == {"0", "1", "2"}
    told = [*capfd.readouterr(), caplog.text, *(answer.text for answer in answers)]
    assert not any(secret in part for part in told for secret in (SECRET, "another-secret"))
    delete(one, "kept")
