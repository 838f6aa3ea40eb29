"""What a queue of jobs does, whether it is in a folder or in Redis."""

import json
import os
import signal
import subprocess
from dataclasses import replace

import pytest

from lathe.service.errors import UnknownNameError
from lathe.service.home import Home
from lathe.service.jobs import folder as folder_queue
from lathe.service.jobs.folder import FolderQueue
from lathe.service.jobs.process import run_job
from lathe.service.jobs.runner import JobRunner
from lathe.service.settings import read_settings
from lathe.transforms.files import PIECE_BYTES

FILES = {"source.npy": b"vectors", "source.texts.json": b"{}"}


@pytest.fixture
def open_queue(request, tmp_path):
    """Return a function that opens the queue, each time as another process does."""

    def opened(**limits):
        home = Home(tmp_path / "home")
        if request.param == "folder":
            return FolderQueue(home.jobs)
        from lathe.service.jobs.redis_queue import RedisQueue
        from lathe.service.jobs.redis_record import FileLimits
        from lathe.service.redis.connection import RedisConnection

        url = request.getfixturevalue("redis_server").url
        return RedisQueue(RedisConnection(url), home, FileLimits(**limits))

    (tmp_path / "home").mkdir()
    return opened


def pytest_generate_tests(metafunc):
    """Run each test with a queue in a folder, and with one in Redis."""
    stores = ["folder", pytest.param("redis", marks=pytest.mark.services)]
    metafunc.parametrize("open_queue", stores, indirect=True)


@pytest.fixture
def queue(open_queue):
    return open_queue()


def read(queue, job, name):
    """Return the bytes of a file of a job, or None if there is none."""
    file = queue.open_result(job.id, name)
    return None if file is None else b"".join(file.pieces)


def begin(queue, job):
    """Take a job, and leave its process as it is killed."""
    taken = queue.take("jobs")
    assert taken.id == job.id
    with queue.claim(job.id) as (claimed, folder):
        queue.write_progress(replace(claimed, progress=0.5, message="fitting"), folder)
        assert (queue.get(job.id).state, queue.get(job.id).message) == ("running", "fitting")
    return taken


def end(queue, job, **results):
    """Take a job and end it as its process would."""
    assert queue.take("jobs").id == job.id
    with queue.claim(job.id) as (claimed, folder):
        assert queue.fetch_inputs(job.id, folder) is None
        for name, content in results.items():
            (folder / f"{name}.npy").write_bytes(content)
        queue.end(claimed.succeed({"chain": "mine@1"}), folder)
    return queue.get(job.id)


def test_a_queued_job_is_shown_with_its_request_and_no_file_of_another_name(queue):
    first, second = queue.submit("fit", {"steps": ["r2"]}, FILES), queue.submit("advise", {}, {})
    assert {job.id for job in queue.list()} == {first.id, second.id}
    job = queue.get(first.id)
    assert (job.state, job.kind, job.progress, job.ended) == ("queued", "fit", 0.0, False)
    assert json.loads(queue.read_request(first.id)) == {"steps": ["r2"]}
    for name in ("vectors.npy", "../secret", "missing"):
        assert read(queue, first, name) is None


def test_every_call_on_an_unknown_job_raises_unknown_name_error(queue):
    queue.submit("fit", {}, {})
    for call in (
        queue.get,
        queue.read_request,
        queue.cancel,
        lambda unknown: queue.open_result(unknown, "vectors.npy"),
    ):
        for job_id in ("0" * 22, "0" * 21, "../../etc", "", "x", "*", "F" * 22):
            with pytest.raises(UnknownNameError):
                call(job_id)


def test_jobs_are_taken_in_their_order_and_trainings_beside_them(queue):
    fits, training = [queue.submit("fit", {}, {}) for _ in range(3)], queue.submit("train", {}, {})
    assert queue.take("trainings").id == training.id
    for job in fits:
        assert end(queue, job).state == "succeeded"
    assert queue.take("jobs") is None


def test_cancelling_a_queued_job_ends_it_and_removes_its_inputs(queue):
    job, other = queue.submit("fit", {}, FILES), queue.submit("fit", {}, FILES)
    cancelled = queue.cancel(job.id)
    assert (cancelled.state, cancelled.message, cancelled.error) == ("cancelled", "cancelled", None)
    assert cancelled.finished_at and queue.cancel(job.id) == queue.get(job.id) == cancelled
    assert read(queue, job, "source.npy") is None and read(queue, other, "source.npy") == b"vectors"
    assert queue.take("jobs").id == other.id


def test_a_running_job_that_is_cancelled_is_ended_by_its_runner(queue, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *_: None)  # this process is that of the job
    job = queue.submit("fit", {}, FILES)
    taken = queue.take("jobs")
    with queue.claim(job.id):
        assert queue.record_job_heartbeat(taken) == "goes on"
        assert queue.cancel(job.id).state == "running"
        assert queue.record_job_heartbeat(taken) == "cancelled"
    queue.release(taken)
    ended = queue.get(job.id)
    assert (ended.state, ended.error) == ("cancelled", None) and read(queue, job, "source.npy") is None


