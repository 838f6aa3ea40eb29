import json
import math
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from service.errors import UnavailableError, UnknownNameError
from service.home import Home
from service.jobs.jobs import PIECE_BYTES
from service.jobs.redis.files import Limits, build_file_key
from service.jobs.redis.heartbeats import ALIVE_SECONDS, list_live_workers, read_server_time
from service.jobs.redis.jobs import SharedJobs
from service.jobs.redis.process import fetch_inputs
from service.jobs.redis.queue import LOST_SECONDS, JobRecords, build_queue_name
from service.jobs.runners import Outcome
from service.processes.program import Spawner
from service.redis.connection import RedisConnection

pytestmark = pytest.mark.services

UNKNOWN = ["0" * 22, "0" * 21, "../../etc", "", "x", "*", "F" * 22]
FILES = {"source.npy": b"vectors", "source.texts.json": b"{}"}


@pytest.fixture
def jobs(redis_server, tmp_path):
    """Jobs that nobody runs."""
    return SharedJobs(RedisConnection(redis_server.url), Home(tmp_path), {}, Spawner())


@pytest.fixture
def records(redis_server):
    return JobRecords(redis_server.client)


@pytest.fixture
def submit(jobs):
    def queued(kind="fit", files=FILES, **request):
        return jobs.submit(kind, request, files)

    return queued


@pytest.fixture
def end(jobs, records):
    """End a job as its process would."""

    def ended(job, outcome=None):
        return records.end((outcome or Outcome({"chain": "mine@1"})).end_job(jobs.get(job.id)))

    return ended


def waiting_in(records, queue):
    """Ids of the jobs that wait in a queue, the next one first."""
    return [job_id.decode() for job_id in records.client.lrange(f"lathe:queue:{queue}", 0, -1)]


def keys(client, pattern="*"):
    return {key.decode() for key in client.keys(pattern)}


def keys_of(client, job):
    return {key for key in keys(client) if job.id in key}


def test_a_queued_job_is_listed_and_says_that_no_worker_is_there(jobs, submit, records):
    first = submit(steps=["r2"])
    second = submit("advise")
    assert [job.id for job in jobs.list()] == [second.id, first.id]
    job = jobs.get(first.id)
    assert (job.state, job.kind, job.progress, job.ended) == ("queued", "fit", 0.0, False)
    assert "no worker" in job.message and version("lathe") in job.message
    assert json.loads(records.read_request(first.id)) == {"steps": ["r2"]}
    assert jobs.open_result(first.id, "vectors.npy") is None


def sign_of_life(client, ago=0.0, queue=None, name="somebody"):
    """Leave a worker's sign of life from some seconds ago."""
    client.zadd(f"lathe:workers:{queue or build_queue_name()}", {f"a-machine/{name}": read_server_time(client) - ago})


def test_a_queued_job_only_waits_once_a_worker_is_there(jobs, submit, redis_server):
    job = submit()
    sign_of_life(redis_server.client)
    assert jobs.get(job.id).message == "waiting"


def test_workers_live_that_gave_a_sign_of_life_lately(redis_server):
    client, queue = redis_server.client, build_queue_name()
    assert list_live_workers(client, queue) == []
    sign_of_life(client, name="one")
    sign_of_life(client, name="two", ago=ALIVE_SECONDS - 2)
    sign_of_life(client, name="silent", ago=ALIVE_SECONDS + 1)
    sign_of_life(client, name="of another version", queue="0.0.1")
    assert list_live_workers(client, queue) == ["a-machine", "a-machine"]
    client.zadd(f"lathe:workers:{queue}", {b"\xff\xfe": read_server_time(client)})  # whatever stands there
    assert sorted(list_live_workers(client, queue)) == ["", "a-machine", "a-machine"]


def test_jobs_that_nobody_takes_are_warned_of_until_a_worker_is_there(jobs, submit, redis_server):
    jobs.connection.mark_up()
    jobs.manage_jobs()
    assert jobs.warnings() == [] and jobs.workers == 0
    submit()
    submit("reindex", files={})  # this server starts the worker of those itself
    jobs.not_before = math.inf
    jobs.manage_jobs()
    (warning,) = jobs.warnings()
    assert "jobs wait (1)" in warning and version("lathe") in warning and "lathe worker" in warning
    sign_of_life(redis_server.client, ago=ALIVE_SECONDS + 1)
    jobs.manage_jobs()
    assert len(jobs.warnings()) == 1 and jobs.workers == 0
    sign_of_life(redis_server.client)
    jobs.manage_jobs()
    assert jobs.warnings() == [] and jobs.workers == 1
    jobs.connection.mark_down("Redis cannot be reached")
    assert jobs.warnings() == [] and jobs.workers is None


