import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest

from lathe.service.home import Home
from lathe.service.redis.replica import Replica
from tests.helpers import LATHE, eventually, require_one_line

pytestmark = [pytest.mark.services, pytest.mark.timeout(400)]

QUICK = [{"kind": "r2"}]
ENDED = ("succeeded", "failed", "cancelled")


def geopres(steps):
    return [{"kind": "geopres", "dimensions": 16, "steps": steps}]


def endless():
    """Return the step list of a fit that does not end within a test."""
    return geopres(1_000_000)


class Worker:
    """A `lathe worker` in a process of its own."""

    def __init__(self, folder, url, **environment):
        self.log, self.errors = folder / "worker.log", folder / "worker.errors"
        told = {"LATHE_HOME": str(folder / "home"), "LATHE_REDIS_URL": url, "LATHE_JOB_THREADS": "1"} | environment
        with self.log.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*LATHE, "worker"],
                env={key: value for key, value in (os.environ | told).items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def horse(self):
        """Return the process of the job that runs, a fork of the worker's fork server, or None if no job runs."""
        for child in children(self.process.pid):
            for grandchild in children(child):
                with contextlib.suppress(OSError):
                    if b"lathe.service.jobs.process" in Path(f"/proc/{grandchild}/cmdline").read_bytes():
                        return int(grandchild)
        return None

    def listens(self):
        return b"taking jobs" in self.log.read_bytes()


def children(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def is_alive(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def start_worker(tmp_path_factory):
    """Start a worker. It ends with the file's tests, unless they end it."""
    started = []

    def start(url, **environment):
        started.append(Worker(tmp_path_factory.mktemp("worker"), url, **environment))
        return started[-1]

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait(10)


@pytest.fixture(scope="module")
def lasting_redis(start_redis):
    server = start_redis()
    server.stop()
    server.start("--appendonly", "yes")
    return server


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Create the data root of servers and workers, with two files of vectors."""
    folder = tmp_path_factory.mktemp("data")
    bad = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    bad[17, 3] = np.nan
    np.save(folder / "bad.npy", bad)
    np.save(folder / "large.npy", np.random.default_rng(1).normal(size=(200, 64)).astype(np.float32))
    return folder


class Api:
    """A running server, and how it is asked."""

    def __init__(self, server):
        self.server = server
        self.client = server.client

    def post(self, path, **body):
        return self.client.post(path, json=body, headers=self.server.admin)

    def submit(self, name, steps, **body):
        answer = self.post("/fit-transform", name=name, steps=steps, **({"source": {"path": "large.npy"}} | body))
        assert answer.status_code == 202, answer.text
        return answer.json()["job_id"]

    def job(self, job_id):
        answer = self.client.get(f"/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, job_id, *states, seconds=90):
        return self.server.wait(job_id, *states, seconds=seconds)

    def busy(self, job_id, seconds=60):
        """A job once it is at work."""
        deadline = time.monotonic() + seconds
        while not (job := self.job(job_id))["progress"] > 0:
            assert job["state"] not in ENDED and time.monotonic() < deadline, job
            time.sleep(0.1)
        return job

    def versions(self, name):
        answer = self.client.get(f"/chains/{name}")
        return [version["version"] for version in answer.json()["versions"]] if answer.status_code == 200 else []


@pytest.fixture(scope="module")
def api(serving, new_home, lasting_redis, data):
    told = {"LATHE_REDIS_URL": lasting_redis.url, "LATHE_DATA_ROOT": str(data), "LATHE_LOG_LEVEL": "warning"}
    with serving(new_home(), **told) as server:
        yield Api(server)


@pytest.fixture(scope="module")
def served(lasting_redis, chains, tmp_path_factory):
    """Publish a chain of two versions, the first live, and return its name."""
    replica = Replica(Home(tmp_path_factory.mktemp("publisher")), lasting_redis.url)
    replica.bring_up_to_date()
    for chain in chains[:2]:
        replica.registry.publish(chain, "served", None)
    return "served"


@pytest.fixture
def worker(crew):
    return crew.one()


class Crew:
    """The workers of this file: at least one, whatever tests did to others."""

    def __init__(self, start):
        self.start = start
        self.workers = []

    def hire(self):
        self.workers.append(self.start())
        eventually(self.workers[-1].listens, 60)
        return self.workers[-1]

    def one(self):
        alive = [worker for worker in self.workers if worker.process.poll() is None]
        return alive[-1] if alive else self.hire()


@pytest.fixture(scope="module")
def crew(start_worker, lasting_redis, data):
    return Crew(lambda: start_worker(lasting_redis.url, LATHE_DATA_ROOT=str(data)))


def events(api, job_id):
    with api.client.stream("GET", f"/jobs/{job_id}/events", timeout=90) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    return [httpx2.Response(200, content=line).json() for line in lines]


def test_a_fit_on_a_worker_goes_from_queued_to_succeeded_and_its_chain_serves(api, crew):
    rows = np.random.default_rng(2).normal(size=(60, 8)) + 1
    steps = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 4, "steps": 800}]
    job_id = api.submit("mine", steps, source={"vectors": rows.tolist()}, transform=True)
    queued = api.job(job_id)
    assert queued["state"] == "queued" and "no worker" in queued["message"]
    crew.hire()
    told = events(api, job_id)
    states = [job["state"] for job in told]
    changes = [state for index, state in enumerate(states) if states[index - 1 : index] != [state]]
    assert changes[-2:] == ["running", "succeeded"] and changes[:-2] in ([], ["queued"])  # it is taken at once
    progress = [job["progress"] for job in told]
    assert progress == sorted(progress) and any(0 < part < 1 for part in progress)
    job = api.job(job_id)
    assert job["result"]["chain"] == "mine@1" and job["result"]["promoted"] and job["error"] is None
    assert job["progress"] == 1 and job["finished_at"] > job["created_at"]
    answer = api.client.get(job["result"]["vectors_url"])
    vectors = np.load(io.BytesIO(answer.content))
    assert int(answer.headers["content-length"]) == len(answer.content) and vectors.shape == (60, 4)
    reduced = api.post("/reduce", vectors=rows.tolist(), chain="mine")
    assert reduced.headers["x-chain"] == "mine@1"
    np.testing.assert_allclose(reduced.json()["vectors"], vectors, atol=1e-5)
    assert api.versions("mine") == [1]


def test_cancelling_a_running_job_ends_its_process_and_the_worker_takes_the_next(api, worker, lasting_redis):
    """Failed gates and bad sources are reported as in a server without workers. No command line shows the password."""
    vectors = {"vectors": np.eye(60, 8).tolist()}
    assert api.wait(api.submit("gated", QUICK, source=vectors), *ENDED)["result"]["promoted"]
    endless_job = api.submit("endless", endless())
    api.busy(endless_job)
    unmet = api.submit("gated", QUICK, source=vectors, gates={"recall_at_10": 2.0})
    bad = api.submit("bad", QUICK, source={"path": "bad.npy"})
    waiting = api.submit("waiting", QUICK)
    horse = worker.horse()
    shown = read_command_lines()
    assert any(b"lathe.service.jobs.process" in line for line in shown)
    assert not [line for line in shown if lasting_redis.password.encode() in line]

    begun = time.monotonic()
    assert api.client.delete(f"/jobs/{waiting}", headers=api.server.admin).json()["state"] == "cancelled"
    cancelled = api.client.delete(f"/jobs/{endless_job}", headers=api.server.admin).json()
    assert (cancelled["state"], cancelled["error"]) == ("cancelled", None) and time.monotonic() - begun < 5
    eventually(lambda: not is_alive(horse), 5)

    job = api.wait(unmet, *ENDED)
    assert job["state"] == "succeeded" and not job["result"]["promoted"]
    assert job["result"]["failed_gates"] and job["result"]["chain"] == "gated@2"
    assert api.client.get("/chains/gated").json()["live"] == 1
    failed = api.wait(bad, *ENDED)
    assert failed["state"] == "failed" and "bad.npy" in failed["error"]
    assert api.versions("bad") == api.versions("endless") == api.versions("waiting") == []
    assert api.job(endless_job)["state"] == api.job(waiting)["state"] == "cancelled"
    assert worker.process.poll() is None


def read_command_lines():
    """Read the command lines of all processes other than Redis."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and "redis-server" not in (folder / "comm").read_text():
                found.append((folder / "cmdline").read_bytes())
    return found


@pytest.mark.release
def test_a_job_of_a_killed_worker_is_requeued_and_done_once_by_another(api, crew):
    worker = crew.one()
    job_id = api.submit("slow", geopres(4000), transform=True)
    api.busy(job_id)
    horse = worker.horse()
    worker.process.kill()
    killed = time.monotonic()
    worker.process.wait(10)
    queued = api.wait(job_id, "queued", *ENDED, seconds=15)
    assert queued["state"] == "queued" and "lost" in queued["message"] and time.monotonic() - killed < 13
    assert not is_alive(horse)  # with its worker
    crew.hire()
    job = api.wait(job_id, *ENDED)
    assert job["state"] == "succeeded" and job["result"]["chain"] == "slow@1"
    assert api.versions("slow") == [1]
    assert np.load(io.BytesIO(api.client.get(f"/jobs/{job_id}/vectors").content)).shape == (200, 16)


def test_sigterm_lets_a_worker_finish_its_job(api, crew):
    worker = crew.one()
    job_id = api.submit("last", geopres(1500))
    api.wait(job_id, "running")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0
    assert api.job(job_id)["state"] == "succeeded" and api.versions("last") == [1]


def test_a_worker_exits_1_with_a_wrong_or_missing_url_or_device_or_an_unwritable_folder(
    run, redis_server, own_redis, tmp_path
):
    own_redis.stop()
    (tmp_path / "file").write_text("")
    for told, said in (
        (
            {"LATHE_REDIS_URL": f"redis://:wrong-horse@127.0.0.1:{redis_server.port}/0"},
            "rejects the password of LATHE_",
        ),
        ({"LATHE_REDIS_URL": ""}, "set LATHE_REDIS_URL"),
        # No machine that runs Redis's tests is a Mac.
        ({"LATHE_REDIS_URL": own_redis.url, "LATHE_DEVICE": "mps"}, "the device mps is not available"),
        ({"LATHE_DEVICE": "cpu", "LATHE_HOME": tmp_path / "file/home"}, "cannot be written"),
    ):
        require_one_line(run("worker", **told), said)


def test_a_worker_waits_for_an_unreachable_redis_until_it_is_stopped(start_worker, own_redis):
    own_redis.stop()
    waiting, unwanted = start_worker(own_redis.url), start_worker(own_redis.url)
    for worker in (waiting, unwanted):
        eventually(lambda worker=worker: b"Redis cannot be reached" in worker.log.read_bytes(), 60)
        assert worker.process.poll() is None
    unwanted.process.send_signal(signal.SIGTERM)
    assert unwanted.process.wait(10) == 0
    own_redis.start()
    eventually(lambda: own_redis.client.keys("lathe:workers:*"), 10)
    eventually(waiting.listens, 5)
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.process.wait(10) == 0
    assert own_redis.password not in waiting.log.read_text() + waiting.errors.read_text()


def test_worker_check_imports_no_torch(redis_server):
    script = "import sys; from lathe.service.cli.main import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    told = os.environ | {"LATHE_REDIS_URL": redis_server.url}

    done = subprocess.run(
        [sys.executable, "-P", "-c", script, "worker", "--check"], env=told, capture_output=True, text=True, timeout=60
    )

    assert "no worker of" in done.stderr
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.release
def test_worker_check_exits_1_if_no_worker_of_this_machine_sends_heartbeats(run, start_worker, own_redis):
    """With Redis unreachable it exits 0 and says that the state is unknown."""
    status, _, err = run("worker", "--check", LATHE_REDIS_URL=own_redis.url)
    assert status == 1 and f"no worker of {socket.gethostname()}" in err
    worker = start_worker(own_redis.url)
    eventually(lambda: run("worker", "--check")[0] == 0, 60)
    worker.process.send_signal(signal.SIGSTOP)
    try:
        own_redis.client.flushall()  # what lost its data hears of it again
        assert run("worker", "--check")[0] == 1
    finally:
        worker.process.send_signal(signal.SIGCONT)
    eventually(lambda: run("worker", "--check")[0] == 0, 20)
    worker.process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: run("worker", "--check")[0] == 1, 30)
    finally:
        worker.process.send_signal(signal.SIGCONT)
    eventually(lambda: run("worker", "--check")[0] == 0, 20)
    own_redis.stop()
    status, out, _ = run("worker", "--check")
    assert status == 0 and "Redis cannot be reached" in out and "is unknown" in out


@pytest.mark.release
def test_reindexing_an_embedded_index_runs_in_the_servers_own_worker(api):
    vectors = np.random.default_rng(3).normal(size=(300, 384))
    put = api.client.put("/indexes/small", json={"chain": "none"}, headers=api.server.admin)
    assert put.status_code in (200, 201), put.text
    upserted = api.post("/indexes/small/upsert", ids=[str(row) for row in range(300)], vectors=vectors.tolist())
    assert upserted.status_code == 200, upserted.text
    answer = api.post("/indexes/small/reindex", chain="compact")
    assert answer.status_code == 202, answer.text
    job = api.wait(answer.json()["job_id"], *ENDED)
    assert job["state"] == "succeeded" and job["result"]["rows"] == 300 and job["kind"] == "reindex"
    assert api.client.get("/indexes/small").json()["chain"] == "compact@1"
    found = api.post("/indexes/small/search", vectors=vectors[:2].tolist(), k=1)
    assert found.status_code == 200, found.text


def is_idle(pid):
    """Return whether a process is gone or used little processor time within a second."""

    def ticks():
        try:
            return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        except OSError:
            return 0

    before = ticks()
    time.sleep(1)
    return ticks() - before < 10


@pytest.mark.release
def test_without_redis_vectors_are_served_and_jobs_and_administration_answered_503(
    api, worker, served, lasting_redis, sentences
):
    """A running job goes on and its result is stored once Redis is back."""
    rows = np.eye(3, 8).tolist()
    assert api.client.put("/indexes/other", json={"chain": "none"}, headers=api.server.admin).status_code in (200, 201)
    live = api.client.get(f"/chains/{served}").json()["live"]
    before = api.post("/embed", inputs=sentences, dimensions=64).json()
    fit = api.submit("through", geopres(600), transform=True)
    api.busy(fit)
    horse = worker.horse()
    lasting_redis.stop()
    unavailable = {
        "list": lambda: api.client.get("/jobs"),
        "job": lambda: api.client.get(f"/jobs/{fit}"),
        "fit": lambda: api.post("/fit-transform", name="new", steps=QUICK, source={"path": "large.npy"}),
        "promote": lambda: api.post(f"/chains/{served}/promote", version=1),
        "rollback": lambda: api.post(f"/chains/{served}/rollback"),
        "delete": lambda: api.client.delete(f"/chains/{served}/1", headers=api.server.admin),
        "reindex": lambda: api.post("/indexes/other/reindex", chain="none"),
    }
    for name, call in unavailable.items():
        begun, answer = time.monotonic(), call()
        assert answer.status_code == 503, (name, answer.text)
        assert answer.json()["error"]["code"] == "redis_unreachable" and "retry-after" in answer.headers
        assert time.monotonic() - begun < 6
    for _ in range(2):
        np.testing.assert_allclose(api.post("/embed", inputs=sentences, dimensions=64).json(), before, atol=1e-5)
        assert api.post("/embed", inputs=[f"never seen {time.time()}"], chain="compact").status_code == 200
        assert api.post("/v1/embeddings", input="never seen").status_code == 200
        assert api.post("/reduce", vectors=rows, chain=served).headers["x-chain"] == f"{served}@{live}"
    health = api.client.get("/health")
    assert health.status_code == 200 and "Redis cannot be reached" in " ".join(health.json()["warnings"])
    metrics = api.client.get("/metrics")
    assert metrics.status_code == 200 and "lathe_redis_up 0.0" in metrics.text
    for path in ("/health/ready", "/health/live", "/info", "/chains", f"/chains/{served}", "/encoders", "/indexes"):
        assert api.client.get(path).status_code == 200, path
    eventually(lambda: is_idle(horse), 60)

    lasting_redis.start("--appendonly", "yes")
    eventually(lambda: api.client.get("/health").json()["warnings"] == [], 10)
    assert "lathe_redis_up 1.0" in api.client.get("/metrics").text and api.client.get("/jobs").status_code == 200
    assert api.post(f"/chains/{served}/promote", version=1).json()["live"] == 1
    later = api.submit("later", QUICK)
    for job_id, name in ((fit, "through"), (later, "later")):
        job = api.wait(job_id, *ENDED, seconds=60)
        assert job["state"] == "succeeded", job
        assert job["result"]["chain"] == f"{name}@1"
        eventually(lambda name=name: api.versions(name) == [1], 5)  # the copy follows in a moment
    assert np.load(io.BytesIO(api.client.get(f"/jobs/{fit}/vectors").content)).shape == (200, 16)
    assert api.client.delete(f"/chains/{served}/2", headers=api.server.admin).status_code == 200
    assert np.shape(api.post("/embed", inputs=sentences, dimensions=64).json()) == (len(sentences), 64)
