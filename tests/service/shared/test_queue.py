import math
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from rq.executions import Execution
from rq.job import JobStatus
from rq.utils import utcformat

from service.errors import UnavailableError, UnknownNameError
from service.home import Home
from service.jobs.clock import SKEW_SECONDS, clock_skew, server_time
from service.jobs.heartbeats import ALIVE_SECONDS, live_workers
from service.jobs.jobs import PIECE_BYTES
from service.jobs.queue import JobRecords, Limits, file_key, queue_name
from service.jobs.queue_worker import require_same_clock
from service.jobs.queued_process import fetch_inputs
from service.jobs.runners import Outcome
from service.jobs.shared import SharedJobs
from service.shared.link import RedisLink

pytestmark = pytest.mark.services

UNKNOWN = ["0" * 22, "0" * 21, "../../etc", "", "x", "*", "F" * 22]
FILES = {"source.npy": b"vectors", "source.texts.json": b"{}"}


@pytest.fixture
def jobs(redis_server, tmp_path):
    """Jobs that nobody runs."""
    return SharedJobs(RedisLink(redis_server.url), Home(tmp_path), {})


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
        return records.end((outcome or Outcome({"chain": "mine@1"})).ended(jobs.get(job.id)))

    return ended


def keys(client, pattern="*"):
    return {key.decode() for key in client.keys(pattern)}


def keys_of(client, job):
    return {key for key in keys(client) if job.id in key}


def test_a_queued_job_is_listed_and_says_that_no_worker_is_there(jobs, submit):
    first = submit(steps=["r2"])
    second = submit("advise")
    assert [job.id for job in jobs.list()] == [second.id, first.id]
    job = jobs.get(first.id)
    assert (job.state, job.kind, job.progress, job.ended) == ("queued", "fit", 0.0, False)
    assert "no worker" in job.message and version("lathe") in job.message
    assert jobs.request(first.id) == {"steps": ["r2"]} and jobs.result(first.id, "vectors.npy") is None


def sign_of_life(client, ago=0.0, queue=None, name="somebody"):
    """Leave a worker's sign of life, as RQ does, from some seconds ago."""
    when = datetime.fromtimestamp(server_time(client) - ago, UTC)
    client.hset(f"rq:worker:{name}", mapping={"last_heartbeat": utcformat(when), "hostname": "a-machine"})
    client.sadd(f"rq:workers:{queue or queue_name()}", f"rq:worker:{name}")


def test_a_queued_job_only_waits_once_a_worker_is_there(jobs, submit, redis_server):
    job = submit()
    sign_of_life(redis_server.client)
    assert jobs.get(job.id).message == "waiting"


def test_workers_live_that_gave_a_sign_of_life_lately(redis_server):
    client, queue = redis_server.client, queue_name()
    assert live_workers(client, queue) == []
    sign_of_life(client, name="one")
    sign_of_life(client, name="two", ago=ALIVE_SECONDS - 2)
    sign_of_life(client, name="silent", ago=ALIVE_SECONDS + 1)
    sign_of_life(client, name="of another version", queue="lathe-0.0.1")
    client.sadd(f"rq:workers:{queue}", "rq:worker:gone-without-a-word")
    assert live_workers(client, queue) == ["a-machine", "a-machine"]


def test_jobs_that_nobody_takes_are_warned_of_until_a_worker_is_there(jobs, submit, redis_server):
    jobs.link.mark_up()
    jobs.look_after_jobs()
    assert jobs.warnings() == [] and jobs.workers == 0
    submit()
    submit("reindex", files={})  # this server starts the worker of those itself
    jobs.not_before = math.inf
    jobs.look_after_jobs()
    (warning,) = jobs.warnings()
    assert "jobs wait (1)" in warning and version("lathe") in warning and "lathe worker" in warning
    sign_of_life(redis_server.client, ago=ALIVE_SECONDS + 1)
    jobs.look_after_jobs()
    assert len(jobs.warnings()) == 1 and jobs.workers == 0
    sign_of_life(redis_server.client)
    jobs.look_after_jobs()
    assert jobs.warnings() == [] and jobs.workers == 1
    jobs.link.mark_down("Redis cannot be reached")
    assert jobs.warnings() == [] and jobs.workers is None


def test_jobs_on_a_state_folder_s_indexes_wait_for_its_own_worker(jobs, submit, records, tmp_path):
    job = submit("reindex")
    own = queue_name(Home(tmp_path).read_or_make_id())
    assert records.queue(own).job_ids == [job.id] and records.queue(queue_name()).job_ids == []
    assert jobs.get(job.id).state == "queued"


def test_a_job_that_was_cancelled_while_it_waited_is_gone_from_the_queue(jobs, submit, records, redis_server):
    job, other = submit(), submit()
    begun = time.monotonic()
    cancelled = jobs.cancel(job.id)
    assert (cancelled.state, cancelled.message, cancelled.error) == ("cancelled", "cancelled", None)
    assert cancelled.finished_at and time.monotonic() - begun < 3
    assert jobs.cancel(job.id) == jobs.get(job.id) == cancelled
    assert records.queue(queue_name()).job_ids == [other.id]
    assert not keys(redis_server.client, f"*{job.id}:source*")
    assert jobs.get(other.id).state == "queued"


