"""Malformed or hostile jobs in Redis: they are checked when they are read, and run no code."""

import json
import secrets
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import REGISTRY

from lathe.service.home import Home
from lathe.service.jobs.kinds.training import FitJob
from lathe.service.jobs.process import run_job
from lathe.service.jobs.redis_queue import LOST_SECONDS, QUEUE, RUNNING, RedisQueue, build_queue_name
from lathe.service.jobs.redis_record import RECORD
from lathe.service.redis.connection import RedisConnection
from lathe.service.services import Services
from lathe.service.settings import read_settings
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.requests import NewFit

pytestmark = pytest.mark.services


@pytest.fixture
def queue(redis_server, tmp_path):
    """A worker's part of the queue."""
    return RedisQueue(RedisConnection(redis_server.url), Home(tmp_path / "home"))


@pytest.fixture
def jobs(redis_server, tmp_path):
    """A server's part, which starts no worker."""
    (tmp_path / "home").mkdir()
    queue = RedisQueue(RedisConnection(redis_server.url), Home(tmp_path / "home"))
    queue.connection.mark_up()
    return queue


@pytest.fixture
def settings(redis_server, tmp_path):
    (tmp_path / "data").mkdir()
    return read_settings(home=tmp_path / "home", redis_url=redis_server.url, data_root=tmp_path / "data")


@pytest.fixture
def run_request(queue, settings):
    """Return a function that writes any job into Redis, runs it as a worker does, and returns the ended job."""

    def done(kind, asked, sent=None, /, **fields):
        job = queue.submit("fit", asked, sent or {})
        written = {"job": json.dumps(asdict(job) | {"kind": kind})} | fields
        queue.client.hset(RECORD + job.id, mapping=written)
        if queue.take("jobs") is not None:
            run_job(queue, job.id, settings)
        return queue.get(job.id)

    return done


def fit(source="source.npy", encoder=None, files=("source.npy",), **changed):
    request = NewFit(name="mine", steps=[{"kind": "r2"}], source=source)
    job = FitJob(encoder=encoder, request=request, target_encoder=None, files=())
    return job.to_json() | {"files": list(files)} | changed


