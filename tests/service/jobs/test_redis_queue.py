"""What is particular to jobs in Redis: workers, their heartbeats, limits, and a Redis that refuses."""

import time
from dataclasses import replace
from importlib.metadata import version

import pytest
from redis import exceptions as redis_errors

from lathe.service.errors import UnavailableError, UnknownNameError
from lathe.service.home import Home
from lathe.service.jobs.redis_queue import (
    ALIVE_SECONDS,
    LOST_SECONDS,
    RedisQueue,
    build_queue_name,
    read_server_time,
)
from lathe.service.jobs.redis_record import FileLimits, build_file_key
from lathe.service.jobs.runner import JobThread, JobWorker
from lathe.service.processes.program import Spawner
from lathe.service.redis.connection import RedisConnection, as_unavailable

pytestmark = pytest.mark.services

FILES = {"source.npy": b"vectors", "source.texts.json": b"{}"}


@pytest.fixture
def open_queue(redis_server, tmp_path):
    """Return a function that opens the queue, each time as another server or worker does."""

    def opened(**limits):
        return RedisQueue(RedisConnection(redis_server.url), Home(tmp_path), FileLimits(**limits))

    return opened


@pytest.fixture
def jobs(open_queue):
    """Return the queue as a server has it."""
    return open_queue()


@pytest.fixture
def one(open_queue):
    """Return the queue as a worker has it."""
    return open_queue()


@pytest.fixture
def two(open_queue):
    """Return the queue as another worker has it."""
    return open_queue()


@pytest.fixture
def submit(jobs):
    """Return a function that submits a job."""

    def queued(kind="fit", files=FILES, **request):
        return jobs.submit(kind, request, files)

    return queued


@pytest.fixture
def end(jobs):
    """End a job as its process would."""

    def ended(job):
        return jobs.write_end(jobs.get(job.id).succeed({"chain": "mine@1"}))

    return ended


def waiting_in(jobs, queue=None):
    """Return the ids of the jobs in a queue, the next one first."""
    return [job_id.decode() for job_id in jobs.client.lrange(f"lathe:queue:{queue or build_queue_name()}", 0, -1)]


def keys(client, pattern="*"):
    """Return the Redis keys that match a pattern."""
    return {key.decode() for key in client.keys(pattern)}


def keys_of(client, job):
    """Return the Redis keys that contain a job's id."""
    return {key for key in keys(client) if job.id in key}


def beat(client, ago=0.0, queue=None, name="somebody"):
    """Record a worker's heartbeat from some seconds ago."""
    client.zadd(f"lathe:workers:{queue or build_queue_name()}", {f"a-machine/{name}": read_server_time(client) - ago})


def test_waiting_jobs_without_a_worker_are_warned_of(jobs, submit, redis_server):
    jobs.connection.mark_up()
    jobs.maintain()
    assert jobs.warnings() == [] and jobs.workers == {"jobs": 0, "trainings": 0}
    submit()
    jobs.maintain()
    (warning,) = jobs.warnings()
    assert "jobs wait (1)" in warning and version("lathe-service") in warning and "lathe worker" in warning
    beat(redis_server.client, ago=ALIVE_SECONDS + 1)
    jobs.maintain()
    assert len(jobs.warnings()) == 1 and jobs.workers["jobs"] == 0
    beat(redis_server.client)
    jobs.maintain()
    assert jobs.warnings() == [] and jobs.workers["jobs"] == 1
    jobs.connection.mark_down("Redis cannot be reached")
    assert jobs.warnings() == [] and jobs.workers is None


def test_the_end_of_a_job_is_written_only_once(jobs, submit, end):
    job = submit()
    first = end(job)
    assert first.state == "succeeded"
    assert jobs.write_end(job.fail("too late")) == first == jobs.get(job.id)


