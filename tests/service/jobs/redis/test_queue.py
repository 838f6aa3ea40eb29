import json
import math
import time
from dataclasses import replace
from importlib.metadata import version

import pytest
from redis import exceptions as redis_errors

from lathe.service.chains.fits import PASSING_CODES
from lathe.service.errors import UnavailableError, UnknownNameError
from lathe.service.home import Home
from lathe.service.jobs.jobs import PIECE_BYTES
from lathe.service.jobs.redis.heartbeats import ALIVE_SECONDS, build_queue_name, list_live_workers, read_server_time
from lathe.service.jobs.redis.jobs import SharedJobs
from lathe.service.jobs.redis.process import fetch_inputs
from lathe.service.jobs.redis.queue import LOST_SECONDS, JobRecords
from lathe.service.jobs.redis.record import FileLimits, build_file_key
from lathe.service.jobs.redis.worker import JobWorker
from lathe.service.jobs.runners import JobOutcome
from lathe.service.processes.program import Spawner
from lathe.service.redis.connection import RedisConnection

pytestmark = pytest.mark.services

FILES = {"source.npy": b"vectors", "source.texts.json": b"{}"}


@pytest.fixture
def jobs(redis_server, tmp_path):
    """Return a server's shared jobs without a worker."""
    return SharedJobs(RedisConnection(redis_server.url), Home(tmp_path), {}, Spawner())


@pytest.fixture
def records(redis_server):
    return JobRecords(redis_server.client)


@pytest.fixture
def submit(jobs):
    """Return a function that submits a job."""

    def queued(kind="fit", files=FILES, **request):
        return jobs.submit(kind, request, files)

    return queued


@pytest.fixture
def end(jobs, records):
    """End a job as its process would."""

    def ended(job, outcome=None):
        return records.end((outcome or JobOutcome({"chain": "mine@1"})).end_job(jobs.get(job.id)))

    return ended


def waiting_in(records, queue):
    """Return the ids of the jobs in a queue, the next one first."""
    return [job_id.decode() for job_id in records.client.lrange(f"lathe:queue:{queue}", 0, -1)]


def keys(client, pattern="*"):
    """Return the Redis keys that match a pattern."""
    return {key.decode() for key in client.keys(pattern)}


def keys_of(client, job):
    """Return the Redis keys that contain a job's id."""
    return {key for key in keys(client) if job.id in key}


def test_a_queued_job_is_listed_with_a_message_that_no_worker_is_there_until_one_is(
    jobs, submit, records, redis_server
):
    first = submit(steps=["r2"])
    second = submit("advise")
    assert [job.id for job in jobs.list()] == [second.id, first.id]
    job = jobs.get(first.id)
    assert (job.state, job.kind, job.progress, job.ended) == ("queued", "fit", 0.0, False)
    assert "no worker" in job.message and version("lathe-service") in job.message
    assert json.loads(records.read_request(first.id)) == {"steps": ["r2"]}
    redis_server.client.rpush("lathe:job:secret", b"no")
    for name in ("vectors.npy", "", "../secret", "missing"):
        assert jobs.open_result(first.id, name) is None
    beat(redis_server.client)
    assert jobs.get(first.id).message == "waiting"


def beat(client, ago=0.0, queue=None, name="somebody"):
    """Record a worker's heartbeat from some seconds ago."""
    client.zadd(f"lathe:workers:{queue or build_queue_name()}", {f"a-machine/{name}": read_server_time(client) - ago})


def test_list_live_workers_returns_the_workers_of_a_queue_with_a_recent_heartbeat(redis_server):
    client, queue = redis_server.client, build_queue_name()
    assert list_live_workers(client, queue) == []
    beat(client, name="one")
    beat(client, name="two", ago=ALIVE_SECONDS - 2)
    beat(client, name="silent", ago=ALIVE_SECONDS + 1)
    beat(client, name="of another version", queue="0.0.1")
    assert list_live_workers(client, queue) == ["a-machine", "a-machine"]
    client.zadd(f"lathe:workers:{queue}", {b"\xff\xfe": read_server_time(client)})  # whatever stands there
    assert sorted(list_live_workers(client, queue)) == ["", "a-machine", "a-machine"]