@pytest.mark.parametrize("job_id", UNKNOWN)
def test_a_job_nobody_knows_is_unknown(job_id, jobs, submit):
    submit()
    for call in (jobs.get, jobs.request, jobs.cancel, lambda unknown: jobs.result(unknown, "vectors.npy")):
        with pytest.raises(UnknownNameError):
            call(job_id)


def test_an_end_is_written_once_and_whoever_comes_second_changes_nothing(jobs, submit, end, records):
    job = submit()
    first = end(job)
    assert first.state == "succeeded" and first.result == {"chain": "mine@1"} and first.progress == 1.0
    second = records.end(Outcome(error="too late").ended(job))
    assert second == first == jobs.get(job.id) == jobs.cancel(job.id)


def test_inputs_are_removed_at_the_end_and_results_stay(submit, end, records, redis_server, tmp_path):
    job = submit()
    assert b"".join(records.file(job.id, "source.npy").pieces) == b"vectors"
    (tmp_path / "vectors.npy").write_bytes(b"result")
    assert records.keep_results(job.id, [tmp_path / "vectors.npy"]) == []
    end(job, Outcome(error="whatever"))
    assert records.file(job.id, "source.npy") is None and records.file(job.id, "source.texts.json") is None
    assert b"".join(records.file(job.id, "vectors.npy").pieces) == b"result"


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 2_500_000])
def test_files_come_out_as_they_went_in_piece_by_piece(size, jobs, submit, records, tmp_path):
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    job = submit(files={"source.npy": content})
    (tmp_path / "vectors.npy").write_bytes(content[::-1])
    records.keep_results(job.id, [tmp_path / "vectors.npy"])
    for name, expected in (("source.npy", content), ("vectors.npy", content[::-1])):
        found = jobs.result(job.id, name)
        pieces = list(found.pieces)
        assert found.size == size and b"".join(pieces) == expected
        assert max(map(len, pieces), default=0) <= PIECE_BYTES
    folder = tmp_path / "job"
    folder.mkdir()
    assert fetch_inputs(records, job.id, folder, ["source.npy"]) is None
    assert (folder / "source.npy").read_bytes() == content


def test_results_put_twice_are_there_once(submit, records, tmp_path):
    job = submit()
    for content in (b"of a try that was lost", b"of the other"):
        (tmp_path / "vectors.npy").write_bytes(content)
        records.keep_results(job.id, [tmp_path / "vectors.npy"])
    assert b"".join(records.file(job.id, "vectors.npy").pieces) == b"of the other"


