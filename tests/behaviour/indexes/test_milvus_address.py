import logging
import signal
import sys

import pytest

from lathe.service.settings import read_settings

SECRET, TOKEN = "what-opens-milvus", "root:another-secret"
RAW = {"chain": "none", "width": 4}
ITEMS = {"ids": ["x", "y"], "vectors": [[1, 2, 3, 4], [4, 3, 2, 1]], "metadata": [{"a": 1}, None]}
QUERY = {"vectors": [[1, 2, 3, 4]], "filter": {"a": 1}}


def answers(app):
    for method, path, body in [("GET", "", None), ("PUT", "/any", RAW), ("POST", "/any/search", QUERY)]:
        yield app.client.request(method, f"/indexes{path}", json=body, headers=app.admin)


def test_responses_and_logs_never_contain_milvus_credentials(start_app, tmp_path, caplog, capfd):
    """Milvus is unreachable in this test."""
    caplog.set_level(logging.DEBUG)
    url = f"http://user:{SECRET}@127.0.0.1:9/database"
    with start_app(indexes_only=True, home=tmp_path, index_url=url, index_token=TOKEN) as app:
        told = [answer.text for answer in answers(app)]
        told += [app.client.get(path).text for path in ("/info", "/metrics", "/health", "/openapi.json")]
        told += [repr(app.settings), str(app.settings)]
    assert "127.0.0.1:9" in caplog.text and "cannot answer this request" in told[0]
    told += [caplog.text, *capfd.readouterr()]
    assert not any(secret in part for part in told for secret in (SECRET, "another-secret"))


def test_index_calls_without_pymilvus_are_answered_503_with_the_pip_command(start_app, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with start_app(indexes_only=True, home=tmp_path, index_url="http://127.0.0.1:9") as app:
        for answer in answers(app):
            assert answer.status_code == 503
            assert "pymilvus is not installed: pip install 'lathe-service[milvus]'" in answer.json()["error"]["message"]


def test_encoders_that_indexes_may_use_keep_running_while_milvus_is_away(start_app, tmp_path):
    with start_app(indexes_only=True, home=tmp_path, index_url="http://127.0.0.1:9") as app:
        app.services.trained_serving.update()
        assert app.services.trained_serving.list_index_encoders() is None  # not known, so none is stopped


@pytest.mark.release
def test_indexes_in_a_milvus_lite_file_survive_a_killed_server(serving, start_app, tmp_path):
    path = str(tmp_path / "folder" / "indexes.db")
    with serving(tmp_path / "one", LATHE_INDEX_URL=path) as server:
        assert server.client.put("/indexes/filed", json=RAW, headers=server.admin).status_code == 200
        assert server.client.post("/indexes/filed/upsert", json=ITEMS).json()["upserted"] == 2
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with start_app(indexes_only=True, home=tmp_path / "two", index_url=path) as app:
        found = app.client.post("/indexes/filed/search", json=QUERY).json()["results"]
        assert [[item["id"] for item in items] for items in found] == [["x"]]
        items = app.client.post("/indexes/filed/get", json={"ids": ["y"], "vectors": True}).json()["items"]
        assert items == [{"id": "y", "metadata": None, "vector": [4, 3, 2, 1]}]


@pytest.mark.parametrize("url", ["milvus:19530", f"tcp://user:{SECRET}@host:19530", "indexes.sqlite", "http://", ".db"])
def test_an_invalid_index_url_is_rejected_without_repeating_it(monkeypatch, url):
    monkeypatch.setenv("LATHE_INDEX_URL", url)
    with pytest.raises(ValueError, match="LATHE_INDEX_URL: .*it must be http://HOST:19530") as refusal:
        read_settings()
    assert SECRET not in str(refusal.value)
