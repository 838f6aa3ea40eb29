"""Whatever an embeddings API answers, it fails its own request alone, in bounded time and memory, and shows no key."""

import json
import logging
import sqlite3
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from lathe.service.encoders.engine.upstream_worker import UpstreamWorker
from lathe.training.encoder.upstream.calls import MAX_ASKED_PAUSE
from lathe.training.encoder.upstream.encoder import UpstreamEncoder
from lathe.training.endpoint import MAX_RETRY_SECONDS, parse_retry_after
from tests.embeddings_server import PROBE, WIDTH, rows_of
from tests.helpers import eventually

KEY = "sk-0123456789"


def answer(rows, status=200, headers=None, **fields):
    """Return an answer of OpenAI's protocol as the stub's script takes it."""
    data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
    return status, headers or {}, json.dumps({"data": data, "model": "m"} | fields).encode()


def answer_with(**fields):
    """Return a script that answers right vectors with other fields, except of calls for probe texts."""

    def script(server, number, body):
        return None if PROBE in body["input"] else answer(rows_of(body["input"]).tolist(), **fields)

    return script


def refuse_with(status, headers):
    """Return a script that refuses all calls but those for probe texts."""
    return lambda server, number, body: None if PROBE in body["input"] else (status, headers, b"{}")


@pytest.fixture
def start_far(start_app, embeddings_server, tmp_path, monkeypatch):
    """Return a context manager with an app whose only encoder, `far`, is behind the stub."""
    monkeypatch.setenv("FAR_KEY", KEY)
    monkeypatch.setattr("lathe.service.encoders.engine.upstream_worker.PATIENCE_SECONDS", 0.0)

    @contextmanager
    def start(name="home", **upstream):
        fields = {"url": f"{embeddings_server.url}/v1", "protocol": "openai", "model": "m", "timeout": 5}
        encoder = {"name": "far", "upstream": fields | {"api_key_env": "FAR_KEY"} | upstream}
        with start_app(home=tmp_path / name, cache_bytes=0, encoders=[encoder]) as app:
            yield app

    return start


def find_connection(app):
    """Return the connection of the app's encoder to its API."""
    return app.services.embedder.default.start_worker.__self__


def embed(app, text):
    """Send a text to `/embed`, and return the response."""
    return app.client.post("/embed", json={"inputs": text})


def read_health(app):
    """Return the body of `/health`."""
    return app.client.get("/health").json()


HOSTILE = {
    "tokens of 64 bits": answer_with(usage={"prompt_tokens": 2**64 - 1}),
    "tokens beyond 64 bits": answer_with(usage={"prompt_tokens": 10**30}),
    "a year of twenty digits": refuse_with(429, {"retry-after": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}),
    "a pause without end": refuse_with(429, {"retry-after": "inf"}),
    "a pause of 1e300 s": refuse_with(503, {"retry-after": "1e300"}),
    "no number as a pause": refuse_with(429, {"retry-after": "nan"}),
    "a pause before now": refuse_with(429, {"retry-after": "-1e300"}),
    "an index that is false": lambda *_: (200, {}, b'{"data": [{"index": false, "embedding": [1]}]}'),
    "an index in quotes": lambda *_: (200, {}, b'{"data": [{"index": "0", "embedding": [1]}]}'),
    "a zero vector": lambda *_: answer([[0.0] * WIDTH]),
    "deep lists": lambda *_: (200, {}, b"[" * 100_000),
    "a number of 10,000 digits": lambda *_: (200, {}, b'{"data": [{"embedding": [' + b"9" * 10_000 + b"]}]}"),
    "millions of lists": lambda *_: (200, {}, b'{"data": [' + b"[]," * 300_000 + b"[]]}"),
    "more bytes than vectors need": lambda *_: (200, {}, b" " * 3_000_000),
    "a bomb": lambda *_: (200, {"content-encoding": "gzip"}, b"\x1f\x8b"),
    "an error that is a list": lambda *_: (500, {}, b'[{"error": {"message": {"a": [1]}}}]'),
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_fails_its_own_request_alone(start_far, embeddings_server, script):
    with start_far() as app:
        embeddings_server.script = script
        response = embed(app, "a text")
        assert response.status_code in (200, 422, 429, 502, 503), response.text
        assert int(response.headers.get("retry-after", 0)) <= MAX_ASKED_PAUSE
        embeddings_server.script = None
        find_connection(app).encoder.calls.limiter.held = 0.0
        assert embed(app, "another text").status_code == 200
        assert read_health(app)["encoders"]["far"] == "ready"


def test_tokens_that_the_texts_cannot_have_are_estimated_and_delay_no_request(start_far, embeddings_server):
    with start_far(tokens_per_minute=1_000_000) as app:
        embeddings_server.script = answer_with(usage={"prompt_tokens": 2**62})
        for text in ("one", "two", "three"):
            response = embed(app, text)
            assert response.status_code == 200
            assert find_connection(app).encoder.usage["tokens"] < 100


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("-1", 0), ("inf", MAX_RETRY_SECONDS), ("1e300", MAX_RETRY_SECONDS), ("nan", None), ("soon", None)],
)
def test_a_pause_is_bounded(header, seconds):
    assert parse_retry_after(header) == seconds


