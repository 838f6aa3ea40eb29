import json
import os
import signal

import numpy as np
import pytest

from tests.helpers import eventually

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
ROWS = [{"anchor": f"what of the {WORDS[n % 10]} {n}?", "positive": f"the {WORDS[n % 7]} of {n}"} for n in range(40)]
TRAINING = {"precision": "float32", "batch_size": 4, "log_steps": 2, "checkpoint_steps": 2, "max_length": 12}
JOB = {"sources": [{"jsonl": "pairs.jsonl"}], "training": TRAINING}
TEXTS = ["the ledger is closed", "rain over the hills"]


@pytest.fixture(scope="module")
def app(start_app, new_home, tmp_path_factory, tiny_model):
    """Start an app whose default encoder is tiny, with pairs in its data folder."""
    data = tmp_path_factory.mktemp("data")
    (data / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    encoders = [{"name": "tiny", "model": str(tiny_model)}]
    with start_app(home=new_home(), data_root=data, encoders=encoders, device="cpu") as started:
        yield started


def submit(app, **changed):
    body = {"name": "mine", "method": "pft", "job": JOB} | changed
    return app.client.post("/train", json=body, headers=app.admin)


def wait(app, answer):
    assert answer.status_code == 202, answer.text
    url = f"/jobs/{answer.json()['job_id']}"
    eventually(lambda: app.client.get(url).json()["finished_at"], 60)
    return app.client.get(url).json()


def embed(app, model):
    answer = app.client.post("/v1/embeddings", json={"model": model, "input": TEXTS})
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]]), answer.headers["x-space-id"]


def serves(app, name):
    return app.client.post("/v1/embeddings", json={"model": name, "input": "x"}).status_code == 200


def promote(app, version, **more):
    return app.client.post("/encoders/mine/promote", json={"version": version} | more, headers=app.admin)


@pytest.fixture(scope="module")
def versions(app):
    """Train two versions of an encoder: the process of the first is killed once, the second fails its gate."""
    answer = submit(app, job=JOB | {"training": TRAINING | {"epochs": 6}})
    url = f"/jobs/{answer.json()['job_id']}"
    eventually(lambda: app.client.get(url).json()["state"] == "running")
    fit = {"name": "beside", "steps": [{"kind": "r2"}], "source": {"texts": [row["anchor"] for row in ROWS]}}
    app.beside = app.client.post("/fit-transform", json=fit, headers=app.admin)
    eventually(lambda: list((app.settings.home / "training").glob("*/training/checkpoint-*/whole.json")), 60)
    os.kill(app.services.jobs.get(answer.json()["job_id"]).pid, signal.SIGKILL)
    first = wait(app, answer)
    assert first["state"] == "succeeded", first
    log = [json.loads(line)["step"] for line in app.client.get(f"{url}/log").text.splitlines()]
    assert log == sorted(log) and log[-1] == 48
    gates = {"relevance.pairs.ndcg_at_10.gain": 0.99}
    job = JOB | {"training": TRAINING | {"epochs": 0.5}}
    second = wait(app, submit(app, job=job, gates=gates, promote=True))
    assert second["state"] == "succeeded", second
    return first, second["result"]


@pytest.mark.release
def test_a_training_whose_process_is_killed_goes_on_and_publishes_one_version_and_a_fit_does_not_wait(app, versions):
    (described, _) = app.client.get("/encoders/mine/versions").json()["versions"]
    assert described["provenance"]["training"]["resumed_from"] > 0
    beside = wait(app, app.beside)
    assert beside["state"] == "succeeded" and beside["finished_at"] < versions[0]["finished_at"]


def test_a_trained_encoder_is_live_with_its_certificate_and_a_failed_gate_leaves_the_next_one_aside(app, versions):
    first, second = versions[0]["result"], versions[1]
    assert (first["encoder"], first["promoted"], first["failed_gates"]) == ("mine@1", True, [])
    assert (second["encoder"], second["promoted"]) == ("mine@2", False)
    assert second["failed_gates"] == ["relevance.pairs.ndcg_at_10.gain"]
    certificate = first["certificate"]
    assert certificate["relevance"]["pairs"]["queries"] == 8 and certificate["out_of_domain"]["pydoc"]["queries"] == 100
    described = app.client.get("/encoders/mine/versions").json()
    assert (described["live"], [v["version"] for v in described["versions"]]) == (1, [1, 2])
    assert described["base"]["name"] == "tiny" and described["method"] == "pft"
    assert not list((app.settings.home / "training").iterdir())