def test_jobs_on_a_state_folder_s_indexes_wait_for_its_own_worker(jobs, submit, records, tmp_path):
    job = submit("reindex")
    own = build_queue_name(Home(tmp_path).read_or_create_id())
    assert waiting_in(records, own) == [job.id] and waiting_in(records, build_queue_name()) == []
    assert jobs.get(job.id).state == "queued"


def test_a_job_that_was_cancelled_while_it_waited_is_gone_from_the_queue(jobs, submit, records, redis_server):
    job, other = submit(), submit()
    begun = time.monotonic()
    cancelled = jobs.cancel(job.id)
    assert (cancelled.state, cancelled.message, cancelled.error) == ("cancelled", "cancelled", None)
    assert cancelled.finished_at and time.monotonic() - begun < 3
    assert jobs.cancel(job.id) == jobs.get(job.id) == cancelled
    assert waiting_in(records, build_queue_name()) == [other.id]
    assert not keys(redis_server.client, f"*{job.id}:source*")
    assert jobs.get(other.id).state == "queued"


@pytest.mark.parametrize("job_id", UNKNOWN)
def test_a_job_nobody_knows_is_unknown(job_id, jobs, submit):
    submit()
    for call in (jobs.get, jobs.read_request, jobs.cancel, lambda unknown: jobs.open_result(unknown, "vectors.npy")):
        with pytest.raises(UnknownNameError):
            call(job_id)


def test_an_end_is_written_once_and_whoever_comes_second_changes_nothing(jobs, submit, end, records):
    job = submit()
    first = end(job)
    assert first.state == "succeeded" and first.result == {"chain": "mine@1"} and first.progress == 1.0
    second = records.end(Outcome(error="too late").end_job(job))
    assert second == first == jobs.get(job.id) == jobs.cancel(job.id)


def test_inputs_are_removed_at_the_end_and_results_stay(submit, end, records, redis_server, tmp_path):
    job = submit()
    assert b"".join(records.files.read(job.id, "source.npy").pieces) == b"vectors"
    (tmp_path / "vectors.npy").write_bytes(b"result")
    assert records.files.store_results(job.id, [tmp_path / "vectors.npy"]) == []
    end(job, Outcome(error="whatever"))
    assert records.files.read(job.id, "source.npy") is None and records.files.read(job.id, "source.texts.json") is None
    assert b"".join(records.files.read(job.id, "vectors.npy").pieces) == b"result"


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 2_500_000])
def test_files_come_out_as_they_went_in_piece_by_piece(size, jobs, submit, records, tmp_path):
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    job = submit(files={"source.npy": content})
    (tmp_path / "vectors.npy").write_bytes(content[::-1])
    records.files.store_results(job.id, [tmp_path / "vectors.npy"])
    for name, expected in (("source.npy", content), ("vectors.npy", content[::-1])):
        found = jobs.open_result(job.id, name)
        pieces = list(found.pieces)
        assert found.size == size and b"".join(pieces) == expected
        assert max(map(len, pieces), default=0) <= PIECE_BYTES
    folder = tmp_path / "job"
    folder.mkdir()
    assert fetch_inputs(records, job.id, folder) is None
    assert (folder / "source.npy").read_bytes() == content


def test_results_put_twice_are_there_once(submit, records, tmp_path):
    job = submit()
    for content in (b"of a try that was lost", b"of the other"):
        (tmp_path / "vectors.npy").write_bytes(content)
        records.files.store_results(job.id, [tmp_path / "vectors.npy"])
    assert b"".join(records.files.read(job.id, "vectors.npy").pieces) == b"of the other"


