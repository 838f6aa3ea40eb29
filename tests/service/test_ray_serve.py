"""The app under a real local Ray Serve: its answers, and the arguments that are refused before it starts."""

import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest

from tests.helpers import find_free_port

pytestmark = pytest.mark.services

SERVING = """
import json, sys
from ray import serve
from lathe.service.ray_serve import Arguments, build
from lathe.training.distributed.engine import connect_cluster

with connect_cluster(None, cores=4):
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(build(Arguments(**json.loads(sys.argv[2]))), name="lathe")
    print("serving", flush=True)
    for _line in sys.stdin:
        states = serve.status().applications["lathe"].deployments["Lathe"].replica_states
        print(states.get("RUNNING", 0), flush=True)
    serve.shutdown()
"""
ADMIN = {"authorization": "Bearer for-all-replicas"}
QUEUED_TEXTS = 256
STARTS = 2
"""Ray gives up after 30 s, in which a machine that runs other tests may not get to start its processes."""
START_SECONDS = 240
"""A replica is a process that imports torch and Ray, on cores that other tests keep busy."""
SCALING = {"max_replicas": 2, "target_ongoing_requests": 2, "upscale_delay_s": 0}


class Served:
    """Lathe under a Ray Serve of its own, in a process of its own, for a Ray is one a process."""

    def __init__(self, home, port, **environment):
        for _ in range(STARTS):
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVING, str(port), json.dumps(SCALING)],
                env=os.environ | {"LATHE_HOME": str(home)} | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            if self.process.stdout.readline() == "serving\n":
                break
        else:
            pytest.fail("Ray Serve did not start; its errors are above")
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def replicas(self):
        self.process.stdin.write("how many\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def stop(self):
        self.client.close()
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory, one_redis):
    """Serve the app under Ray Serve with a Redis and an admin key."""
    environment = {
        "LATHE_REDIS_URL": one_redis.url,
        "LATHE_ADMIN_KEYS": "for-all-replicas",
        "LATHE_PUBLIC_WITHOUT_KEYS": "true",
        "LATHE_MAX_QUEUED_TEXTS": str(QUEUED_TEXTS),
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    }
    served = Served(tmp_path_factory.mktemp("served"), find_free_port(), **environment)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def ray_serve():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing Ray warns of its own affairs
        from lathe.service import ray_serve

        return ray_serve


@pytest.fixture
def deployment(ray_serve, monkeypatch, tmp_path):
    """Return a function that builds the Ray Serve deployment from arguments and environment variables."""

    def build(arguments, **environment):
        monkeypatch.setenv("LATHE_HOME", str(tmp_path))
        for name, value in ({"LATHE_PUBLIC_WITHOUT_KEYS": "true"} | environment).items():
            monkeypatch.setenv(name, value)
        return ray_serve.build(ray_serve.Arguments(**arguments))._bound_deployment

    return build


def submit(served, texts):
    """Submit a fit job, which waits because no worker runs, and return its id."""
    body = {"name": "mine", "steps": [{"kind": "r2"}], "source": {"texts": texts}}
    return served.client.post("/fit-transform", json=body, headers=ADMIN).json()["job_id"]


@pytest.mark.release
def test_embed_under_ray_serve_answers_the_same_vectors_and_headers_as_the_app(served, client, sentences):
    for more in ({}, {"dimensions": 64}):
        body = {"inputs": sentences} | more
        plain, ours = client.post("/embed", json=body), served.client.post("/embed", json=body)
        np.testing.assert_allclose(ours.json(), plain.json(), atol=1e-5)
        for header in ("content-type", "x-space-id", "x-chain", "x-dimensions"):
            assert ours.headers[header] == plain.headers[header]


@pytest.mark.release
def test_health_answers_ready_with_exactly_one_request_id_header_the_one_that_was_sent(served):
    answer = served.client.get("/health", headers={"x-request-id": "mine"})
    assert answer.json()["status"] == "ready" and answer.headers.get_list("x-request-id") == ["mine"]


@pytest.mark.release
def test_job_events_are_streamed_while_the_job_is_queued(served, sentences):
    job, states = submit(served, sentences), []
    with served.client.stream("GET", f"/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                states.append(json.loads(line.removeprefix("data: "))["state"])
                served.client.delete(f"/jobs/{job}", headers=ADMIN)
    assert (states[0], states[-1]) == ("queued", "cancelled")


@pytest.mark.release
def test_requests_over_max_queued_texts_are_answered_429_with_retry_after(served, sentences):
    texts = [f"{number}: {' '.join(sentences)}" for number in range(QUEUED_TEXTS)]
    bodies = [{"inputs": [f"{part} {text}" for text in texts]} for part in range(4)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: served.client.post("/embed", json=body), bodies))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert all(int(answer.headers["retry-after"]) >= 1 and "try again" in answer.text for answer in refused)


@pytest.mark.release
def test_ray_serve_starts_a_second_replica_for_requests_in_flight(served, sentences):
    assert served.replicas() == 1
    job = submit(served, sentences)
    with contextlib.ExitStack() as streams:  # in flight without work, so that the replica starts in little time
        for _ in range(16):
            streams.enter_context(served.client.stream("GET", f"/jobs/{job}/events"))
        deadline = time.monotonic() + START_SECONDS
        while served.replicas() < 2:
            assert time.monotonic() < deadline, "there is still one replica"
            time.sleep(0.2)
        answers = [served.client.post("/embed", json={"inputs": f"Sentence {number}."}) for number in range(20)]
        served.client.delete(f"/jobs/{job}", headers=ADMIN)
    assert {answer.status_code for answer in answers} == {200}


def test_build_sets_autoscaling_and_request_limits_from_arguments_and_settings(deployment):
    config = deployment(
        {"max_replicas": 4, "target_ongoing_requests": 8, "num_cpus": 2},
        LATHE_REDIS_URL="redis://localhost",
        LATHE_MAX_QUEUED_TEXTS="5000",
        LATHE_SHUTDOWN_SECONDS="50",
    )._deployment_config
    scaling = json.loads(config.autoscaling_config.model_dump_json())
    assert (scaling["min_replicas"], scaling["max_replicas"], scaling["target_ongoing_requests"]) == (1, 4, 8)
    assert config.max_ongoing_requests > 5000
    assert config.graceful_shutdown_timeout_s > 50


def test_build_refuses_several_replicas_without_redis(deployment):
    with pytest.raises(ValueError, match="max_replicas=2 needs LATHE_REDIS_URL"):
        deployment({"max_replicas": 2})


def test_build_refuses_to_serve_without_keys_unless_public_without_keys_is_set(deployment):
    with pytest.raises(ValueError, match="set LATHE_API_KEYS"):
        deployment({}, LATHE_PUBLIC_WITHOUT_KEYS="false")
    assert deployment({}, LATHE_PUBLIC_WITHOUT_KEYS="false", LATHE_API_KEYS="secret")
