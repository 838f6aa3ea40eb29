"""Encoders that a running server unloads because nobody uses them, as clients see them."""

import numpy as np
import pytest

from lathe.service.settings import read_settings
from tests.helpers import eventually

NAME = "sleepy"


@pytest.fixture(scope="module")
def app(serve_encoder, tiny_model):
    with serve_encoder(NAME, model=str(tiny_model), idle_seconds=0.2) as app:
        yield app


@pytest.fixture
def engine(app):
    """Return the encoder's engine once it is unloaded."""
    engine = app.services.embedder.engines[NAME]
    eventually(lambda: engine.state == "idle")
    return engine


def embed(app, text):
    return app.client.post("/embed", json={"inputs": text, "model": NAME})


def describe(app):
    return next(encoder for encoder in app.client.get("/encoders").json() if encoder["name"] == NAME)


def gauge(app, name):
    lines = app.client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{encoder="{NAME}"}}'))


def test_an_idle_encoder_is_unloaded_and_its_next_request_waits_until_it_is_loaded_again(app, engine):
    described = describe(app)
    assert (described["state"], described["workers"], described["idle_seconds"]) == ("idle", 0, 0.2)
    assert gauge(app, "lathe_encoder_processes") == gauge(app, "lathe_model_bytes") == 0
    health = app.client.get("/health/ready")
    assert health.status_code == 200 and health.json()["encoders"][NAME] == "idle"
    assert app.client.put(f"/encoders/{NAME}", headers=app.admin).status_code == 200
    first = embed(app, "a red bicycle")
    assert first.status_code == 200 and np.shape(first.json()) == (1, 16)
    assert describe(app)["state"] in ("ready", "idle") and describe(app)["model_bytes"] > 1_000_000


def test_an_unloaded_encoder_answers_texts_from_the_cache_without_being_loaded(app, engine):
    known = embed(app, "tea").json()
    eventually(lambda: engine.state == "idle")
    assert embed(app, "tea").json() == known and engine.state == "idle"


def test_idle_seconds_of_an_encoder_take_precedence_over_those_of_all(tmp_path):
    own = [{"name": name, "model": "m", "idle_seconds": seconds} for name, seconds in (("a", 5), ("b", 0), ("c", None))]
    settings = read_settings(home=tmp_path, encoders=own, idle_seconds=60)
    assert [settings.find_idle_seconds(name) for name in "abc"] == [5, 0, 60]
    assert read_settings(home=tmp_path).find_idle_seconds("all-MiniLM-L6-v2") == 0
    for wrong in ({"idle_seconds": -1}, {"idle_requests": "drop"}, {"model_bytes": -1}):
        with pytest.raises(ValueError, match=f"LATHE_{next(iter(wrong)).upper()}"):
            read_settings(**wrong)