def test_a_result_too_large_for_redis_is_refused_by_name(submit, redis_server, tmp_path):
    records = JobRecords(redis_server.client, Limits(result_bytes=10))
    for name, size in (("vectors.npy", 11), ("report.html", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    job = submit()
    assert records.files.store_results(job.id, [tmp_path / "vectors.npy", tmp_path / "report.html"]) == ["vectors.npy"]
    assert records.files.read(job.id, "vectors.npy") is None and records.files.read(job.id, "report.html").size == 10


def test_the_oldest_ended_jobs_beyond_those_kept_leave_nothing_behind(jobs, submit, end, redis_server, tmp_path):
    records = JobRecords(redis_server.client, Limits(jobs=3))
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


def test_results_of_the_oldest_jobs_make_room_and_the_jobs_stay(jobs, submit, end, redis_server, tmp_path):
    records = JobRecords(redis_server.client, Limits(results_bytes=13))
    (tmp_path / "vectors.npy").write_bytes(b"result")
    ended = [submit() for _ in range(3)]
    for job in ended:
        records.files.store_results(job.id, [tmp_path / "vectors.npy"])
        end(job)
    there = [jobs.open_result(job.id, "vectors.npy") for job in ended]
    assert [found is not None for found in there] == [False, True, True]
    assert len(jobs.list()) == 3


def test_a_job_that_nobody_took_for_a_week_is_given_up(jobs, submit, records, redis_server):
    job = submit()
    redis_server.client.zincrby("lathe:jobs", -8 * 24 * 3600, job.id)
    records.prune()
    assert jobs.get(job.id).state == "failed" and "for a week" in jobs.get(job.id).error
    assert not redis_server.client.exists(build_file_key(job.id, "source.npy"))


def go_silent(records, job, seconds=LOST_SECONDS + 1):
    """Let it be so long ago that a job's worker was heard of."""
    records.client.zincrby("lathe:running", -seconds, job.id)


def test_a_job_goes_to_one_worker_and_back_to_the_queue_s_front_when_that_one_falls_silent(jobs, submit, records):
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


def test_a_job_that_loses_its_worker_every_time_is_failed_and_one_that_was_cancelled_meanwhile_is_not(
    jobs, submit, records
):
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


def test_whoever_comes_second_ends_nothing_and_a_job_that_ended_while_it_waited_is_not_run(jobs, submit, records, end):
    job = submit()
    records.take(build_queue_name(), "thought dead")
    go_silent(records, job)
    records.requeue_lost_jobs()
    assert end(job).state == "succeeded"
    assert records.take(build_queue_name(), "two") is None and not records.client.exists("lathe:running")
    assert jobs.get(job.id).state == "succeeded"


def test_a_job_of_another_version_that_lost_its_worker_is_looked_after_too(jobs, submit, records, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr("service.jobs.redis.queue.version", lambda _: "0.0.1")
        job = submit()
    records.take("0.0.1", "lost")
    go_silent(records, job)
    jobs.manage_jobs()
    assert jobs.get(job.id).state == "queued" and waiting_in(records, "0.0.1") == [job.id]
    assert jobs.cancel(job.id).state == "cancelled"


def test_a_job_whose_inputs_are_gone_says_so(submit, records, redis_server, tmp_path):
    job = submit()
    assert redis_server.client.ttl(build_file_key(job.id, "source.npy")) == -1  # a full Redis would evict it else
    redis_server.client.delete(build_file_key(job.id, "source.npy"))
    outcome = fetch_inputs(records, job.id, tmp_path)
    assert "inputs are missing" in outcome.error and "send the job again" in outcome.error


def test_a_job_that_is_in_no_queue_is_failed(jobs, submit, records):
    lost, waiting, running = submit(), submit(), submit()
    records.client.lrem(f"lathe:queue:{build_queue_name()}", 0, lost.id)
    records.client.lmove(f"lathe:queue:{build_queue_name()}", f"lathe:queue:{build_queue_name()}", "RIGHT", "LEFT")
    assert records.take(build_queue_name(), "one").id == running.id
    records.prune()
    assert jobs.get(lost.id).state == "failed" and "in no queue" in jobs.get(lost.id).error
    assert (jobs.get(waiting.id).state, jobs.get(running.id).state) == ("queued", "running")


def test_without_redis_every_call_says_so(own_redis, tmp_path):
    jobs = SharedJobs(RedisConnection(own_redis.url), Home(tmp_path), {}, Spawner())
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


def test_a_full_redis_takes_no_half_job(own_redis, tmp_path):
    jobs, client = SharedJobs(RedisConnection(own_redis.url), Home(tmp_path), {}, Spawner()), own_redis.client
    client.config_set("maxmemory", 100_000)
    with pytest.raises(UnavailableError) as failed:
        jobs.submit("fit", {}, FILES)
    assert failed.value.code == "redis_full" and not client.keys("lathe:job*") and not client.keys("lathe:queue*")
    assert jobs.list() == []


def test_jobs_of_another_version_stay_queued_and_say_whose_worker_they_wait_for(
    jobs, submit, records, redis_server, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr("service.jobs.redis.queue.version", lambda _: "9.9.9")
        assert build_queue_name() == "9.9.9"
        job = submit()
        assert "no worker of Lathe 9.9.9" in jobs.get(job.id).message
    sign_of_life(redis_server.client)
    assert waiting_in(records, build_queue_name()) == [] and waiting_in(records, "9.9.9") == [job.id]
    assert jobs.get(job.id).state == "queued"
    assert "no worker of Lathe 9.9.9" in jobs.get(job.id).message
    assert jobs.cancel(job.id).state == "cancelled"


def test_no_file_of_a_job_can_be_asked_for_by_another_key(jobs, submit, redis_server):
    job = submit()
    redis_server.client.rpush("lathe:job:secret", b"no")
    for name in ("", "../secret", "missing", Path("x").as_posix()):
        assert jobs.open_result(job.id, name) is None
