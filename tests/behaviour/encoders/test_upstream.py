"""Encoders behind an embeddings API in a server: another Lathe, and a stub that fails as told or is hostile.

Whatever an API answers, it fails its own request alone, in bounded time and memory, and shows no key.
"""

import json
import logging
import sqlite3
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest

from lathe.service.encoder_settings import EncoderSettings, convert_settings_error
from lathe.service.settings import read_settings
from lathe.training.encoder.upstream.encoder import UpstreamEncoder
from lathe.training.endpoint_client import MAX_ASKED_PAUSE
from tests.embeddings_server import PROBE, WIDTH, rows_of
from tests.helpers import eventually

TEXTS = [f"text {number}" for number in range(6)]
KEY = "sk-0123456789"


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KEY", KEY)
        patch.setattr("lathe.service.encoders.engine.upstream_worker.PATIENCE_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def open_far(start_app, running_embeddings_server, patched):
    """Return a context manager with an app whose only encoder, `far`, is behind the stub."""

    @contextmanager
    def start(home, cache_bytes=0, upstream=None, **settings):
        fields = {"url": f"{running_embeddings_server.url}/v1", "protocol": "openai", "model": "m", "timeout": 5}
        encoder = {"name": "far", "upstream": fields | {"api_key_env": "FAR_KEY"} | (upstream or {})}
        with start_app(home=home, cache_bytes=cache_bytes, encoders=[encoder], **settings) as app:
            yield app

    return start


@pytest.fixture
def start_far(open_far, tmp_path, embeddings_server):
    return lambda **given: open_far(tmp_path / "home", **given)


@pytest.fixture(scope="module")
def shared_far(open_far, tmp_path_factory):
    """Start an app for the tests that leave its encoder as it was; a wrong number of tokens would delay its calls."""
    with open_far(tmp_path_factory.mktemp("far"), upstream={"tokens_per_minute": 1_000_000}) as app:
        yield app


@pytest.fixture
def far(shared_far, embeddings_server):
    """Return the shared app with a stub that answers, and assert that it serves afterwards."""
    yield shared_far
    embeddings_server.reset()
    find_encoder(shared_far).client.endpoint.limiter.held = 0.0
    assert embed(shared_far, f"after {time.monotonic()}").status_code == 200
    assert read_health(shared_far)["encoders"]["far"] == "ready"


def find_encoder(app):
    """Return the encoder of the app that calls the API."""
    return app.services.embedder.default.start_worker.__self__.encoder


def embed(app, texts, **body):
    return app.client.post("/embed", json={"inputs": texts} | body)


def read_health(app):
    return app.client.get("/health").json()


def read_metric(app, name):
    lines = app.client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f'{name}{{encoder="far"}}')).rpartition(" ")[2])


def answer(rows, status=200, headers=None, **fields):
    data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
    return status, headers or {}, json.dumps({"data": data, "model": "m"} | fields).encode()


def unless_probing(said):
    """Return a script that answers all calls but those for probe texts, by `said` or by a function of the body."""
    return lambda server, number, body: None if PROBE in body["input"] else said(body) if callable(said) else said


def test_a_chain_is_fitted_on_an_upstream_encoder_and_refuses_the_texts_of_another_provider(
    start_app, embeddings_server, new_home, paragraphs, finish
):
    upstream = {"url": f"{embeddings_server.url}/v1", "protocol": "openai", "model": "m"}
    encoders = [{"name": name, "upstream": upstream | {"provider": name}} for name in ("far", "other")]
    with start_app(home=new_home(), encoders=encoders) as app:
        body = {"name": "mine", "steps": [{"kind": "pca", "dimensions": 4}], "encoder": "far"}
        body |= {"source": {"texts": paragraphs[:100]}}
        job = finish(app.client.post("/fit-transform", json=body, headers=app.admin).json()["job_id"], app)
        assert job["state"] == "succeeded", job["error"]
        assert job["result"]["certificate"]["out_of_domain"]["pydoc"]["recall_at_10"] > 0
        chain = app.services.registry.load("mine@1").chain
        for texts in (TEXTS, ["new", *TEXTS[:2]]):
            answered = embed(app, texts, chain="mine", model="far")
            np.testing.assert_allclose(answered.json(), chain.floats(rows_of(texts, normalize=True)), atol=1e-5)
        plain = app.client.post("/v1/embeddings", json={"input": TEXTS, "model": "far"})
        rows = [row["embedding"] for row in plain.json()["data"]]
        np.testing.assert_allclose(rows, rows_of(TEXTS, normalize=True), atol=1e-6)
        assert answered.headers["x-space-id"] != plain.headers["x-space-id"]
        described = app.services.registry.manifest("mine", 1)["encoder"]
        assert described["upstream"]["protocol"] == "openai" and "url" not in described["upstream"]
        assert embed(app, TEXTS, chain="mine", model="other").status_code == 409


