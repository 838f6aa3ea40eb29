"""Encoders behind an embeddings API in a server: another Lathe, and a stub that fails as told."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import uvicorn

from lathe.service.encoder_settings import EncoderSettings, convert_settings_error
from lathe.service.settings import read_settings
from tests.embeddings_server import WIDTH, rows_of
from tests.helpers import eventually

TEXTS = [f"text {number}" for number in range(6)]


@pytest.fixture(scope="module")
def lathe_url(lathe):
    """Serve the shared app on a port too, and return its URL."""
    server = uvicorn.Server(uvicorn.Config(lathe.client.app, port=0, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def start_far(start_app, embeddings_server, tmp_path):
    """Return a context manager with an app whose only encoder, `far`, is behind the stub."""

    @contextmanager
    def start(name="home", cache_bytes=0, upstream=None, **settings):
        fields = {"url": f"{embeddings_server.url}/v1", "protocol": "openai", "model": "m", "timeout": 2}
        encoder = {"name": "far", "upstream": fields | (upstream or {})}
        with start_app(home=tmp_path / name, cache_bytes=cache_bytes, encoders=[encoder], **settings) as app:
            yield app

    return start


def embed(app, texts, **body):
    """Send texts to `/embed`, and return the response."""
    return app.client.post("/embed", json={"inputs": texts} | body)


def read_metric(app, name):
    """Return the value of a metric of the encoder `far`."""
    lines = app.client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f'{name}{{encoder="far"}}')).rpartition(" ")[2])


@pytest.fixture
def impatient(monkeypatch):
    """Let no failing call be tried again."""
    monkeypatch.setattr("lathe.service.encoders.engine.upstream_worker.PATIENCE_SECONDS", 0.0)


# Another Lathe.


def fit_same_chain(app, encoder, paragraphs, finish):
    """Fit a chain on an encoder's vectors of the paragraphs, and return its name and certificate."""
    name = f"same-{encoder}"
    steps = [{"kind": "r2"}, {"kind": "pca", "dimensions": 32}]
    body = {"name": name, "steps": steps, "source": {"texts": paragraphs}, "encoder": encoder}
    job = app.client.post("/fit-transform", json=body, headers=app.admin).json()["job_id"]
    assert (done := finish(job, app))["state"] == "succeeded", done["error"]
    return name, done["result"]["certificate"]


@pytest.fixture(scope="module")
def same_chain(lathe, paragraphs, out_of_domain, encoder, finish):
    """Return the vectors that a chain fitted on the shared app's encoder gives there, as a function of the texts."""
    vectors = lathe.settings.home / "vectors"
    if not (vectors / "out_of_domain").exists():  # else another test has had it encoded
        (vectors / "out_of_domain").symlink_to(out_of_domain)
    name, _ = fit_same_chain(lathe, encoder.name, paragraphs, finish)
    yield lambda texts: embed(lathe, texts, chain=name).json()
    lathe.client.delete(f"/chains/{name}/1", headers=lathe.admin)


@pytest.fixture(scope="module")
def twice(start_app, lathe_url, encoder, out_of_domain, new_home):
    """Start an app with the shared app's encoder behind its API, under two names of the provider."""
    upstream = {"url": f"{lathe_url}/v1", "protocol": "openai", "model": encoder.name}
    encoders = [{"name": name, "upstream": upstream | {"provider": name}} for name in ("far", "other")]
    with start_app(home=new_home(), encoders=encoders) as app:
        for engine in app.services.embedder.engines.values():
            (out_of_domain / engine.info.fingerprint).symlink_to(out_of_domain / encoder.fingerprint)
        yield app


def test_the_same_chain_gives_the_same_vectors_over_a_local_and_an_upstream_encoder(
    twice, finish, paragraphs, same_chain, raw, sentences
):
    """Each is fitted on its own encoder's vectors of the same texts. The spaces are different ones all the same."""
    name, certificate = fit_same_chain(twice, "far", paragraphs, finish)
    assert certificate["n_fit"] > 100 and certificate["out_of_domain"]["pydoc"]["recall_at_10"] > 0
    answer = embed(twice, sentences, chain=name, model="far")
    np.testing.assert_allclose(answer.json(), same_chain(sentences), atol=1e-6)
    some_new = ["new by openai", *sentences[:2], "another new one"]  # the others are in the cache
    np.testing.assert_allclose(embed(twice, some_new, chain=name, model="far").json(), same_chain(some_new), atol=1e-6)
    plain = twice.client.post("/v1/embeddings", json={"input": sentences, "model": "far"})
    np.testing.assert_allclose([row["embedding"] for row in plain.json()["data"]], raw, atol=1e-6)
    assert answer.headers["x-space-id"] != plain.headers["x-space-id"]
    described = twice.services.registry.manifest(name, 1)["encoder"]
    assert described["upstream"]["protocol"] == "openai" and "url" not in described["upstream"]
    assert embed(twice, sentences, chain=name, model="other").status_code == 409