def test_promoting_serves_another_version_an_index_keeps_its_own_and_rollback_returns(app, versions):
    eventually(lambda: serves(app, "mine"), 30)
    first, first_space = embed(app, "mine")
    assert "mine" in [model["id"] for model in app.client.get("/v1/models").json()["data"]]
    index = app.client.put("/indexes/kept", json={"encoder": "mine", "chain": "none"}, headers=app.admin)
    assert index.json()["encoder"] == "mine@1", index.text
    app.client.post("/indexes/kept/upsert", json={"ids": ["a", "b"], "texts": TEXTS})

    refused = promote(app, 2)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "gate_failed"
    answer = promote(app, 2, force=True).json()
    assert (answer["live"], answer["forced"]) == (2, ["relevance.pairs.ndcg_at_10.gain"])
    request = {"method": "POST", "path": "/indexes/kept/reindex", "body": {"encoder": "mine@2"}}
    assert answer["indexes"] == [{"index": "kept", "encoder": "mine@1", "request": request}]

    eventually(lambda: embed(app, "mine")[1] != first_space, 30)
    second, _ = embed(app, "mine")
    assert np.abs(second - first).max() > 1e-4
    np.testing.assert_allclose(embed(app, "mine@1")[0], first, atol=1e-5)
    found = app.client.post("/indexes/kept/search", json={"texts": TEXTS, "k": 1}).json()
    assert [hits[0]["id"] for hits in found["results"]] == ["a", "b"]
    assert app.client.get("/indexes/kept").json()["encoder"] == "mine@1"
    used = app.client.delete("/encoders/mine/versions/1", headers=app.admin)
    assert used.status_code == 409 and used.json()["error"]["code"] == "encoder_in_use"

    back = app.client.post("/encoders/mine/rollback", headers=app.admin).json()
    assert back["live"] == 1
    eventually(lambda: embed(app, "mine")[1] == first_space, 30)
    eventually(lambda: "mine@2" not in app.services.embedder.engines, 30)


@pytest.mark.release
def test_a_promotion_moves_the_indexes_of_the_encoder_if_it_is_asked_to(app, versions):
    created = app.client.put("/indexes/moved", json={"encoder": "mine@1", "chain": "none"}, headers=app.admin)
    assert created.status_code == 200, created.text
    items = {"ids": ["a", "b"], "texts": TEXTS, "metadata": [{"text": text} for text in TEXTS]}
    app.client.post("/indexes/moved/upsert", json=items)

    answer = promote(app, 2, force=True, reindex=True).json()

    (entry,) = [entry for entry in answer["indexes"] if entry["index"] == "moved"]
    url = f"/jobs/{entry['job_id']}"
    eventually(lambda: app.client.get(url).json()["finished_at"], 60)
    assert app.client.get(url).json()["state"] == "succeeded", app.client.get(url).text
    assert app.client.get("/indexes/moved").json()["encoder"] == "mine@2"
    found = app.client.post("/indexes/moved/search", json={"texts": TEXTS, "k": 1}).json()
    assert [hits[0]["id"] for hits in found["results"]] == ["a", "b"]
    app.client.delete("/indexes/moved", headers=app.admin)
    app.client.post("/encoders/mine/rollback", headers=app.admin)


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"job": {"sources": [{"jsonl": "/etc/passwd"}]}}, 403, "outside"),
        ({"job": {"sources": [{"jsonl": "absent.jsonl"}]}}, 404, "absent.jsonl"),
        ({"job": {"sources": [{"hub": "some/data", "task": "sts"}]}}, 400, "hub"),
        ({"job": JOB | {"trainings": {}}}, 400, "did you mean training?"),
        ({"name": "tiny"}, 409, "in use"),
        ({"name": "a@1"}, 400, "a@1"),
        ({"job": JOB | {"encoder": "/etc"}}, 404, "there is no encoder"),
    ],
)
def test_a_training_that_cannot_be_done_is_refused_at_once(app, changed, status, message):
    answer = submit(app, **changed)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_running_training_can_be_cancelled(app):
    answer = submit(app, name="cancelled", job=JOB | {"training": TRAINING | {"epochs": 5000}})
    url = f"/jobs/{answer.json()['job_id']}"
    eventually(lambda: app.client.get(url).json()["state"] == "running")
    app.client.delete(url, headers=app.admin)
    eventually(lambda: app.client.get(url).json()["state"] == "cancelled", 20)
    assert app.client.get("/encoders/cancelled/versions").status_code == 404