def test_waiting_jobs_without_a_worker_are_warned_of(jobs, submit, redis_server):
    jobs.connection.mark_up()
    jobs.manage_jobs()
    assert jobs.warnings() == [] and jobs.workers == {"jobs": 0, "trainings": 0}
    submit()
    jobs.manage_jobs()
    (warning,) = jobs.warnings()
    assert "jobs wait (1)" in warning and version("lathe-service") in warning and "lathe worker" in warning
    beat(redis_server.client, ago=ALIVE_SECONDS + 1)
    jobs.manage_jobs()
    assert len(jobs.warnings()) == 1 and jobs.workers["jobs"] == 0
    beat(redis_server.client)
    jobs.manage_jobs()
    assert jobs.warnings() == [] and jobs.workers["jobs"] == 1
    jobs.connection.mark_down("Redis cannot be reached")
    assert jobs.warnings() == [] and jobs.workers is None


def test_cancelling_a_queued_job_ends_it_and_removes_its_inputs(jobs, submit, records, redis_server):
    job, other = submit(), submit()
    begun = time.monotonic()
    cancelled = jobs.cancel(job.id)
    assert (cancelled.state, cancelled.message, cancelled.error) == ("cancelled", "cancelled", None)
    assert cancelled.finished_at and time.monotonic() - begun < 3
    assert jobs.cancel(job.id) == jobs.get(job.id) == cancelled
    assert waiting_in(records, build_queue_name()) == [other.id]
    assert not keys(redis_server.client, f"*{job.id}:source*")
    assert jobs.get(other.id).state == "queued"


def test_every_call_on_an_unknown_job_raises_unknown_name_error(jobs, submit):
    submit()
    for call in (jobs.get, jobs.read_request, jobs.cancel, lambda unknown: jobs.open_result(unknown, "vectors.npy")):
        for job_id in ("0" * 22, "0" * 21, "../../etc", "", "x", "*", "F" * 22):
            with pytest.raises(UnknownNameError):
                call(job_id)


def test_the_end_of_a_job_is_written_only_once_removes_its_inputs_and_keeps_its_results(
    jobs, submit, end, records, tmp_path
):
    job = submit()
    assert b"".join(records.files.read(job.id, "source.npy").pieces) == b"vectors"
    (tmp_path / "vectors.npy").write_bytes(b"result")
    assert records.files.store_results(job.id, [tmp_path / "vectors.npy"]) == []
    first = end(job)
    assert first.state == "succeeded" and first.result == {"chain": "mine@1"} and first.progress == 1.0
    second = records.end(JobOutcome(error="too late").end_job(job))
    assert second == first == jobs.get(job.id) == jobs.cancel(job.id)
    assert records.files.read(job.id, "source.npy") is None and records.files.read(job.id, "source.texts.json") is None
    assert b"".join(records.files.read(job.id, "vectors.npy").pieces) == b"result"


