from concurrent.futures import ThreadPoolExecutor

import pytest
from pymilvus import MilvusClient

from lathe.service.index.milvus.collections import build_alias
from lathe.service.index.milvus.indexes import MilvusIndexes

pytestmark = pytest.mark.release

RAW = {"chain": "none", "width": 4}
SPITEFUL = ["it's", "back\\slash", 'a"b', "\\", '\\"', "%", "日本"]
SPITEFUL += ["x'] or id != '' or id in ['", 'x"] or id != "" or id in ["']


@pytest.fixture(scope="module")
def one(milvus, start_app, tmp_path_factory):
    """Start a server on the shared Milvus."""
    with start_app(indexes_only=True, home=tmp_path_factory.mktemp("one"), index_url=milvus.url) as app:
        yield app


@pytest.fixture(scope="module")
def other(milvus, start_app, tmp_path_factory):
    """Start a second server on the shared Milvus."""
    with start_app(indexes_only=True, home=tmp_path_factory.mktemp("other"), index_url=milvus.url) as app:
        yield app


@pytest.fixture(scope="module")
def client(milvus):
    client = MilvusClient(milvus.url)
    yield client
    client.close()


def put(app, name, **body):
    """Create an index and return the answer."""
    return app.client.put(f"/indexes/{name}", json=RAW | body, headers=app.admin)


def delete(app, name):
    assert app.client.delete(f"/indexes/{name}", headers=app.admin).status_code == 200


def ok(app, path, **body):
    """Post a body, assert that it is answered 200, and return the JSON."""
    answer = app.client.post(f"/indexes/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_ids_with_quotes_and_operators_are_not_evaluated_as_expressions(one):
    put(one, "spiteful")
    ids = [*SPITEFUL, "kept"]
    ok(one, "spiteful/upsert", ids=ids, vectors=[[1, 2, 3, 4]] * len(ids))
    items = ok(one, "spiteful/get", ids=[*SPITEFUL, "none' or id != '"])["items"]
    assert [item and item["id"] for item in items] == [*SPITEFUL, None]
    for item in SPITEFUL:
        assert ok(one, "spiteful/delete", ids=[item])["deleted"] == 1
        assert ok(one, "spiteful/delete", ids=[item, "a\nb"])["deleted"] == 0
    assert [item["id"] for item in ok(one, "spiteful/search", vectors=[[1, 2, 3, 4]])["results"][0]] == ["kept"]
    delete(one, "spiteful")


def test_servers_that_create_an_index_at_once_share_one_collection(one, other, client):
    for number in range(4):
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda app: put(app, "raced"), [one, other] * 2))  # noqa: B023
        assert {answer.status_code for answer in made} == {200}
        assert len({answer.json()["collection"] for answer in made}) == 1, number
        ok(one, "raced/upsert", ids=["x"], vectors=[[1, 2, 3, 4]])
        assert ok(other, "raced/get", ids=["x"])["items"][0]["id"] == "x"
        delete(other, "raced")
        assert not [name for name in client.list_collections() if name.startswith(build_alias("raced"))]


def test_an_index_deleted_by_another_server_can_be_recreated_with_other_settings(one, other):
    for metric in ("cosine", "l2"):
        assert put(one, "again", metric=metric).json()["metric"] == metric
        ok(one, "again/upsert", ids=[metric], vectors=[[1, 2, 3, 4]])
        delete(other, "again")


def test_an_index_whose_deletion_was_interrupted_is_recreated_in_a_new_collection(one, milvus, client):
    put(one, "halfway")
    entry = one.services.indexes.catalogue.find("halfway")
    one.services.indexes.catalogue.remove("halfway", entry)
    one.services.indexes.names()
    following = MilvusIndexes(milvus.url, "", claim_seconds=0.3)
    try:
        following.create("halfway", entry.spec, None)
    finally:
        following.close()
    assert put(one, "halfway").status_code == 200
    assert client.describe_alias(build_alias("halfway"))["collection_name"] != entry.collection
    delete(one, "halfway")