def test_all_workers_of_an_encoder_learn_its_space_by_one_call(start_far, embeddings_server):
    with start_far(upstream_bytes=0, upstream={"concurrency": 8}) as app:
        eventually(lambda: app.client.get("/encoders").json()[0]["workers"] == 8)
        assert embeddings_server.calls == 1


def test_a_name_is_an_encoders_before_it_is_the_name_of_another_encoders_model(start_app, embeddings_server, tmp_path):
    upstream = {"url": embeddings_server.url, "protocol": "openai"}
    encoders = [
        {"name": "first", "upstream": upstream | {"model": "second"}},
        {"name": "second", "upstream": upstream | {"model": "m", "dimensions": 5}},
    ]
    with start_app(home=tmp_path, encoders=encoders) as app:
        assert len(embed(app, "a", model="second").json()[0]) == 5
        assert len(embed(app, "a", model="m").json()[0]) == 5


@pytest.mark.parametrize(
    ("said", "status", "code", "retry_after"),
    [
        ((429, {"retry-after": "7"}, b'{"error": "slow down"}'), 429, "upstream_busy", "7"),
        ((503, {"retry-after": "9"}, b"{}"), 503, "upstream_unavailable", "9"),
        ((200, {"content-type": "text/html"}, b"<html>"), 503, "upstream_unavailable", "1"),
        ((401, {}, b'{"error": "%s is revoked"}' % KEY.encode()), 502, "upstream_failed", None),
        ((400, {}, b'{"error": "flagged"}'), 400, "text_refused", None),
    ],
)
def test_an_apis_failure_is_answered_in_the_services_shape(far, embeddings_server, said, status, code, retry_after):
    """The server stays ready, and stored texts are answered."""
    stored = embed(far, "stored").json()
    embeddings_server.script = lambda *_: said
    answered = embed(far, [f"new {status} {retry_after}"])
    assert (answered.status_code, answered.json()["error"]["code"]) == (status, code)
    assert answered.headers.get("retry-after") == retry_after and KEY not in answered.text
    assert embed(far, "stored").json() == stored
    assert far.client.get("/health/ready").status_code == 200
    assert any("far" in warning for warning in read_health(far)["warnings"]) or status == 400
    assert read_metric(far, "lathe_upstream_failures_total") >= 1
    assert embeddings_server.headers[-1]["authorization"] == f"Bearer {KEY}"