def test_an_exception_that_nothing_expects_is_logged_once_shown_in_health_and_closes_nothing(
    start_far, embeddings_server, monkeypatch, caplog
):
    with start_far() as app, monkeypatch.context() as patched:
        patched.setattr(UpstreamEncoder, "_accept", lambda *_: {}[KEY])
        with caplog.at_level(logging.ERROR):
            for text in ("one", "two"):
                response = embed(app, text)
                assert response.status_code in (502, 503) and "KeyError" in response.text
        assert [record.levelname for record in caplog.records].count("ERROR") == 1
        assert any("KeyError" in warning for warning in read_health(app)["warnings"])
        patched.undo()
        assert embed(app, "one").status_code == 200
        assert read_health(app)["warnings"] == []


def test_an_exception_of_a_worker_leaves_the_connection_to_the_others(start_far, embeddings_server, monkeypatch):
    with start_far() as app, monkeypatch.context() as patched:
        connection = find_connection(app)
        eventually(lambda: len(app.services.embedder.default.ready_dispatchers) == 8)
        encoder = connection.encoder
        patched.setattr(UpstreamEncoder, "encode_each", lambda *_: {}[0])
        assert "encoder_failed" in app.client.post("/v1/embeddings", json={"input": "a"}).text
        patched.undo()
        patched.setattr(UpstreamWorker, "receive", lambda *_: {}[0])  # ends this worker, which is replaced
        assert embed(app, "b").status_code == 503
        patched.undo()
        assert connection.encoder is encoder
        assert embed(app, "c").status_code == 200


def test_an_api_that_changes_its_dimensions_when_probed_is_answered_409(start_far, embeddings_server):
    with start_far(probe_seconds=0.001) as app:
        assert embed(app, "one").status_code == 200
        embeddings_server.change = lambda texts, rows: [row[:3] for row in rows]
        response = app.client.post("/v1/embeddings", json={"input": "two"})
        assert response.status_code == 409 and "3 dimensions, not 8" in response.text


@pytest.mark.parametrize("place", ["model", "header", "error", "index", "content-type"])
def test_no_key_that_an_api_repeats_is_shown(start_far, embeddings_server, caplog, place):
    said = f"Bearer {KEY} " + "x" * 1000

    def script(server, number, body):
        if PROBE in body["input"]:
            return None
        if place == "error":
            return 400, {}, json.dumps({"error": said}).encode()
        if place == "index":
            return 200, {}, json.dumps({"data": [{"index": said, "embedding": [1]}]}).encode()
        if place == "content-type":
            return 200, {"content-type": said}, b"<html>"
        stated = {"model": said} if place == "model" else {"headers": {"x-space-id": said}}
        return answer(rows_of(body["input"]).tolist(), **stated)

    with start_far() as app, caplog.at_level(logging.DEBUG, "lathe"):
        embeddings_server.headers_sent = {"x-space-id": "space"} if place == "header" else {}
        embeddings_server.script = script
        response = app.client.post("/v1/embeddings", json={"input": "a text"})
        shown = response.text + app.client.get("/health").text + app.client.get("/encoders").text + caplog.text
        assert response.status_code in (200, 400, 409, 422, 502, 503)
        assert KEY not in shown
        assert "x" * 300 not in shown


def test_tenants_behind_one_host_do_not_share_vectors(start_far, embeddings_server):
    def answer_by_path(server, number, body):
        rows = rows_of(body["input"], salt=server.paths[-1])
        return answer(rows.tolist())

    embeddings_server.script = answer_by_path
    found = {}
    for tenant in ("a", "b"):
        with start_far(url=f"{embeddings_server.url}/{tenant}/v1") as app:
            response = embed(app, "a text")
            found[tenant] = (app.services.embedder.default.info.fingerprint, np.array(response.json()))
    assert found["a"][0] != found["b"][0]
    assert not np.allclose(found["a"][1], found["b"][1])


def test_one_provider_of_two_addresses_is_believed_only_if_the_probes_agree(start_far, embeddings_server):
    with start_far(url=f"{embeddings_server.url}/a/v1", provider="us") as app:
        first = app.services.embedder.default.info.fingerprint
    with start_far(url=f"{embeddings_server.url}/b/v1", provider="us") as app:
        assert app.services.embedder.default.info.fingerprint == first
    embeddings_server.salt = "another model"
    with start_far(url=f"{embeddings_server.url}/c/v1", provider="us") as app:
        assert "give the encoder far another provider" in embed(app, "a text").text


def test_a_long_answer_takes_memory_by_what_was_asked(start_far, embeddings_server):
    with start_far() as app:
        embeddings_server.script = lambda *_: (200, {}, (b'{"data":[' + b"[]," * 100_000 for _ in range(500)))
        tracemalloc.start()
        try:
            responses = [embed(app, f"text {number}") for number in range(8)]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert {response.status_code for response in responses} == {502}
        assert peak < 20_000_000


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("DROP TABLE vectors", "vectors.db"),
        ("ALTER TABLE vectors RENAME COLUMN vector TO other", "vectors.db"),
    ],
)
def test_a_store_that_breaks_under_the_server_is_named_in_health(start_far, tmp_path, damage, named):
    with start_far() as app:
        with sqlite3.connect(tmp_path / "home/upstream/vectors.db") as connection:
            connection.execute(damage)
        assert embed(app, "a text").status_code >= 500
        assert any(named in warning for warning in read_health(app)["warnings"])


@pytest.mark.parametrize("column", ["stated", "width", "probes", "checked_at"])
def test_a_damaged_row_of_the_stored_spaces_is_named(start_far, tmp_path, column):
    with start_far():
        pass
    with sqlite3.connect(tmp_path / "home/upstream/vectors.db") as connection:
        connection.execute(f"UPDATE spaces SET {column} = 'x'")
    with start_far() as app:
        problem = embed(app, "a text").text
        assert "vectors.db" in problem and "damaged" in problem
