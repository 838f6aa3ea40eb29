"""Jobs submitted at one replica, and shown, followed or cancelled at another."""

import io
import json
import os
import subprocess

import numpy as np
import pytest

from tests.helpers import LATHE, eventually

pytestmark = [pytest.mark.services, pytest.mark.timeout(400)]

ROWS = (np.random.default_rng(0).normal(size=(400, 16)) + 1).tolist()


@pytest.fixture(scope="module")
def replicas(start_replicas):
    with start_replicas() as replicas:
        yield replicas


@pytest.fixture(scope="module")
def worker(new_home, redis_url):
    """Start a worker of the replicas' queue, and stop it with SIGTERM afterwards."""
    told = {"LATHE_HOME": str(new_home()), "LATHE_REDIS_URL": redis_url, "LATHE_JOB_THREADS": "1"}
    process = subprocess.Popen([*LATHE, "worker"], env=os.environ | told)
    yield process
    process.terminate()
    assert process.wait(60) == 0


def submit(app, path, **body):
    answer = app.client.post(path, json={"source": {"vectors": ROWS}} | body, headers=app.admin)
    assert answer.status_code == 202, answer.text
    return answer.json()["job_id"]


def state(app, job_id):
    answer = app.client.get(f"/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["state"]


def test_a_queued_job_is_shown_and_can_be_cancelled_at_another_replica(replicas):
    here, there = replicas
    job_id = submit(here, "/fit-transform", name="never", steps=[{"kind": "r2"}])
    assert there.client.get(f"/jobs/{job_id}").json() == here.client.get(f"/jobs/{job_id}").json()
    assert [job["id"] for job in there.client.get("/jobs").json()] == [job_id]
    assert there.client.delete(f"/jobs/{job_id}", headers=there.admin).json()["state"] == "cancelled"
    assert state(here, job_id) == "cancelled"


def test_events_and_vectors_of_a_fit_are_available_at_another_replica(replicas, worker):
    here, there = replicas
    steps = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 4, "steps": 300}]
    job_id = submit(here, "/fit-transform", name="mine", steps=steps, transform=True)
    with there.client.stream("GET", f"/jobs/{job_id}/events") as stream:
        told = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: ")]
    assert told[-1]["state"] == "succeeded" and {job["id"] for job in told} == {job_id}
    url = told[-1]["result"]["vectors_url"]
    answers = [app.client.get(url) for app in replicas]
    assert answers[0].content == answers[1].content
    vectors = np.load(io.BytesIO(answers[1].content))
    assert vectors.shape == (400, 4)
    eventually(lambda: there.services.registry.live("mine") == 1, 5)
    reduced = there.client.post("/reduce", json={"vectors": ROWS[:5], "chain": "mine"})
    np.testing.assert_allclose(reduced.json()["vectors"], vectors[:5], atol=1e-5)


@pytest.mark.release
def test_the_report_of_an_advise_job_is_available_at_another_replica(replicas, worker, finish):
    here, there = replicas
    job = finish(submit(here, "/advise"), there, seconds=300)
    assert job["state"] == "succeeded", job
    pages = [app.client.get(job["result"]["report_url"]) for app in replicas]
    assert pages[0].status_code == 200 and pages[0].content == pages[1].content and b"<html" in pages[0].content
