"""Jobs of a real server process that is killed, restarted, or finds them damaged."""

import json
import os
import signal
import time

import pytest


@pytest.fixture(scope="module")
def texts(paragraphs):
    """Thousands, to be encoded for a while."""
    return [f"{number}: {text}" for number in range(15) for text in paragraphs]


def running_pid(home, job_id):
    return json.loads((home / "jobs" / job_id / "job.json").read_text())["pid"]


@pytest.fixture(scope="module")
def home(new_home):
    return new_home()


@pytest.fixture(scope="module")
def first(serving, home):
    """A server that its tests share, the last of which kills it."""
    with serving(home) as server:
        yield server


@pytest.fixture(scope="module")
def server(serving, home):
    """The next one on the same state; the last test ends it."""
    with serving(home) as server:
        yield server


def test_a_fit_killed_half_way_says_failed_and_leaves_no_half_chain(first, texts):
    job_id = first.submit(texts[:3000])
    first.wait(job_id, "running")
    while first.client.get(f"/jobs/{job_id}").json()["progress"] == 0:
        time.sleep(0.05)
    os.kill(running_pid(first.home, job_id), signal.SIGKILL)
    job = first.wait(job_id, "failed", "succeeded", seconds=5)
    assert job["state"] == "failed" and "killed" in job["error"] and job["finished_at"]
    assert first.client.get("/chains/mine").status_code == 404
    assert {chain["name"] for chain in first.client.get("/chains").json()} == {"compact", "debias"}
    assert first.client.post("/embed", json={"inputs": "x", "dimensions": 32}).headers["x-chain"] == "compact@1"

    cancelled = first.submit(texts[:3000])
    first.wait(cancelled, "running")
    assert first.client.delete(f"/jobs/{cancelled}", headers=first.admin).json()["state"] == "cancelled"
    job = first.wait(first.submit(texts[:100]), "succeeded", "failed")
    assert job["result"]["chain"] == "mine@1"


def test_a_job_goes_on_while_its_server_is_killed_and_restarted(first, texts, request):
    running, queued = first.submit(texts[:200]), first.submit(texts[:60], name="later")
    first.wait(running, "running")
    first.stop(signal.SIGKILL)
    server = request.getfixturevalue("server")
    assert server.wait(running, "succeeded", "failed")["state"] == "succeeded"
    assert server.wait(queued, "succeeded", "failed")["result"]["chain"] == "later@1"


def test_a_damaged_record_of_a_job_stops_neither_the_start_nor_the_others(start_app, tmp_path):
    home = tmp_path / "home"
    folder = home / "jobs" / ("0" * 22)
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("{")
    (home / "jobs" / "junk").mkdir()
    with start_app(home=home) as app:
        (listed,) = app.client.get("/jobs").json()
        assert listed["state"] == "failed" and "damaged" in listed["error"]


def test_a_watcher_of_a_job_does_not_hold_up_the_end(server, texts):
    job_id = server.submit(texts[:3000])
    server.wait(job_id, "running")
    with server.client.stream("GET", f"/jobs/{job_id}/events") as stream:
        next(stream.iter_lines())
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(40) == 0
        assert time.monotonic() - begun < 10
    os.kill(running_pid(server.home, job_id), signal.SIGKILL)
