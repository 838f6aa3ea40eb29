import os

import pytest

from lathe.service.jobs.job import LOG
from lathe.service.jobs.kinds import train
from lathe.service.jobs.kinds.train import JobTrainingLog


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Return the folder of a job, and the work folder of its trainings."""
    monkeypatch.setattr(train, "COPY_SECONDS", 0.0)
    job, work = tmp_path / "job", tmp_path / "work"
    job.mkdir()
    work.mkdir()
    return job, work


def write(folder, text, at):
    path = folder / "training" / "progress.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


def test_the_log_of_the_training_that_wrote_last_is_copied_with_each_progress(folders):
    job, work = folders
    log, reported = JobTrainingLog(job), []
    report = log.follow(lambda *progress: reported.append(progress))
    report(0.0, "before")
    log.watch(work)
    report(0.1, "nothing yet")
    assert not (job / LOG).exists()

    write(work, "one\n", 1)
    report(0.2, "a")
    assert (job / LOG).read_text() == "one\n"
    write(work / "change" / "pairs", "two\nthree\n", 2)
    report(0.3, "b")
    assert (job / LOG).read_text() == "two\nthree\n"
    assert [message for _, message in reported] == ["before", "nothing yet", "a", "b"]
    assert [path.name for path in job.iterdir()] == [LOG]


def test_a_job_folder_that_cannot_be_written_does_not_stop_the_training(folders):
    job, work = folders
    log, reported = JobTrainingLog(job / "gone"), []
    log.watch(work)
    write(work, "one\n", 1)
    log.follow(lambda *progress: reported.append(progress))(0.5, "goes on")
    assert reported == [(0.5, "goes on")]