# A stub.


def test_texts_are_asked_for_once_although_there_is_no_cache_and_the_server_restarts(start_far, embeddings_server):
    with start_far() as app:
        vectors = embed(app, TEXTS).json()
        np.testing.assert_allclose(vectors, rows_of(TEXTS, normalize=True), atol=1e-6)
        assert embed(app, TEXTS).json() == vectors
        assert app.client.post("/v1/embeddings", json={"input": TEXTS}).status_code == 200
        raw = embed(app, TEXTS, normalize=False).json()
        np.testing.assert_allclose(raw, rows_of(TEXTS), atol=1e-6)
    calls = embeddings_server.calls
    with start_far() as app:
        assert embed(app, TEXTS).json() == vectors
    assert embeddings_server.count_asked() == dict.fromkeys(TEXTS, 1) and embeddings_server.calls == calls


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
        ((500, {}, b"<html>"), 503, "upstream_unavailable", "1"),
        ((200, {"content-type": "text/html"}, b"<html>"), 503, "upstream_unavailable", "1"),
        ((200, {}, b'{"data": []}'), 502, "upstream_failed", None),
        ((401, {}, b'{"error": "sk-secret is revoked"}'), 502, "upstream_failed", None),
        ((302, {"location": "http://127.0.0.1:1/"}, b""), 502, "upstream_failed", None),
        ((400, {}, b'{"error": "flagged"}'), 400, "text_refused", None),
    ],
)
def test_an_apis_failure_is_answered_in_the_services_shape(
    start_far, embeddings_server, monkeypatch, impatient, caplog, said, status, code, retry_after
):
    """The key is in no answer and no log. The server stays ready, and stored texts are answered."""
    monkeypatch.setenv("FAR_KEY", "sk-secret")
    with start_far(upstream={"api_key_env": "FAR_KEY"}) as app:
        stored = embed(app, "stored").json()
        embeddings_server.script = lambda *_: said
        answer = embed(app, ["new"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers.get("retry-after") == retry_after
        assert embed(app, "stored").json() == stored
        assert app.client.get("/health/ready").status_code == 200
        warnings = app.client.get("/health").json()["warnings"]
        assert [warning for warning in warnings if "far" in warning] != [] or status == 400
        seen = [answer.text, *(app.client.get(path).text for path in ("/info", "/metrics", "/health", "/encoders"))]
        assert read_metric(app, "lathe_upstream_failures_total") >= 1
    assert not any("sk-secret" in text for text in (*seen, caplog.text))
    assert {headers["authorization"] for headers in embeddings_server.headers} == {"Bearer sk-secret"}


def test_a_text_without_a_finite_vector_is_an_error_with_its_index_and_is_never_cached(start_far, embeddings_server):
    with start_far(cache_bytes=10**6) as app:
        embed(app, TEXTS[:2])
        embeddings_server.change = lambda texts, rows: [row * np.nan for row in rows]
        answer = embed(app, [*TEXTS[:2], "broken"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "not_finite")
        assert answer.json()["error"]["message"].startswith("input 2: ")
        embeddings_server.change = lambda texts, rows: rows
        np.testing.assert_allclose(embed(app, "broken").json(), rows_of(["broken"], normalize=True), atol=1e-6)


def test_one_callers_refused_text_does_not_fail_the_callers_whose_texts_share_its_call(start_far, embeddings_server):
    def script(server, number, body):
        time.sleep(0.05)  # others wait meanwhile, and share the next call
        return (400, {}, b'{"error": "flagged"}') if "bad" in body["input"] else None

    with start_far(upstream={"concurrency": 1}) as app, ThreadPoolExecutor(8) as pool:
        embeddings_server.script = script
        texts = ["first", "bad", *TEXTS]
        answers = list(pool.map(lambda text: embed(app, text).status_code, texts))
    assert answers == [400 if text == "bad" else 200 for text in texts]
    assert max(len(body["input"]) for body in embeddings_server.bodies[1:]) > 1


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


def test_a_server_is_ready_while_its_api_is_down_from_the_start_and_takes_it_up_later(
    start_far, embeddings_server, impatient
):
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
    other = {"url": f"{embeddings_server.url}/v2", "protocol": "cohere", "model": "n"}
    with start_far() as app:
        added = EncoderSettings(name="other", upstream=other, load=False)
        (tmp_path / "home" / "encoders.json").write_text(json.dumps([added.model_dump(exclude_defaults=True)]))
        assert embed(app, "a", model="other").status_code == 404
        app.client.put("/encoders/other", headers=app.admin)
        eventually(lambda: embed(app, "a", model="other").status_code == 200)
        listed = app.client.get("/encoders").json()[1]
        assert (listed["device"], listed["model"], listed["dimensions"]) == ("upstream", "n", WIDTH)
        assert listed["upstream"]["protocol"] == "cohere" and "url" not in listed["upstream"]
        assert app.client.delete("/encoders/other", headers=app.admin).json()["state"] == "stopped"
        assert embed(app, "a", model="other").status_code == 404


def test_accepted_texts_are_answered_before_a_server_stops(start_far, embeddings_server):
    answers = []
    with start_far() as app:
        embeddings_server.script = lambda *_: time.sleep(0.3)
        thread = threading.Thread(target=lambda: answers.append(embed(app, "late")))
        thread.start()
        eventually(lambda: embeddings_server.calls == 2)
        app.services.embedder.default.stop(5)
        thread.join()
    assert answers[0].status_code == 200


def test_usage_and_cost_are_counted_in_the_metrics(start_far):
    names = ("calls", "texts", "tokens", "cost")
    with start_far(upstream={"price": 2.0, "provider": "metered"}) as app:
        before = [read_metric(app, f"lathe_upstream_{name}_total") for name in names]
        answer = app.client.post("/v1/embeddings", json={"input": TEXTS})
        after = [read_metric(app, f"lathe_upstream_{name}_total") for name in names]
    assert answer.json()["usage"]["prompt_tokens"] == 18
    np.testing.assert_allclose(np.subtract(after, before), [1, 6, 18, 18 * 2e-6])


def test_no_address_of_a_request_is_called(start_far, embeddings_server):
    with start_far() as app:
        calls = embeddings_server.calls
        body = {"inputs": "a", "upstream": {"url": embeddings_server.url}, "model": f"{embeddings_server.url}/v1"}
        assert app.client.post("/embed", json=body).status_code == 404
        put = app.client.put("/encoders/mine", headers=app.admin, json={"upstream": {"url": embeddings_server.url}})
        assert put.status_code == 404 and embeddings_server.calls == calls


def test_a_damaged_store_of_vectors_is_named_and_nothing_is_asked(start_far, embeddings_server, tmp_path):
    (tmp_path / "home" / "upstream").mkdir(parents=True, mode=0o700)
    (tmp_path / "home" / "upstream" / "vectors.db").write_bytes(b"no database" * 1000)
    with start_far() as app:
        answer = embed(app, "a")
        assert answer.status_code == 503 and "vectors.db" in answer.json()["error"]["message"]
    assert embeddings_server.calls == 0


# Settings.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "m"}, "model and upstream exclude each other"),
        ({"pooling": "cls", "dtype": "float16"}, "pooling, dtype and upstream exclude each other"),
        ({"upstream": {"url": "ftp://a"}}, "url must be like https://api.openai.com/v1, not 'ftp://a'"),
        ({"upstream": {"url": "https://me:sk-1@a/v1"}}, "url holds a name or password"),
        ({"upstream": {"url": "https://a/v1?key=sk-1"}}, "url must end before any ?"),
        ({"upstream": {"url": "https://a/v1/embeddings"}}, "leave /embeddings off"),
        (
            {"upstream": {"url": "http://a/v1", "api_key_env": "KEY"}},
            "a key is sent over https or to this machine only",
        ),
        ({"upstream": {"api_key_env": "sk-1"}}, "takes the name of an environment variable"),
        ({"upstream": {"protocol": "grpc"}}, "upstream.protocol"),
        ({"upstream": {"batch_size": 0}}, "upstream.batch_size"),
        ({"upstream": {"novel": 1}}, "upstream.novel"),
        ({"upstream": None}, "name a model, or an upstream"),
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
