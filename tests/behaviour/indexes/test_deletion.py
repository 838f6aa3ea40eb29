import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lathe.service.errors import ConflictError, UnknownNameError
from lathe.service.index.embedded.indexes import EmbeddedIndexes
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.spec import IndexSpec

PATH = "/indexes/life"


@pytest.fixture(scope="module")
def app(start_app, tmp_path_factory):
    with start_app(home=tmp_path_factory.mktemp("home")) as app:
        yield app


def put(app):
    return app.client.put(PATH, json={"chain": "none", "width": 4}, headers=app.admin)


def upsert(app, item, direction):
    return app.client.post(f"{PATH}/upsert", json={"ids": [item], "vectors": [np.eye(4)[direction].tolist()]})


@pytest.mark.release
def test_an_index_recreated_under_traffic_keeps_acknowledged_items(app):
    """Meanwhile searches are answered 200 or 404."""
    statuses, done = set(), threading.Event()

    def keep_asking():
        while not done.is_set():
            found = app.client.post(f"{PATH}/search", json={"vectors": [[1, 0, 0, 0]], "filter": {"x": {"ne": 1}}})
            statuses.update({found.status_code, app.client.get(PATH).status_code})

    askers = [threading.Thread(target=keep_asking) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(12):
            assert put(app).status_code == 200
            assert upsert(app, "kept", 0).status_code == 200
            assert app.client.delete(PATH, headers=app.admin).status_code == 200
        assert put(app).status_code == 200
        assert upsert(app, "kept", 0).status_code == 200
    finally:
        done.set()
        for asker in askers:
            asker.join()
    record = IndexRecord(app.settings.home / "indexes" / "life" / "record.db", read_only=True)
    assert list(record.find_items(["kept"])) == ["kept"]
    record.close()
    assert statuses <= {200, 404}
    assert app.client.delete(PATH, headers=app.admin).status_code == 200


def test_an_index_deleted_during_a_read_of_its_files_raises_unknown_name_error(app):
    assert put(app).status_code == upsert(app, "kept", 0).status_code == 200
    index = app.services.indexes.get("life")
    with pytest.raises(UnknownNameError, match="the index life was deleted"), index.translate_closing_errors():
        there = index.record.path
        assert there.exists()
        app.services.indexes.delete("life")
        there.stat()


def test_of_two_concurrent_deletions_the_later_raises_unknown_name_error(app):
    indexes = app.services.indexes
    assert put(app).status_code == 200
    with ThreadPoolExecutor(2) as pool:
        with indexes.get_opening_lock("life"):  # which both have to wait for, once they know that the index is there
            deletions = [pool.submit(indexes.delete, "life") for _ in range(2)]
            time.sleep(0.2)
        errors = [deletion.exception() for deletion in deletions]
    assert [type(error) for error in errors if error is not None] == [UnknownNameError]
    assert put(app).status_code == 200  # the later one has let go of the lock
    assert app.client.delete(PATH, headers=app.admin).status_code == 200


def test_get_indexes_leaves_out_an_index_deleted_meanwhile(app):
    indexes = app.services.indexes
    assert put(app).status_code == 200
    indexes.create_folder("before", IndexSpec(None, None, 4, "raw", "none", 4, "raw"), None)  # not opened yet
    with ThreadPoolExecutor(1) as pool:
        with indexes.get_opening_lock("before"):  # which the list has to wait for, once it has the names
            asked = pool.submit(app.client.get, "/indexes")
            time.sleep(0.2)
            indexes.delete("life")
        assert [index["name"] for index in asked.result().json()] == ["before"]
    assert app.client.delete("/indexes/before", headers=app.admin).status_code == 200


def test_an_index_serves_after_its_chain_is_deleted_and_recreating_it_changes_nothing(app):
    fit = {"name": "mine", "steps": [{"kind": "truncation", "dimensions": 2}], "source": {"vectors": points()}}
    job = app.client.post("/fit-transform", json=fit, headers=app.admin).json()["job_id"]
    for line in app.client.get(f"/jobs/{job}/events").iter_lines():
        if '"succeeded"' in line:
            break
    body = {"chain": "mine", "metric": "cosine"}
    assert app.client.put(PATH, json=body, headers=app.admin).status_code == 200
    assert upsert(app, "a", 0).status_code == 200
    assert app.client.delete("/chains/mine/1?force=true", headers=app.admin).status_code == 200
    assert app.client.put(PATH, json=body, headers=app.admin).status_code == 200
    found = app.client.post(f"{PATH}/search", json={"vectors": [[1, 0, 0, 0]], "rescore": 2}).json()
    assert (found["chain"], found["results"][0][0]["id"]) == ("mine@1", "a")
    assert app.client.put(PATH, json={"chain": "mine@2"}, headers=app.admin).status_code == 409


def points():
    return np.random.default_rng(0).normal(size=(80, 4)).tolist()


def test_an_index_belongs_to_the_process_that_creates_it_before_others_can_find_it(tmp_path, monkeypatch):
    """A server beside it looks for new indexes at any time."""
    mine, theirs = (EmbeddedIndexes(tmp_path, 1, 1, lambda *_: None) for _ in range(2))
    create_folder = EmbeddedIndexes.create_folder
    refused = []

    def create_and_be_found(indexes, name, *arguments):
        create_folder(indexes, name, *arguments)
        with pytest.raises(ConflictError, match="is owned by"):
            theirs.get(name)
        refused.append(name)

    monkeypatch.setattr(EmbeddedIndexes, "create_folder", create_and_be_found)
    try:
        index = mine.create("new", IndexSpec(None, None, 4, "raw", "none", 4, "raw"), None)
        assert refused == ["new"] and mine.create("new", index.spec, None) is index
    finally:
        mine.close()
        theirs.close()