def test_a_result_too_large_for_redis_is_refused_by_name(submit, redis_server, tmp_path):
    records = JobRecords(redis_server.client, Limits(result_bytes=10))
    for name, size in (("vectors.npy", 11), ("report.html", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    job = submit()
    assert records.keep_results(job.id, [tmp_path / "vectors.npy", tmp_path / "report.html"]) == ["vectors.npy"]
    assert records.file(job.id, "vectors.npy") is None and records.file(job.id, "report.html").size == 10


def test_the_oldest_ended_jobs_beyond_those_kept_leave_nothing_behind(jobs, submit, end, redis_server, tmp_path):
    records = JobRecords(redis_server.client, Limits(jobs=3))
    (tmp_path / "vectors.npy").write_bytes(b"result")
    waiting, ended = submit(), []
    for _ in range(4):
        ended.append(submit())
        records.keep_results(ended[-1].id, [tmp_path / "vectors.npy"])
        end(ended[-1])
    newest = submit()
    records.prune()
    assert [job.id for job in jobs.list()] == [newest.id, ended[3].id, ended[2].id, waiting.id]
    for job in ended[:2]:
        assert keys_of(redis_server.client, job) == set()
        with pytest.raises(UnknownNameError):
            jobs.get(job.id)
    assert records.queue(queue_name()).job_ids[0] == waiting.id  # one that has not ended is never removed
    assert jobs.result(ended[2].id, "vectors.npy").size == 6


def test_results_of_the_oldest_jobs_make_room_and_the_jobs_stay(jobs, submit, end, redis_server, tmp_path):
    records = JobRecords(redis_server.client, Limits(results_bytes=13))
    (tmp_path / "vectors.npy").write_bytes(b"result")
    ended = [submit() for _ in range(3)]
    for job in ended:
        records.keep_results(job.id, [tmp_path / "vectors.npy"])
        end(job)
    there = [jobs.result(job.id, "vectors.npy") for job in ended]
    assert [found is not None for found in there] == [False, True, True]
    assert len(jobs.list()) == 3


def test_a_job_that_nobody_took_for_a_week_is_given_up(jobs, submit, records, redis_server):
    job = submit()
    redis_server.client.zincrby("lathe:jobs", -8 * 24 * 3600, job.id)
    records.prune()
    assert jobs.get(job.id).state == "failed" and "for a week" in jobs.get(job.id).error
    assert not redis_server.client.exists(file_key(job.id, "source.npy"))


def test_a_job_of_another_version_that_lost_its_worker_is_looked_after_too(jobs, submit, records, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr("service.jobs.queue.version", lambda _: "0.0.1")
        job, queue = submit(), records.queue(queue_name())
    queued = records.queued(job.id)
    queued.set_status(JobStatus.STARTED)
    execution = Execution("lost", job.id, connection=records.client)
    with records.client.pipeline() as pipe:
        execution.save(ttl=60, pipeline=pipe)
        pipe.zadd(queue.started_job_registry.key, {execution.composite_key: 1})  # heard of long ago
        pipe.execute()
    queue.remove(job.id)
    assert jobs.get(job.id).state == "running"
    jobs.look_after_jobs()
    assert jobs.get(job.id).state == "queued" and "its worker was lost" in jobs.get(job.id).message
    assert jobs.cancel(job.id).state == "cancelled"


def test_a_job_whose_inputs_are_gone_says_so(submit, records, redis_server, tmp_path):
    job = submit()
    assert redis_server.client.ttl(file_key(job.id, "source.npy")) == -1  # a full Redis would evict it else
    redis_server.client.delete(file_key(job.id, "source.npy"))
    outcome = fetch_inputs(records, job.id, tmp_path, list(FILES))
    assert "inputs are gone" in outcome.error and "send it again" in outcome.error


def test_a_job_that_rq_has_lost_is_failed(jobs, submit, records, redis_server):
    job = submit()
    records.queued(job.id).delete()
    assert jobs.get(job.id).state == "queued"  # it may just be on its way there
    redis_server.client.zincrby("lathe:jobs", -61, job.id)
    lost = jobs.get(job.id)
    assert lost.state == "failed" and lost.error and lost.finished_at


def test_without_redis_every_call_says_so(own_redis, tmp_path):
    jobs = SharedJobs(RedisLink(own_redis.url), Home(tmp_path), {})
    job = jobs.submit("fit", {}, FILES)
    own_redis.stop()
    calls = [
        lambda: jobs.submit("fit", {}, FILES),
        lambda: jobs.get(job.id),
        jobs.list,
        lambda: jobs.request(job.id),
        lambda: jobs.cancel(job.id),
        lambda: jobs.result(job.id, "vectors.npy"),
    ]
    for call in calls:
        begun = time.monotonic()
        with pytest.raises(UnavailableError) as failed:
            call()
        assert failed.value.code == "redis_unreachable" and time.monotonic() - begun < 6


def test_a_full_redis_takes_no_half_job(own_redis, tmp_path):
    jobs, client = SharedJobs(RedisLink(own_redis.url), Home(tmp_path), {}), own_redis.client
    client.config_set("maxmemory", 100_000)
    with pytest.raises(UnavailableError) as failed:
        jobs.submit("fit", {}, FILES)
    assert failed.value.code == "redis_full" and not client.keys("lathe:job*") and not client.keys("rq:job:*")
    assert jobs.list() == []


class ClockOff:
    """A Redis whose clock differs from this machine's."""

    def __init__(self, client, seconds):
        self.client = client
        self.seconds = seconds

    def time(self):
        whole, micro = self.client.time()
        return whole + self.seconds, micro


@pytest.mark.parametrize(("seconds", "words"), [(30, "30 s behind"), (-90, "90 s ahead of")])
def test_a_worker_whose_clock_differs_is_refused_with_by_how_much_and_which_way(seconds, words, redis_server):
    with pytest.raises(UnavailableError, match=words) as refused:
        require_same_clock(ClockOff(redis_server.client, seconds))
    assert refused.value.code == "clock_skew"


def test_a_clock_that_is_off_by_little_is_good_enough(redis_server):
    require_same_clock(redis_server.client)
    require_same_clock(ClockOff(redis_server.client, 1))
    assert abs(clock_skew(redis_server.client)) < SKEW_SECONDS / 2


def test_jobs_of_another_version_stay_queued_and_say_whose_worker_they_wait_for(
    jobs, submit, records, redis_server, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr("service.jobs.queue.version", lambda _: "9.9.9")
        assert queue_name() == "lathe-9.9.9"
        job = submit()
        assert "no worker of Lathe 9.9.9" in jobs.get(job.id).message
    sign_of_life(redis_server.client)
    assert records.queue(queue_name()).job_ids == [] and records.queue("lathe-9.9.9").job_ids == [job.id]
    assert jobs.get(job.id).state == "queued"
    assert "no worker of Lathe 9.9.9" in jobs.get(job.id).message
    assert jobs.cancel(job.id).state == "cancelled"


def test_no_file_of_a_job_can_be_asked_for_by_another_key(jobs, submit, redis_server):
    job = submit()
    redis_server.client.rpush("lathe:job:secret", b"no")
    for name in ("", "../secret", "missing", Path("x").as_posix()):
        assert jobs.result(job.id, name) is None