def npy(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    return (tmp_path / "rows.npy").read_bytes()


@pytest.mark.parametrize("kind", ["os.system", "lathe.service.jobs.kinds.training:FitJob", "fit\n"])
def test_an_unknown_job_kind_fails_the_job_and_runs_no_code(kind, run_request, tmp_path):
    job = run_request(kind, {"args": [f"touch {tmp_path}/ran"]})
    assert (job.state, job.kind) == ("failed", "unknown") and "damaged" in job.error
    assert not (tmp_path / "ran").exists()


REINDEX = {
    "index": "docs",
    "spec": {"encoder": None, "encoder_fingerprint": None, "width": 8, "raw_space_id": "a", "chain": "none"}
    | {"dimensions": 8, "space_id": "a"},
    "encoder": None,
    "text_field": "text",
}


@pytest.mark.parametrize(
    ("kind", "asked", "where"),
    [
        ("fit", [], "JSON"),
        ("fit", fit(files=["../../evil"]), "files"),
        ("fit", fit(request={"name": "mine", "steps": "os.system", "source": "x"}), "steps"),
        ("advise", {"request": {"source": 5}, "encoder": None, "files": []}, "request.source"),
        ("advise", {"request": {"source": "x", "fit": "../x"}, "encoder": None, "files": []}, "request.fit"),
        ("reindex", REINDEX | {"index": "../../etc"}, "index"),
    ],
)
def test_a_malformed_job_request_fails_the_job_and_names_the_field(kind, asked, where, run_request):
    job = run_request(kind, asked)
    assert job.state == "failed" and "the request of the job is damaged" in job.error and where in job.error


def test_job_inputs_with_paths_as_names_are_refused(run_request, tmp_path):
    job = run_request("fit", fit(), {"source.npy": npy(tmp_path)}, files=json.dumps(["../../../evil"]))
    assert job.state == "failed" and "inputs in Redis are damaged" in job.error
    assert not list(tmp_path.rglob("evil"))


def test_a_job_cannot_read_files_outside_the_workers_data_root(run_request, tmp_path):
    (tmp_path / "secret.txt").write_text("a\nb\nc\nd\n")
    for source in (str(tmp_path / "secret.txt"), "../secret.txt", "/etc/passwd", "hf://x/y"):
        assert run_request("fit", fit(source, files=[])).state == "failed"
    out_of_domain = fit(out_of_domain=None)
    out_of_domain["request"]["out_of_domain"] = {"theirs": str(tmp_path / "secret.txt")}
    del out_of_domain["out_of_domain"]
    job = run_request("fit", out_of_domain, {"source.npy": npy(tmp_path)})
    assert job.state == "failed" and "outside" in job.error


def test_a_job_cannot_load_a_model_with_untrusted_remote_code(run_request):
    untrusted = asdict(DEFAULT_ENCODER) | {"model": "somebody/model", "trust_remote_code": True}
    job = run_request("fit", fit(encoder=None, files=["source.npy"]) | {"encoder": untrusted}, {"source.npy": b""})
    assert job.state == "failed" and "somebody/model has code of its own" in job.error


def test_a_job_cannot_send_a_key_to_an_api_that_is_not_in_the_workers_settings(run_request, embeddings_server):
    upstream = {"url": embeddings_server.url, "protocol": "openai", "model": "m", "api_key_env": "PATH"}
    asked = fit(encoder=None, files=["source.npy"]) | {"encoder": asdict(DEFAULT_ENCODER) | {"upstream": upstream}}
    job = run_request("fit", asked, {"source.npy": b""})
    assert job.state == "failed" and "is not one of this worker's" in job.error and embeddings_server.paths == []


def damaged(what="job"):
    """Return how many damaged values were counted."""
    return REGISTRY.get_sample_value("lathe_redis_damaged_total", {"what": what}) or 0


NOT_RECORDS = [
    {"job": b"\xff\xfe"},
    {"job": b"[" * 200_000},
    {"job": b'"os.system"'},
    {"now": b"{"},
    {"tries": b"many"},
    {"queue": b"\xff"},
    {"end": b"null"},
    {"end": {"state": "running"}},
    {"end": {"state": "succeeded", "message": "\ud800"}},
    {"end": {"state": "succeeded", "id": "0" * 22}},
]


@pytest.mark.parametrize("content", NOT_RECORDS, ids=[str(index) for index in range(len(NOT_RECORDS))])
def test_a_damaged_job_record_is_a_failed_job_and_does_not_affect_others(content, jobs, queue, caplog):
    """Others are listed, taken and requeued as usual, and the damage is logged once."""
    bad, lost, good = jobs.submit("fit", {}, {}), jobs.submit("fit", {}, {}), jobs.submit("fit", {}, {})
    for _ in range(2):
        queue.take("jobs")
    spoil(queue, bad, content)
    for job in (bad, lost):
        queue.client.zincrby(RUNNING, -LOST_SECONDS - 1, job.id)
    before = damaged()
    found = {job.id: job for job in jobs.list()}
    assert found[bad.id].state == "failed" and "damaged" in found[bad.id].error and found[good.id].state == "queued"
    assert damaged() == before + 1 and jobs.get(bad.id) == jobs.cancel(bad.id) == found[bad.id]
    jobs.maintain()
    assert jobs.get(lost.id).state == "queued" and queue.client.zcard(RUNNING) == 0
    queue.client.lpush(QUEUE + build_queue_name(), bad.id)
    taken = [queue.take("jobs") for _ in range(3)]
    assert [job and job.id for job in taken] == [None, lost.id, good.id]
    said = [record for record in caplog.records if bad.id in record.getMessage()]
    assert len(said) == 1


def spoil(queue, job, content):
    """Overwrite fields of a job's record. A dict stands for the job with other values."""
    written = {
        name: json.dumps(asdict(job) | value) if isinstance(value, dict) else value for name, value in content.items()
    }
    if "job" in content:
        queue.client.hdel(RECORD + job.id, "now")
    queue.client.hset(RECORD + job.id, mapping=written)


def test_invalid_job_ids_and_keys_of_other_types_are_skipped_and_counted(jobs, queue, caplog):
    job, other = jobs.submit("fit", {}, {}), jobs.submit("fit", {}, {})
    client, name = queue.client, secrets.token_bytes(8).hex().encode() + b"\xff"
    client.delete(RECORD + other.id)
    client.set(RECORD + other.id, "no hash")
    client.zadd("lathe:jobs", {name: 1, "../../x": 2})
    client.zadd(RUNNING, {name: 1})
    client.lpush(QUEUE + build_queue_name(), name, "../../x")
    before = damaged("job id")
    found = {job.id: job.state for job in jobs.list()}
    assert found == {job.id: "queued", other.id: "failed"} and damaged("job id") == before + 2
    jobs.maintain()
    assert client.zcard(RUNNING) == 0
    taken = [queue.take("jobs") for _ in range(4)]
    assert [found and found.id for found in taken] == [None, None, job.id, None]
    assert client.zrange(RUNNING, 0, -1) == [job.id.encode()]
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if name[:16].decode() in line]) == 1


def test_damaged_sizes_of_results_do_not_prevent_storing_results(queue, jobs, tmp_path):
    job = jobs.submit("fit", {}, {})
    queue.client.hset("lathe:results", mapping={b"\xff": "x", job.id: "many"})
    (tmp_path / "vectors.npy").write_bytes(b"result")
    queue.files.enforce_limit()
    queue.client.hdel("lathe:results", job.id)
    assert queue.files.store_results(job.id, [tmp_path / "vectors.npy"]) == []


def test_a_damaged_request_of_a_reindexing_is_skipped_and_counted(jobs, queue):
    services = SimpleNamespace(jobs=jobs)
    job = jobs.submit("reindex", REINDEX, {})
    assert list(Services.list_reindex_jobs(services, "docs")) == [job.id]
    queue.client.hset(RECORD + job.id, "request", b"\xff")
    before = damaged("job request")
    assert Services.list_reindex_jobs(services, "docs") == {} and damaged("job request") == before + 1
