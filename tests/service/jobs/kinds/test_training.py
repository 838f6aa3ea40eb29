import os

import numpy as np
import pytest

from lathe.service.jobs.job import LOG
from lathe.service.jobs.kinds import training
from lathe.service.jobs.kinds.training import JobTrainingLog


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Return the folder of a job, and the work folder of its trainings."""
    monkeypatch.setattr(training, "COPY_SECONDS", 0.0)
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


@pytest.fixture(scope="module")
def app(start_app, new_home):
    with start_app(home=new_home()) as app:
        yield app


@pytest.fixture(scope="module")
def vectors():
    """Draw vectors of 32 dimensions, of which few matter."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((1100, 6)) @ rng.standard_normal((6, 32)) + 0.01 * rng.standard_normal((1100, 32))


def ask(app, status=202, **body):
    """Post a body to `/advise`, assert the status, and return the JSON."""
    answer = app.client.post("/advise", json=body, headers=app.admin)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_advise_job_on_vectors_gives_a_decision_a_report_page_and_a_chain(app, vectors, finish):
    asked = {"place": "memory", "rows": 50_000_000, "recall": 0.5, "fit": "from-advice", "evidence": False}
    job = ask(app, source={"vectors": vectors.tolist()}, **asked)
    assert job["status_url"] == f"/jobs/{job['job_id']}"
    done = finish(job["job_id"], app)
    assert (done["kind"], done["state"], done["error"]) == ("advise", "succeeded", None)
    result = done["result"]
    steps = result["decision"]["chosen"]["candidate"]["form"]["steps"]
    assert steps.startswith("pca:") and result["encoder"] is None and result["evidence"] is None
    assert result["fit"]["chain"] == "from-advice@1"
    reduced = app.client.post("/reduce", json={"vectors": vectors[:2].tolist(), "chain": "from-advice"}).json()
    assert f"pca:{reduced['dimensions']},center=none" == steps
    page = app.client.get(result["report_url"])
    assert page.headers["content-type"].startswith("text/html") and "What it can hold" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_an_invalid_advise_request_is_refused_at_once(app):
    for status, body in [
        (422, {}),
        (422, {"source": {"texts": "one text"}}),
        (400, {"source": {"texts": []}}),
        (400, {"source": {"texts": ["the same", "the same"]}}),
        (400, {"source": {"vectors": [[1.0, 2.0]]}, "encoder": "all-MiniLM-L6-v2"}),
        (404, {"source": {"texts": ["a"]}, "encoder": "nobody"}),
        (400, {"source": {"texts": ["a"]}, "recall": 2}),
        (400, {"source": {"texts": ["a"]}, "keep": 0.9}),
        (400, {"source": {"texts": ["a"]}, "place": "oracle"}),
        (403, {"source": {"path": "texts.jsonl"}}),
    ]:
        assert ask(app, status, **body)["error"]["message"], body
    error = ask(app, 400, source={"texts": ["a"]}, fit="a b")["error"]
    assert error["param"] == "fit" and "'a b' cannot name a chain" in error["message"]


def test_advise_job_fails_with_the_number_of_distinct_rows_if_there_are_too_few(app, finish):
    rows = [[1.0, 2.0]] * 1200
    done = finish(ask(app, source={"vectors": rows})["job_id"], app)
    assert done["state"] == "failed" and "1 distinct rows" in done["error"]
    answer = app.client.get(f"/jobs/{done['id']}/report")
    assert answer.status_code == 404 and "no report" in answer.json()["error"]["message"]