def test_job_files_of_any_size_round_trip_in_pieces(jobs, submit, records, tmp_path):
    for size in (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES):
        content = bytes(range(256)) * (size // 256) + bytes(size % 256)
        job = submit(files={"source.npy": content})
        (tmp_path / "vectors.npy").write_bytes(content[::-1])
        records.files.store_results(job.id, [tmp_path / "vectors.npy"])
        for name, expected in (("source.npy", content), ("vectors.npy", content[::-1])):
            found = jobs.open_result(job.id, name)
            pieces = list(found.pieces)
            assert found.size == size and b"".join(pieces) == expected
            assert max(map(len, pieces), default=0) <= PIECE_BYTES
        folder = tmp_path / job.id
        folder.mkdir()
        assert fetch_inputs(records, job.id, folder) is None
        assert (folder / "source.npy").read_bytes() == content


def test_a_result_over_the_size_limit_is_refused_by_name(submit, redis_server, tmp_path):
    records = JobRecords(redis_server.client, FileLimits(result_bytes=10))
    for name, size in (("vectors.npy", 11), ("report.html", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    job = submit()
    assert records.files.store_results(job.id, [tmp_path / "vectors.npy", tmp_path / "report.html"]) == ["vectors.npy"]
    assert records.files.read(job.id, "vectors.npy") is None and records.files.read(job.id, "report.html").size == 10


def test_prune_removes_the_oldest_ended_jobs_and_all_their_keys(jobs, submit, end, redis_server, tmp_path):
    records = JobRecords(redis_server.client, FileLimits(jobs=3))
    (tmp_path / "vectors.npy").write_bytes(b"result")
    waiting, ended = submit(), []
    for _ in range(4):
        ended.append(submit())
        records.files.store_results(ended[-1].id, [tmp_path / "vectors.npy"])
        end(ended[-1])
    newest = submit()
    records.prune()
    assert [job.id for job in jobs.list()] == [newest.id, ended[3].id, ended[2].id, waiting.id]
    for job in ended[:2]:
        assert keys_of(redis_server.client, job) == set()
        with pytest.raises(UnknownNameError):
            jobs.get(job.id)
    assert waiting_in(records, build_queue_name())[0] == waiting.id  # one that has not ended is never removed
    assert jobs.open_result(ended[2].id, "vectors.npy").size == 6


def test_results_of_the_oldest_jobs_are_removed_over_the_limit_and_the_jobs_stay(
    jobs, submit, end, redis_server, tmp_path
):
    records = JobRecords(redis_server.client, FileLimits(results_bytes=13))
    (tmp_path / "vectors.npy").write_bytes(b"result")
    ended = [submit() for _ in range(3)]
    for job in ended:
        records.files.store_results(job.id, [tmp_path / "vectors.npy"])
        end(job)
    there = [jobs.open_result(job.id, "vectors.npy") for job in ended]
    assert [found is not None for found in there] == [False, True, True]
    assert len(jobs.list()) == 3


def test_prune_fails_a_job_that_waited_for_a_week(jobs, submit, records, redis_server):
    job = submit()
    redis_server.client.zincrby("lathe:jobs", -8 * 24 * 3600, job.id)
    records.prune()
    assert jobs.get(job.id).state == "failed" and "for a week" in jobs.get(job.id).error
    assert not redis_server.client.exists(build_file_key(job.id, "source.npy"))


def go_silent(records, job, seconds=LOST_SECONDS + 1):
    """Make a job's last heartbeat older by some seconds."""
    records.client.zincrby("lathe:running", -seconds, job.id)


def test_a_job_of_a_silent_worker_is_requeued_at_the_front_for_another_worker(jobs, submit, records):
    first, second = submit(), submit()
    taken = records.take(build_queue_name(), "one")
    assert (taken.id, taken.state, taken.message) == (first.id, "running", "starting")
    assert jobs.get(first.id) == taken and records.take(build_queue_name(), "two").id == second.id
    assert records.take(build_queue_name(), "two") is None
    records.write_progress(replace(taken, progress=0.5, message="fitting"))
    assert (jobs.get(first.id).progress, jobs.get(first.id).message) == (0.5, "fitting")
    records.requeue_lost_jobs()
    assert records.record_job_heartbeat(first.id, "one") == records.record_job_heartbeat(second.id, "two") == "goes on"
    assert records.record_job_heartbeat(first.id, "two") == "lost"
    go_silent(records, first)
    records.requeue_lost_jobs()
    assert jobs.get(first.id).state == "queued" and "its worker was lost" in jobs.get(first.id).message
    assert jobs.get(second.id).state == "running" and records.record_job_heartbeat(first.id, "one") == "lost"
    third = submit()
    assert records.take(build_queue_name(), "two").id == first.id and waiting_in(records, build_queue_name()) == [
        third.id
    ]
    assert (
        records.record_job_heartbeat(first.id, "one") == "lost"
        and records.record_job_heartbeat(first.id, "two") == "goes on"
    )


def test_a_job_that_loses_its_worker_twice_fails_or_is_cancelled_if_that_was_asked(jobs, submit, records):
    for cancelled in (False, True):
        job = submit()
        records.take(build_queue_name(), "one")
        records.release(job.id, "another one")
        assert jobs.get(job.id).state == "running"
        records.release(job.id, "one")
        assert jobs.get(job.id).state == "queued" and records.take(build_queue_name(), "two").id == job.id
        if cancelled:
            assert (
                records.cancel(job.id).state == "running" and records.record_job_heartbeat(job.id, "two") == "cancelled"
            )
        go_silent(records, job)
        records.requeue_lost_jobs()
        ended = jobs.get(job.id)
        assert ended.state == ("cancelled" if cancelled else "failed") and (ended.error is None) == cancelled
    assert not records.client.exists("lathe:running")


def test_a_requeued_job_that_has_ended_is_not_taken_again(jobs, submit, records, end):
    job = submit()
    records.take(build_queue_name(), "thought dead")
    go_silent(records, job)
    records.requeue_lost_jobs()
    assert end(job).state == "succeeded"
    assert records.take(build_queue_name(), "two") is None and not records.client.exists("lathe:running")
    assert jobs.get(job.id).state == "succeeded"


def test_a_job_with_missing_inputs_fails_and_asks_to_send_it_again(submit, records, redis_server, tmp_path):
    job = submit()
    assert redis_server.client.ttl(build_file_key(job.id, "source.npy")) == -1  # a full Redis would evict it else
    redis_server.client.delete(build_file_key(job.id, "source.npy"))
    outcome = fetch_inputs(records, job.id, tmp_path)
    assert "inputs are missing" in outcome.error and "send the job again" in outcome.error


def test_prune_fails_a_job_that_is_neither_queued_nor_running(jobs, submit, records):
    lost, waiting, running = submit(), submit(), submit()
    records.client.lrem(f"lathe:queue:{build_queue_name()}", 0, lost.id)
    records.client.lmove(f"lathe:queue:{build_queue_name()}", f"lathe:queue:{build_queue_name()}", "RIGHT", "LEFT")
    assert records.take(build_queue_name(), "one").id == running.id
    records.prune()
    assert jobs.get(lost.id).state == "failed" and "in no queue" in jobs.get(lost.id).error
    assert (jobs.get(waiting.id).state, jobs.get(running.id).state) == ("queued", "running")


def test_with_a_full_redis_or_without_one_calls_raise_unavailable_error_in_seconds_and_write_nothing(
    own_redis, tmp_path
):
    jobs, client = SharedJobs(RedisConnection(own_redis.url), Home(tmp_path), {}, Spawner()), own_redis.client
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
    jobs, submit, records, redis_server, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr("lathe.service.jobs.redis.heartbeats.version", lambda _: "9.9.9")
        assert build_queue_name() == "9.9.9"
        job = submit()
    beat(redis_server.client)
    assert waiting_in(records, build_queue_name()) == [] and waiting_in(records, "9.9.9") == [job.id]
    assert jobs.get(job.id).state == "queued" and "no worker of Lathe 9.9.9" in jobs.get(job.id).message
    records.take("9.9.9", "lost")
    go_silent(records, job)
    jobs.manage_jobs()
    assert jobs.get(job.id).state == "queued" and waiting_in(records, "9.9.9") == [job.id]
    assert jobs.cancel(job.id).state == "cancelled"


def test_trainings_and_reindexings_wait_in_queues_of_their_own_for_workers_of_their_own(
    jobs, submit, records, redis_server, tmp_path
):
    jobs.connection.mark_up()
    fit, training, adaptation, reindexing = submit(), submit("train"), submit("adapt"), submit("reindex")
    trainings, own = build_queue_name("trainings"), build_queue_name(home_id=Home(tmp_path).read_or_create_id())
    assert waiting_in(records, build_queue_name()) == [fit.id] and waiting_in(records, own) == [reindexing.id]
    assert waiting_in(records, trainings) == [training.id, adaptation.id]
    assert "start `lathe worker`" in jobs.get(fit.id).message
    assert "start `lathe worker --training`" in jobs.get(training.id).message
    beat(redis_server.client)
    jobs.not_before = math.inf  # this server starts the worker of reindexings itself
    jobs.manage_jobs()
    assert jobs.workers == {"jobs": 1, "trainings": 0}
    (warning,) = jobs.warnings()
    assert "trainings wait (2)" in warning and "lathe worker --training" in warning
    beat(redis_server.client, queue=trainings)
    jobs.manage_jobs()
    assert jobs.warnings() == [] and jobs.get(training.id).message == "waiting"


def test_a_try_of_a_worker_that_was_asked_to_stop_does_not_count(jobs, submit, records):
    job = submit("train")
    for _ in range(5):
        assert records.take(build_queue_name("trainings"), "one").id == job.id
        records.release(job.id, "one", counts=False)
        assert jobs.get(job.id).state == "queued"
    for _ in range(2):
        records.take(build_queue_name("trainings"), "one")
        records.release(job.id, "one")
    assert jobs.get(job.id).state == "failed"


def test_a_result_that_is_stored_again_counts_once(jobs, submit, records, tmp_path):
    job, log = submit("train"), tmp_path / "log.jsonl"
    for content in (b"a\n", b"a\nbc\n"):
        log.write_bytes(content)
        assert records.files.store_results(job.id, [log]) == []
        assert b"".join(jobs.open_result(job.id, "log.jsonl").pieces) == content
    assert records.files.read_size(job.id, "log.jsonl") == 5
    assert records.client.hget("lathe:results", job.id) == b"5"


def test_a_redis_that_takes_no_writes_is_a_warning_a_passing_refusal_and_no_secret(own_redis, tmp_path):
    """A primary that was demoted answers reads, and refuses each write with the command that it refuses."""
    connection = RedisConnection(own_redis.url)
    connection.mark_up()
    jobs = SharedJobs(connection, Home(tmp_path), {}, Spawner())
    job = jobs.submit("fit", {"texts": ["a secret"]}, {})
    own_redis.client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(UnavailableError) as refused:
            jobs.submit("fit", {"texts": ["a secret"]}, {})
        assert (refused.value.code, "read-only replica" in refused.value.message) == ("redis_read_only", True)
        assert refused.value.code in PASSING_CODES
        jobs._manage_or_log()
        assert any("jobs cannot be managed: Redis is a read-only replica" in warning for warning in jobs.warnings())
    finally:
        own_redis.client.execute_command("REPLICAOF", "NO", "ONE")
    jobs._manage_or_log()  # the next write succeeds
    assert jobs.get(job.id).state == "queued" and not any("managed" in warning for warning in jobs.warnings())


def test_a_worker_waits_for_a_password_that_it_had_been_let_in_with_and_not_for_one_that_never_was(records):
    worker = JobWorker(records, "jobs", Spawner())
    with pytest.raises(redis_errors.AuthenticationError):
        worker._log_outage(redis_errors.AuthenticationError("WRONGPASS"))
    worker.reached = True
    worker._log_outage(redis_errors.AuthenticationError("WRONGPASS"))
    worker._log_outage(redis_errors.AuthenticationError("WRONGPASS"))
    assert worker.reached is False


def test_progress_of_a_job_whose_record_was_lost_creates_none(records, submit):
    job = submit()
    records.client.flushall()
    records.write_progress(job)
    assert records.client.keys("lathe:job:*") == []