HOSTILE = {
    "tokens beyond 64 bits": lambda body: answer(rows_of(body["input"]).tolist(), usage={"prompt_tokens": 10**30}),
    "2^62 tokens": lambda body: answer(rows_of(body["input"]).tolist(), usage={"prompt_tokens": 2**62}),
    "a year of twenty digits": (429, {"retry-after": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}, b"{}"),
    "a pause without end": (503, {"retry-after": "inf"}, b"{}"),
    "an index that is false": (200, {}, b'{"data": [{"index": false, "embedding": [1]}]}'),
    "an index in quotes": (200, {}, b'{"data": [{"index": "0", "embedding": [1]}]}'),
    "a zero vector": answer([[0.0] * WIDTH]),
    "deep lists": (200, {}, b"[" * 100_000),
    "a number of 10,000 digits": (200, {}, b'{"data": [{"embedding": [' + b"9" * 10_000 + b"]}]}"),
    "millions of lists": (200, {}, b'{"data": [' + b"[]," * 300_000 + b"[]]}"),
    "more bytes than vectors need": (200, {}, b" " * 3_000_000),
    "a bomb": (200, {"content-encoding": "gzip"}, b"\x1f\x8b"),
    "an error that is a list": (500, {}, b'[{"error": {"message": {"a": [1]}}}]'),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_answer_fails_its_own_request_alone(far, embeddings_server, what):
    """Tokens that the text cannot have are estimated, and delay no request."""
    tokens = find_encoder(far).usage["tokens"]
    embeddings_server.script = unless_probing(HOSTILE[what])
    response = embed(far, what)
    assert response.status_code in (200, 422, 429, 502, 503), response.text
    assert int(response.headers.get("retry-after", 0)) <= MAX_ASKED_PAUSE
    assert find_encoder(far).usage["tokens"] - tokens < 100


@pytest.mark.parametrize("place", ["model", "header", "error", "index", "content-type"])
def test_no_key_that_an_api_repeats_is_shown(start_far, embeddings_server, caplog, place):
    said = f"Bearer {KEY} " + "x" * 1000
    scripts = {
        "error": (400, {}, json.dumps({"error": said}).encode()),
        "index": (200, {}, json.dumps({"data": [{"index": said, "embedding": [1]}]}).encode()),
        "content-type": (200, {"content-type": said}, b"<html>"),
        "model": lambda body: answer(rows_of(body["input"]).tolist(), model=said),
        "header": lambda body: answer(rows_of(body["input"]).tolist(), headers={"x-space-id": said}),
    }
    with start_far() as app, caplog.at_level(logging.DEBUG, "lathe"):
        embeddings_server.headers_sent = {"x-space-id": "space"} if place == "header" else {}
        embeddings_server.script = unless_probing(scripts[place])
        response = app.client.post("/v1/embeddings", json={"input": "a text"})
        shown = response.text + caplog.text
        shown += "".join(app.client.get(path).text for path in ("/health", "/encoders", "/info", "/metrics"))
        assert response.status_code in (200, 400, 409, 422, 502, 503)
        assert KEY not in shown
        assert "x" * 300 not in shown


def test_a_long_answer_takes_memory_by_what_was_asked(far, embeddings_server):
    embeddings_server.script = lambda *_: (200, {}, (b'{"data":[' + b"[]," * 100_000 for _ in range(500)))
    tracemalloc.start()
    try:
        responses = [embed(far, f"long {number}") for number in range(4)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {response.status_code for response in responses} == {502}
    assert peak < 20_000_000


def test_an_exception_that_nothing_expects_is_logged_once_shown_in_health_and_closes_nothing(far, monkeypatch, caplog):
    monkeypatch.setattr(UpstreamEncoder, "_check_and_store", lambda *_: {}[KEY])
    with caplog.at_level(logging.ERROR):
        for text in ("unexpected", "unexpected too"):
            response = embed(far, text)
            assert response.status_code in (502, 503) and "KeyError" in response.text
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert any("KeyError" in warning for warning in read_health(far)["warnings"])
    monkeypatch.undo()
    assert embed(far, "unexpected").status_code == 200
    assert read_health(far)["warnings"] == []


def test_tenants_behind_one_host_do_not_share_vectors(start_far, embeddings_server):
    embeddings_server.script = lambda server, number, body: answer(
        rows_of(body["input"], salt=server.paths[-1]).tolist()
    )
    found = {}
    for tenant in ("a", "b"):
        with start_far(upstream={"url": f"{embeddings_server.url}/{tenant}/v1"}) as app:
            found[tenant] = (app.services.embedder.default.info.fingerprint, np.array(embed(app, "a text").json()))
    assert found["a"][0] != found["b"][0]
    assert not np.allclose(found["a"][1], found["b"][1])


def test_one_provider_of_two_addresses_is_believed_only_if_the_probes_agree(start_far, embeddings_server):
    fingerprints = set()
    for place in ("a", "b"):
        with start_far(upstream={"url": f"{embeddings_server.url}/{place}/v1", "provider": "us"}) as app:
            fingerprints.add(app.services.embedder.default.info.fingerprint)
    assert len(fingerprints) == 1
    embeddings_server.salt = "another model"
    with start_far(upstream={"url": f"{embeddings_server.url}/c/v1", "provider": "us"}) as app:
        assert "give the encoder far another provider" in embed(app, "a text").text


def test_a_model_that_changes_under_its_name_is_answered_409_with_a_warning(start_far, embeddings_server):
    with start_far(upstream={"probe_seconds": 0.05}) as app:
        stored = embed(app, TEXTS).json()
        space = embed(app, TEXTS).headers["x-space-id"]
        time.sleep(0.06)
        embed(app, "confirms the space")
        embeddings_server.salt = "retrained"
        time.sleep(0.06)
        answer = embed(app, "new")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "space_mismatch")
        warning = next(one for one in app.client.get("/health").json()["warnings"] if "far" in one)
        assert "other vectors under the name m than before" in warning and "another revision" in warning
        assert app.client.get("/encoders").json()[0]["problem"] == warning
        again = embed(app, TEXTS)
        assert again.json() == stored and again.headers["x-space-id"] == space


def test_a_server_is_ready_while_its_api_is_down_from_the_start_and_takes_it_up_later(start_far, embeddings_server):
    embeddings_server.script = lambda *_: (503, {}, b"{}")
    with start_far() as app:
        assert app.client.get("/health/ready").json()["encoders"] == {"far": "failed"}
        answer = embed(app, "new")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert "it answered 503" in answer.json()["error"]["message"]
        embeddings_server.script = None
        eventually(lambda: embed(app, "new").status_code == 200, 10)
        assert app.client.get("/encoders").json()[0]["state"] == "ready"


def test_a_slow_api_blocks_neither_other_requests_nor_more_texts_than_the_queue_may_hold(start_far, embeddings_server):
    release = threading.Event()
    embeddings_server.script = lambda server, number, body: release.wait(5) and None if number else None
    with start_far(max_queued_texts=4, upstream={"concurrency": 2, "batch_size": 1, "timeout": 10}) as app:
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(embed, app, text) for text in TEXTS[:4]]
            eventually(lambda: app.services.embedder.default.queue.texts == 4)
            begun = time.monotonic()
            refused = embed(app, "one too many")
            assert refused.status_code == 429 and "retry-after" in refused.headers
            assert app.client.get("/health/live").status_code == 200 and time.monotonic() - begun < 1
            release.set()
            assert [one.result().status_code for one in waiting] == [200] * 4


