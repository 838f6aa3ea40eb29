"""Trainings submitted at one replica, run by a worker of trainings, and served by all replicas."""

import json
import os
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest

from tests.helpers import LATHE, eventually

pytestmark = [pytest.mark.services, pytest.mark.timeout(400)]

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
ROWS = [{"anchor": f"what of the {WORDS[n % 10]} {n}?", "positive": f"the {WORDS[n % 7]} of {n}"} for n in range(40)]
TRAINING = {"precision": "float32", "batch_size": 4, "log_steps": 1, "checkpoint_steps": 2, "max_length": 12}
JOB = {"sources": [{"jsonl": "pairs.jsonl"}], "training": TRAINING | {"epochs": 6}}
TEXTS = ["the ledger is closed", "rain over the hills"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return folder


@pytest.fixture(scope="module")
def replicas(start_replicas, data, tiny_model):
    with start_replicas(
        data_root=data, device="cpu", encoders=[{"name": "tiny", "model": str(tiny_model)}]
    ) as replicas:
        yield replicas


@pytest.fixture
def start_worker(new_home, redis_url, data):
    """Return a context manager that starts a worker of trainings, and kills it at the end."""

    @contextmanager
    def started(home, *options):
        told = {"LATHE_HOME": str(home), "LATHE_REDIS_URL": redis_url, "LATHE_DATA_ROOT": str(data)}
        told |= {"LATHE_JOB_THREADS": "1", "LATHE_DEVICE": "cpu"}
        process = subprocess.Popen([*LATHE, "worker", *options], env=os.environ | told)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    return started


def train(app, name, **changed):
    answer = app.client.post("/train", json={"name": name, "method": "pft", "job": JOB} | changed, headers=app.admin)
    assert answer.status_code == 202, answer.text
    return f"/jobs/{answer.json()['job_id']}"


def embed(app, model):
    answer = app.client.post("/v1/embeddings", json={"model": model, "input": TEXTS})
    return np.array([row["embedding"] for row in answer.json()["data"]]) if answer.status_code == 200 else None


def checkpoints(home):
    return list((home / "training").glob("*/training/checkpoint-*/whole.json"))


@pytest.mark.release
def test_a_training_goes_on_after_its_worker_was_killed_and_every_replica_serves_its_encoder(
    replicas, start_worker, new_home
):
    """Its log is readable elsewhere while it runs, a chain is fitted on it by a worker, and a rollback reaches all."""
    here, there = replicas
    home = new_home()
    url = train(here, "mine")
    assert "lathe worker --training" in there.client.get(url).json()["message"]
    with start_worker(home, "--training") as worker:
        eventually(lambda: checkpoints(home), 150)
        eventually(lambda: there.client.get(f"{url}/log").status_code == 200)
        worker.kill()
        eventually(lambda: there.client.get(url).json()["state"] == "queued", 30)
    with start_worker(home, "--training"):
        eventually(lambda: here.client.get(url).json()["finished_at"], 150)
        job = here.client.get(url).json()
        assert (job["state"], job["result"]["encoder"]) == ("succeeded", "mine@1"), job
        assert there.client.get(f"{url}/log").text == here.client.get(f"{url}/log").text != ""

        second = train(there, "mine", job=JOB | {"training": TRAINING}, promote=True)
        eventually(lambda: there.client.get(second).json()["finished_at"], 150)
    for app in replicas:
        eventually(lambda app=app: embed(app, "mine@2") is not None, 20)
        described = app.client.get("/encoders/mine/versions").json()
        assert (described["live"], [version["version"] for version in described["versions"]]) == (2, [1, 2])
        assert described["versions"][0]["provenance"]["training"]["resumed_from"] > 0
        assert not list((app.settings.home / "training").iterdir())
    newest = embed(here, "mine@2")
    for app in replicas:  # vectors cached in Redis are float16
        eventually(lambda app=app: np.abs(embed(app, "mine") - newest).max() < 1e-3, 20)

    fit = {"name": "after", "encoder": "mine@2", "steps": [{"kind": "r2"}], "source": {"texts": [*WORDS, *TEXTS]}}
    answer = here.client.post("/fit-transform", json=fit, headers=here.admin)
    assert answer.status_code == 202, answer.text
    with start_worker(new_home()):  # another machine: its copy of the encoder comes from Redis
        eventually(lambda: here.client.get(f"/jobs/{answer.json()['job_id']}").json()["finished_at"], 150)
    job = here.client.get(f"/jobs/{answer.json()['job_id']}").json()
    assert job["state"] == "succeeded", job["error"]
    assert there.services.registry.manifest("after", 1)["encoder"]["name"] == "mine@2"

    assert there.client.post("/encoders/mine/rollback", headers=there.admin).json()["live"] == 1
    eventually(lambda: np.abs(embed(here, "mine") - newest).max() > 0.01, 20)


@pytest.mark.release
def test_a_worker_of_trainings_that_is_stopped_gives_its_job_back(replicas, start_worker, new_home):
    here, there = replicas
    home = new_home()
    url = train(here, "stopped", job=JOB | {"training": TRAINING | {"epochs": 5000}})
    with start_worker(home, "--training") as worker:
        eventually(lambda: checkpoints(home), 150)
        worker.terminate()
        assert worker.wait(20) == 0
    assert there.client.get(url).json()["state"] == "queued"
    assert there.client.delete(url, headers=there.admin).json()["state"] == "cancelled"


@pytest.mark.release
def test_a_training_reads_only_files_of_its_workers_data_folder(replicas, start_worker, new_home, data):
    """The server allowed the file, which has since become a link that leads out of the folder."""
    here, _ = replicas
    swapped = data / "swapped.jsonl"
    swapped.write_text((data / "pairs.jsonl").read_text())
    url = train(here, "never", job=JOB | {"sources": [{"jsonl": "swapped.jsonl"}]})
    outside = data.parent / f"{data.name}-outside.jsonl"
    swapped.rename(outside)
    swapped.symlink_to(outside)
    with start_worker(new_home(), "--training", "--burst") as worker:
        assert worker.wait(60) == 0
    job = here.client.get(url).json()
    assert job["state"] == "failed" and "outside the server's data folder" in job["error"]