def test_a_result_over_the_size_limit_is_refused_by_name(open_queue, submit, tmp_path):
    jobs = open_queue(result_bytes=10)
    for name, size in (("vectors.npy", 11), ("report.html", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    job = submit()
    assert jobs.files.store_results(job.id, [tmp_path / "vectors.npy", tmp_path / "report.html"]) == ["vectors.npy"]
    assert jobs.files.read(job.id, "vectors.npy") is None and jobs.files.read(job.id, "report.html").size == 10


def test_prune_removes_the_oldest_ended_jobs_and_all_their_keys(jobs, open_queue, submit, end, redis_server, tmp_path):
    limited = open_queue(jobs=3)
    (tmp_path / "vectors.npy").write_bytes(b"result")
    waiting, ended = submit(), []
    for _ in range(4):
        ended.append(submit())
        limited.files.store_results(ended[-1].id, [tmp_path / "vectors.npy"])
        end(ended[-1])
    newest = submit()
    limited.prune()
    assert [job.id for job in jobs.list()] == [newest.id, ended[3].id, ended[2].id, waiting.id]
    for job in ended[:2]:
        assert keys_of(redis_server.client, job) == set()
        with pytest.raises(UnknownNameError):
            jobs.get(job.id)
    assert waiting_in(jobs)[0] == waiting.id  # one that has not ended is never removed
    assert jobs.open_result(ended[2].id, "vectors.npy").size == 6


def test_results_of_the_oldest_jobs_are_removed_over_the_limit_and_the_jobs_stay(
    jobs, open_queue, submit, end, tmp_path
):
    limited = open_queue(results_bytes=13)
    (tmp_path / "vectors.npy").write_bytes(b"result")
    ended = [submit() for _ in range(3)]
    for job in ended:
        limited.files.store_results(job.id, [tmp_path / "vectors.npy"])
        end(job)
    there = [jobs.open_result(job.id, "vectors.npy") for job in ended]
    assert [found is not None for found in there] == [False, True, True]
    assert len(jobs.list()) == 3


def test_prune_fails_a_job_that_waited_for_a_week(jobs, submit, redis_server):
    job = submit()
    redis_server.client.zincrby("lathe:jobs", -8 * 24 * 3600, job.id)
    jobs.prune()
    assert jobs.get(job.id).state == "failed" and "for a week" in jobs.get(job.id).error
    assert not redis_server.client.exists(build_file_key(job.id, "source.npy"))


def go_silent(jobs, job, seconds=LOST_SECONDS + 1):
    """Make a job's last heartbeat older by some seconds."""
    jobs.client.zincrby("lathe:running", -seconds, job.id)


def test_a_job_of_a_silent_worker_is_requeued_at_the_front_for_another_worker(jobs, one, two, submit, tmp_path):
    first, second = submit(), submit()
    taken = one.take("jobs")
    assert (taken.id, taken.state, taken.message) == (first.id, "running", "starting")
    assert jobs.get(first.id) == taken and two.take("jobs").id == second.id
    assert two.take("jobs") is None
    one.write_progress(replace(taken, progress=0.5, message="fitting"), tmp_path)
    assert (jobs.get(first.id).progress, jobs.get(first.id).message) == (0.5, "fitting")
    jobs.requeue_lost_jobs()
    assert one.record_job_heartbeat(first) == two.record_job_heartbeat(second) == "goes on"
    assert two.record_job_heartbeat(first) == "lost"
    go_silent(jobs, first)
    jobs.requeue_lost_jobs()
    assert jobs.get(first.id).state == "queued" and "its worker was lost" in jobs.get(first.id).message
    assert jobs.get(second.id).state == "running" and one.record_job_heartbeat(first) == "lost"
    third = submit()
    assert two.take("jobs").id == first.id and waiting_in(jobs) == [third.id]
    assert one.record_job_heartbeat(first) == "lost" and two.record_job_heartbeat(first) == "goes on"


def test_a_job_that_loses_its_worker_twice_fails_or_is_cancelled_if_that_was_asked(jobs, one, two, submit):
    for cancelled in (False, True):
        job = submit()
        one.take("jobs")
        two.release(job)
        assert jobs.get(job.id).state == "running"
        one.release(job)
        assert jobs.get(job.id).state == "queued" and two.take("jobs").id == job.id
        if cancelled:
            assert jobs.cancel(job.id).state == "running" and two.record_job_heartbeat(job) == "cancelled"
        go_silent(jobs, job)
        jobs.requeue_lost_jobs()
        ended = jobs.get(job.id)
        assert ended.state == ("cancelled" if cancelled else "failed") and (ended.error is None) == cancelled
    assert not jobs.client.exists("lathe:running")


def test_a_requeued_job_that_has_ended_is_not_taken_again(jobs, one, two, submit, end):
    job = submit()
    one.take("jobs")
    go_silent(jobs, job)
    jobs.requeue_lost_jobs()
    assert end(job).state == "succeeded"
    assert two.take("jobs") is None and not jobs.client.exists("lathe:running")
    assert jobs.get(job.id).state == "succeeded"


def test_a_job_with_missing_inputs_fails_and_asks_to_send_it_again(jobs, submit, redis_server, tmp_path):
    job = submit()
    assert redis_server.client.ttl(build_file_key(job.id, "source.npy")) == -1  # a full Redis would evict it else
    redis_server.client.delete(build_file_key(job.id, "source.npy"))
    problem = jobs.fetch_inputs(job.id, tmp_path)
    assert "inputs are missing" in problem and "send the job again" in problem


def test_prune_fails_a_job_that_is_neither_queued_nor_running(jobs, one, submit):
    lost, waiting, running = submit(), submit(), submit()
    jobs.client.lrem(f"lathe:queue:{build_queue_name()}", 0, lost.id)
    jobs.client.lmove(f"lathe:queue:{build_queue_name()}", f"lathe:queue:{build_queue_name()}", "RIGHT", "LEFT")
    assert one.take("jobs").id == running.id
    jobs.prune()
    assert jobs.get(lost.id).state == "failed" and "in no queue" in jobs.get(lost.id).error
    assert (jobs.get(waiting.id).state, jobs.get(running.id).state) == ("queued", "running")


def test_with_a_full_redis_or_without_one_calls_raise_unavailable_error_in_seconds_and_write_nothing(
    own_redis, tmp_path
):
    jobs, client = RedisQueue(RedisConnection(own_redis.url), Home(tmp_path)), own_redis.client
    client.config_set("maxmemory", 100_000)
    with pytest.raises(UnavailableError) as failed:
        jobs.submit("fit", {}, FILES)
    assert failed.value.code == "redis_full" and not client.keys("lathe:job*") and not client.keys("lathe:queue*")
    assert jobs.list() == []
    client.config_set("maxmemory", 0)
    job = jobs.submit("fit", {}, FILES)
    own_redis.stop()
    calls = [
        lambda: jobs.submit("fit", {}, FILES),
        lambda: jobs.get(job.id),
        jobs.list,
        lambda: jobs.read_request(job.id),
        lambda: jobs.cancel(job.id),
        lambda: jobs.open_result(job.id, "vectors.npy"),
    ]
    for call in calls:
        begun = time.monotonic()
        with pytest.raises(UnavailableError) as failed:
            call()
        assert failed.value.code == "redis_unreachable" and time.monotonic() - begun < 6


def test_a_job_of_another_version_stays_in_that_versions_queue_and_names_it(
    jobs, open_queue, submit, redis_server, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr("lathe.service.jobs.redis_queue.version", lambda _: "9.9.9")
        assert build_queue_name() == "9.9.9"
        job = submit()
    beat(redis_server.client)
    assert waiting_in(jobs) == [] and waiting_in(jobs, "9.9.9") == [job.id]
    assert jobs.get(job.id).state == "queued" and "no worker of Lathe 9.9.9" in jobs.get(job.id).message
    with monkeypatch.context() as patched:
        patched.setattr("lathe.service.jobs.redis_queue.version", lambda _: "9.9.9")
        assert open_queue().take("jobs").id == job.id
    go_silent(jobs, job)
    jobs.maintain()
    assert jobs.get(job.id).state == "queued" and waiting_in(jobs, "9.9.9") == [job.id]
    assert jobs.cancel(job.id).state == "cancelled"


def test_trainings_and_reindexings_wait_in_queues_of_their_own_for_workers_of_their_own(
    jobs, submit, redis_server, tmp_path
):
    jobs.connection.mark_up()
    fit, training, adaptation, reindexing = submit(), submit("train"), submit("adapt"), submit("reindex")
    trainings, own = build_queue_name("trainings"), build_queue_name(home_id=Home(tmp_path).read_or_create_id())
    assert waiting_in(jobs) == [fit.id] and waiting_in(jobs, own) == [reindexing.id]
    assert waiting_in(jobs, trainings) == [training.id, adaptation.id]
    assert "start `lathe worker`" in jobs.get(fit.id).message
    assert "start `lathe worker --training`" in jobs.get(training.id).message
    beat(redis_server.client)
    jobs.maintain()
    assert jobs.workers == {"jobs": 1, "trainings": 0}
    (warning,) = jobs.warnings()
    assert "trainings wait (2)" in warning and "lathe worker --training" in warning
    beat(redis_server.client, queue=trainings)
    jobs.maintain()
    assert jobs.warnings() == [] and jobs.get(training.id).message == "waiting"


def test_a_try_of_a_worker_that_was_asked_to_stop_does_not_count(jobs, one, submit):
    job = submit("train")
    for _ in range(5):
        assert one.take("trainings").id == job.id
        one.release(job, counts=False)
        assert jobs.get(job.id).state == "queued"
    for _ in range(2):
        one.take("trainings")
        one.release(job)
    assert jobs.get(job.id).state == "failed"


def test_a_result_that_is_stored_again_counts_once(jobs, submit, tmp_path):
    job, log = submit("train"), tmp_path / "log.jsonl"
    for content in (b"a\n", b"a\nbc\n"):
        log.write_bytes(content)
        assert jobs.files.store_results(job.id, [log]) == []
        assert b"".join(jobs.open_result(job.id, "log.jsonl").pieces) == content
    assert jobs.files.read_size(job.id, "log.jsonl") == 5
    assert jobs.client.hget("lathe:results", job.id) == b"5"


def test_a_redis_that_takes_no_writes_is_a_warning_a_passing_refusal_and_no_secret(own_redis, tmp_path):
    """A primary that was demoted answers reads, and refuses each write with the command that it refuses."""
    connection = RedisConnection(own_redis.url)
    connection.mark_up()
    jobs = RedisQueue(connection, Home(tmp_path))
    thread = JobThread([jobs.maintain], 1.0)
    job = jobs.submit("fit", {"texts": ["a secret"]}, {})
    own_redis.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(UnavailableError) as refused:
            jobs.submit("fit", {"texts": ["a secret"]}, {})
        assert (refused.value.code, "read-only replica" in refused.value.message) == ("redis_read_only", True)
        assert refused.value.may_pass
        thread.manage()
        assert any("jobs cannot be managed: Redis is a read-only replica" in warning for warning in thread.warnings())
    finally:
        own_redis.client.execute_command("REPLICAOF", "NO", "ONE")
    thread.manage()  # the next write succeeds
    assert jobs.get(job.id).state == "queued" and not any("managed" in warning for warning in thread.warnings())


def test_a_worker_waits_for_a_password_that_it_had_been_let_in_with_and_not_for_one_that_never_was(jobs):
    worker, rejected = JobWorker(jobs, "jobs", {}, Spawner()), redis_errors.AuthenticationError("WRONGPASS")
    error = as_unavailable(rejected)
    error.__cause__ = rejected
    with pytest.raises(UnavailableError):
        worker._log_outage(error)
    worker.reached = True
    worker._log_outage(error)
    worker._log_outage(error)
    assert worker.reached is False


def test_progress_of_a_job_whose_record_was_lost_creates_none(jobs, submit, tmp_path):
    job = submit()
    jobs.client.flushall()
    jobs.write_progress(job, tmp_path)
    assert jobs.client.keys("lathe:job:*") == []
