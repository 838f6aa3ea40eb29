import asyncio
import errno
import gzip
import os
import sqlite3

import numpy as np
import pytest

from lathe.service.index.embedded.backup import back_up_index
from lathe.service.index.embedded.record import IndexRecord

MAX_BODY_BYTES = 40_000
"""Less than a backup has."""


@pytest.fixture(scope="module")
def app(start_app, tmp_path_factory):
    """Start an app whose bodies may be smaller than a backup, with an index of the six sentences."""
    home = tmp_path_factory.mktemp("home")
    with start_app(home=home, api_keys="use", admin_keys="boss", max_body_bytes=MAX_BODY_BYTES) as app:
        app.client.headers["authorization"] = "Bearer use"
        app.indexes = home / "indexes"
        yield app


@pytest.fixture(scope="module")
def path(app, sentences):
    """Return the path of an index of the six sentences."""
    assert app.client.put("/indexes/docs", json={"chain": "compact"}, headers=app.admin).status_code == 200
    body = {"ids": [f"s{n}" for n in range(6)], "texts": sentences, "metadata": [{"n": n} for n in range(6)]}
    assert app.client.post("/indexes/docs/upsert", json=body).status_code == 200
    return "/indexes/docs"


@pytest.fixture
def left(app):
    """Assert that a test leaves the folder of the indexes as it was, but for lock files."""

    def list_folders():
        return sorted(file.name for file in app.indexes.iterdir() if file.is_dir())

    before = list_folders()
    yield
    assert list_folders() == before


def fetch(app, path):
    """Return the backup of an index."""
    answer = app.client.get(f"{path}/backup", headers=app.admin)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{path.rpartition("/")[2]}.db"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    return answer.content


def restore(app, name, content, **headers):
    """Send a backup as the index of a name."""
    return app.client.put(f"/indexes/{name}/backup", content=content, headers=app.admin | headers)


def search(app, name, text):
    """Return the items that a search finds."""
    answer = app.client.post(f"/indexes/{name}/search", json={"texts": [text], "k": 6})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def refused(answer, status):
    """Assert the status of an error, and return its message."""
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]


def test_a_backup_is_restored_as_another_index_that_finds_the_same(app, path, sentences):
    content = fetch(app, path)
    assert len(content) > MAX_BODY_BYTES and content.startswith(b"SQLite format 3")
    app.client.post(f"{path}/upsert", json={"ids": ["later"], "texts": ["written after the backup"]})
    answer = restore(app, "again", content)
    assert answer.status_code == 200 and answer.json() == {"restored": "again", "count": 6}
    assert (
        len(search(app, "docs", sentences[0])[0]) == 6
        and search(app, "docs", "after the backup")[0][0]["id"] == "later"
    )
    app.client.post(f"{path}/delete", json={"ids": ["later"]})
    for text in sentences:
        (found,), (expected,) = search(app, "again", text), search(app, "docs", text)
        assert [item["id"] for item in found] == [item["id"] for item in expected]
        assert [item["metadata"] for item in found] == [item["metadata"] for item in expected]
        # A row that is not in the graph yet is compared by another product, which rounds differently.
        np.testing.assert_allclose([i["score"] for i in found], [i["score"] for i in expected], atol=1e-6)
    app.client.post("/indexes/again/upsert", json={"ids": ["s0"], "texts": ["a restored index can be written"]})
    assert app.client.get("/indexes/again").json()["count"] == 6


def test_a_backup_may_be_compressed_or_the_record_of_a_folder_that_the_command_wrote(app, path, tmp_path):
    back_up_index(app.indexes / "docs", tmp_path / "copy")
    answer = restore(app, "from-folder", (tmp_path / "copy" / "record.db").read_bytes())
    assert answer.json() == {"restored": "from-folder", "count": 6}
    answer = restore(app, "small", gzip.compress(fetch(app, path)), **{"content-encoding": "gzip"})
    assert answer.json() == {"restored": "small", "count": 6}
    assert "brotli" in refused(restore(app, "other", b"", **{"content-encoding": "brotli"}), 415)


@pytest.mark.parametrize("spoil", ["empty", "half", "an item less"])
def test_a_body_that_is_no_backup_is_refused_and_leaves_nothing(app, path, left, tmp_path, spoil):
    file = tmp_path / "file.db"
    file.write_bytes(fetch(app, path))
    match spoil:
        case "empty":
            os.truncate(file, 0)
        case "half":
            os.truncate(file, file.stat().st_size // 2)
        case "an item less":
            with sqlite3.connect(file) as db:
                db.execute("DELETE FROM items WHERE label = 1")
    message = refused(restore(app, "spoilt", file.read_bytes()), 400)
    assert "the body is no backup that can be restored: " in message and str(app.indexes) not in message
    assert "spoilt" not in [index["name"] for index in app.client.get("/indexes").json()]


def test_names_are_checked_before_the_body_is_read(app, path, left):
    assert "exists: restore under another name" in refused(restore(app, "docs", b"no backup"), 409)
    assert "name" in refused(restore(app, "not%20a%20name", b"no backup"), 400)
    assert "there is no index" in refused(app.client.get("/indexes/nowhere/backup", headers=app.admin), 404)


def test_an_index_that_is_created_while_its_backup_is_checked_is_kept(app, path, monkeypatch, left):
    content = fetch(app, path)
    counted = IndexRecord.count_items

    def create_meanwhile(self):
        if "raced" in str(self.path) and not (app.indexes / "raced").exists():
            app.client.put("/indexes/raced", json={"chain": "none"}, headers=app.admin)
        return counted(self)

    monkeypatch.setattr(IndexRecord, "count_items", create_meanwhile)
    assert "exists" in refused(restore(app, "raced", content), 409)
    assert app.client.get("/indexes/raced").json()["count"] == 0
    app.client.delete("/indexes/raced", headers=app.admin)


def test_backups_take_an_admin_key(app, path, left):
    assert app.client.get(f"{path}/backup").status_code == 403
    assert app.client.put("/indexes/mine/backup", content=b"x").status_code == 403


def test_a_full_disk_is_answered_503_and_leaves_nothing(app, path, left, monkeypatch):
    content = fetch(app, path)

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lathe.service.index.embedded.backup.os.fsync", fail)
    for answer in (restore(app, "full", content), app.client.get(f"{path}/backup", headers=app.admin)):
        assert "the disk is full" in refused(answer, 503)


def test_a_client_that_disconnects_leaves_nothing(app, path, left):
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "PUT", "scheme": "http",
        "path": "/indexes/half/backup", "raw_path": b"/indexes/half/backup", "root_path": "", "query_string": b"",
        "headers": [(b"authorization", app.admin["authorization"].encode()), (b"content-length", b"9000000")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    messages = [
        {"type": "http.request", "body": bytes(3_000_000), "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent, seen = [], []

    async def receive():
        seen.append(len(list(app.indexes.glob(".half.*"))))
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app.client.app(scope, receive, send))
    assert sent[0]["status"] == 499 and seen == [1, 1]


def test_indexes_in_milvus_are_backed_up_by_its_own_tool(start_app, tmp_path, milvus):
    with start_app(indexes_only=True, home=tmp_path / "home", index_url=milvus.url) as app:
        made = app.client.put("/indexes/backed-up", json={"chain": "none", "width": 4}, headers=app.admin)
        assert made.status_code == 200, made.text
        for answer in (app.client.get("/indexes/backed-up/backup", headers=app.admin), restore(app, "more", b"x")):
            assert "milvus-backup" in refused(answer, 501)
        app.client.delete("/indexes/backed-up", headers=app.admin)