def test_the_end_of_a_job_removes_its_inputs_and_keeps_its_results(queue):
    job = queue.submit("fit", {}, FILES)
    ended = end(queue, job, vectors=b"result")
    assert (ended.state, ended.result, ended.progress) == ("succeeded", {"chain": "mine@1"}, 1.0)
    assert ended == queue.cancel(job.id) == queue.get(job.id)
    assert read(queue, job, "source.npy") is read(queue, job, "source.texts.json") is None
    assert read(queue, job, "vectors.npy") == b"result"


def test_files_of_any_size_round_trip_in_pieces(queue):
    for size in (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES):
        content = bytes(range(256)) * (size // 256) + bytes(size % 256)
        job = queue.submit("fit", {}, {"source.npy": content})
        queue.take("jobs")
        with queue.claim(job.id) as (claimed, folder):
            assert queue.fetch_inputs(job.id, folder) is None
            assert (folder / "source.npy").read_bytes() == content
            (folder / "vectors.npy").write_bytes(content[::-1])
            queue.end(claimed.succeed({}), folder)
        found = queue.open_result(job.id, "vectors.npy")
        pieces = list(found.pieces)
        assert found.size == size and b"".join(pieces) == content[::-1]
        assert max(map(len, pieces), default=0) <= PIECE_BYTES


def test_the_oldest_ended_jobs_over_the_limit_are_removed_and_one_that_waits_is_not(open_queue, monkeypatch):
    monkeypatch.setattr(folder_queue, "MAX_JOBS", 3)
    queue = open_queue(jobs=3)
    waiting, ended = queue.submit("train", {}, {}), []
    for _ in range(4):
        ended.append(queue.submit("fit", {}, {}))
        end(queue, ended[-1], vectors=b"result")
    queue.prune()
    left = {job.id for job in queue.list()}
    assert waiting.id in left and len(left) < 5  # ids of one second have no order in a folder
    for job in ended:
        assert (read(queue, job, "vectors.npy") if job.id in left else b"result") == b"result"


def test_a_job_whose_process_died_is_given_up_after_its_tries_and_says_what_it_did(queue):
    """In a folder a fit has one try, and with Redis two, as its worker's machine may have failed."""
    job = queue.submit("fit", {}, FILES)
    for _ in range(1 + queue.shared):
        queue.release(begin(queue, job))
    ended = queue.get(job.id)
    assert ended.state == "failed" and "killed or crashed" in ended.error and "while fitting" in ended.error
    assert queue.take("jobs") is None and read(queue, job, "source.npy") is None


def test_a_training_whose_process_died_is_queued_again_once(queue):
    job = queue.submit("adapt", {}, FILES)
    for final in (False, True):
        taken = queue.take("trainings")
        with queue.claim(job.id):
            assert queue.get(job.id).state == "running"
        queue.release(taken)
        assert queue.get(job.id).state == ("failed" if final else "queued")


def test_a_job_is_claimed_once_and_not_after_its_end(queue, open_queue):
    job = queue.submit("fit", {}, {})
    ended = end(queue, job)
    with open_queue().claim(job.id) as claimed:
        assert claimed is None
    assert queue.get(job.id) == ended


def test_a_damaged_request_fails_the_job(queue, tmp_path):
    job = queue.submit("fit", {"texts": "a secret"}, {})
    queue.take("jobs")
    run_job(queue, job.id, read_settings(home=tmp_path / "home"))
    assert "the request of the job is damaged" in queue.get(job.id).error and "secret" not in queue.get(job.id).error


class Starter:
    """Starts a process that does nothing in place of a job's, or raises an error."""

    def __init__(self, error=None):
        self.error = error
        self.started = []

    def start(self, program):
        if self.error is not None:
            raise self.error
        self.started.append(subprocess.Popen(["sleep", "60"], stdout=program.output))
        return self.started[-1]


def test_a_runner_kills_the_process_of_a_cancelled_job_and_starts_the_next(queue):
    starter = Starter()
    runner, jobs = JobRunner(queue, "jobs", {}, starter), [queue.submit("fit", {}, {}) for _ in range(2)]
    runner.step()
    runner.step()
    assert len(starter.started) == 1 and runner.is_running
    queue.cancel(jobs[0].id)
    runner.step()
    assert starter.started[0].poll() == -signal.SIGKILL and queue.get(jobs[0].id).state == "cancelled"
    assert runner.job.id == jobs[1].id and runner.is_running
    runner.kill()


def test_a_job_whose_process_cannot_be_started_fails_and_the_runner_goes_on(queue, caplog):
    runner, job = JobRunner(queue, "jobs", {}, Starter(OSError("no memory"))), queue.submit("fit", {}, FILES)
    for _ in range(3):
        runner.step()
    assert queue.get(job.id).state == "failed" and runner.job is None
    assert "cannot be started" in caplog.text and read(queue, job, "source.npy") is None


def test_nothing_is_left_to_take_by_another_process_while_a_job_runs(queue, open_queue):
    first = queue.submit("fit", {}, {})
    taken = queue.take("jobs")
    with queue.claim(first.id):
        assert open_queue().take("jobs") is None
        open_queue().release(taken)  # another's job
        assert queue.get(first.id).state == "running"