def test_an_upstream_encoder_is_removed_and_added_again_over_the_admin_routes(start_far, embeddings_server, tmp_path):
    other = {"url": f"{embeddings_server.url}/v1", "protocol": "openai", "model": "n"}
    with start_far() as app:
        added = EncoderSettings(name="other", upstream=other, load=False)
        (tmp_path / "home" / "encoders.json").write_text(json.dumps([added.model_dump(exclude_defaults=True)]))
        assert embed(app, "a", model="other").status_code == 404
        app.client.put("/encoders/other", headers=app.admin)
        eventually(lambda: embed(app, "a", model="other").status_code == 200)
        listed = app.client.get("/encoders").json()[1]
        assert (listed["device"], listed["model"], listed["dimensions"]) == ("upstream", "n", WIDTH)
        assert listed["upstream"]["protocol"] == "openai" and "url" not in listed["upstream"]
        assert app.client.delete("/encoders/other", headers=app.admin).json()["state"] == "stopped"
        assert embed(app, "a", model="other").status_code == 404


def test_usage_and_cost_are_counted_in_the_metrics(start_far):
    names = ("calls", "texts", "tokens", "cost")
    with start_far(upstream={"price": 2.0, "provider": "metered"}) as app:
        before = [read_metric(app, f"lathe_upstream_{name}_total") for name in names]
        answer = app.client.post("/v1/embeddings", json={"input": TEXTS})
        after = [read_metric(app, f"lathe_upstream_{name}_total") for name in names]
    assert answer.json()["usage"]["prompt_tokens"] == 18
    np.testing.assert_allclose(np.subtract(after, before), [1, 6, 18, 18 * 2e-6])


def test_no_address_of_a_request_is_called(far, embeddings_server):
    body = {"inputs": "a", "upstream": {"url": embeddings_server.url}, "model": f"{embeddings_server.url}/v1"}
    assert far.client.post("/embed", json=body).status_code == 404
    put = far.client.put("/encoders/mine", headers=far.admin, json={"upstream": {"url": embeddings_server.url}})
    assert put.status_code == 404 and embeddings_server.calls == 0


def test_a_store_of_vectors_that_cannot_be_used_is_named_and_nothing_is_asked(start_far, embeddings_server, tmp_path):
    store = tmp_path / "home" / "upstream" / "vectors.db"
    store.parent.mkdir(parents=True, mode=0o700)
    store.write_bytes(b"no database" * 1000)
    with start_far() as app:
        refused = embed(app, "a")
        assert refused.status_code == 503 and "vectors.db" in refused.json()["error"]["message"]
    assert embeddings_server.calls == 0
    store.unlink()
    with start_far() as app:
        with closing(sqlite3.connect(store)) as connection, connection:
            connection.execute("DROP TABLE vectors")
        assert embed(app, "a text").status_code >= 500
        assert any("vectors.db" in warning for warning in read_health(app)["warnings"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "m"}, "model cannot be set with upstream"),
        ({"pooling": "cls", "dtype": "float16"}, "pooling, dtype cannot be set with upstream"),
        ({"upstream": {"url": "ftp://a"}}, "url must be like https://api.openai.com/v1, not 'ftp://a'"),
        ({"upstream": {"url": "https://me:sk-1@a/v1"}}, "url holds a name or password"),
        ({"upstream": {"url": "https://a/v1?key=sk-1"}}, "url must end before any ?"),
        ({"upstream": {"url": "https://a/v1/embeddings"}}, "url must not end with /embeddings"),
        (
            {"upstream": {"url": "http://a/v1", "api_key_env": "KEY"}},
            "with api_key_env, url must begin with https:// or lead to this machine",
        ),
        ({"upstream": {"api_key_env": "sk-1"}}, "takes the name of an environment variable"),
        ({"upstream": {"batch_size": 0}}, "upstream.batch_size"),
        ({"upstream": None}, "set model or upstream"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_without_showing_a_key(wrong, message):
    right = {"url": "https://a/v1", "protocol": "openai", "model": "m"}
    fields = {"name": "far", "upstream": right} | wrong
    if wrong.get("upstream"):
        fields["upstream"] = right | wrong["upstream"]
    with pytest.raises(ValueError) as raised:
        EncoderSettings(**fields)
    shown = convert_settings_error(raised.value).message
    assert message in shown and "sk-1" not in shown


def test_a_key_may_go_over_https_or_to_this_machine(tmp_path):
    for url in ("https://a/v1", "http://localhost:1/v1", "http://127.0.0.1/v1", "http://[::1]:1/v1"):
        upstream = {"url": url, "protocol": "openai", "model": "m", "api_key_env": "KEY"}
        settings = read_settings(home=tmp_path, encoders=[{"name": "far", "upstream": upstream}])
        assert settings.specs[0].upstream.url == url and settings.specs[0].model == "m"


def test_the_command_adds_an_upstream_encoder_after_asking_it_and_lists_it(run, embeddings_server, monkeypatch):
    monkeypatch.delenv("FAR_KEY", raising=False)
    url = f"{embeddings_server.url}/v1"
    options = ["--upstream", url, "--upstream-model", "m", "--api-key-env", "FAR_KEY", "--dimensions", "5"]
    status, _, error = run("encoders", "add", "far", *options)
    assert status == 1 and "FAR_KEY" in error and embeddings_server.calls == 0
    status, out, _ = run("encoders", "add", "far", *options, FAR_KEY="sk-secret")
    assert status == 0 and out == f"far: 5 dimensions, 8192 tokens, openai at {url}\n"
    status, out, _ = run("encoders", "list")
    assert f"m at {url}" in out and "sk-secret" not in out
    status, out, _ = run("doctor")
    assert f"m, openai at {url}, key in FAR_KEY" in out and "sk-secret" not in out
    monkeypatch.delenv("FAR_KEY")
    status, out, _ = run("doctor")
    assert status == 1 and "the environment variable FAR_KEY, which api_key_env names, is not set" in out
    status, _, error = run("encoders", "add", "other", "--model", "a/b", "--batch-size", "3")
    assert status == 1 and "--upstream URL" in error
    assert run("encoders", "remove", "far")[0] == 0
