"""Fits on queries and their relevant documents, and chains with two sides, over HTTP."""

import json
from dataclasses import replace

import pytest

from service.jobs.kinds.fit import build_fit_job
from service.jobs.requests import parse_request
from training.fitting.fit_request import FitRequest

ADAPTER = [{"kind": "query_adapter", "steps": 20}]
PAIRS = [{"query": f"What is number {n}?", "document": f"This text is about {n}."} for n in range(260)]


@pytest.fixture(scope="module")
def app(start_app, new_home):
    with start_app(home=new_home()) as app:
        yield app


@pytest.fixture(scope="module")
def source():
    return {"texts": [pair["document"] for pair in PAIRS[:200]]}


def post(app, **body):
    return app.client.post("/fit-transform", json={"name": "adapted"} | body, headers=app.admin)


def test_pairs_and_sides_are_queued_with_the_job(app, source):
    steps = {"query": [{"kind": "r2"}], "document": []}
    for more in ({"steps": steps, "test_pairs": PAIRS[:40]}, {"steps": ADAPTER, "pairs": PAIRS}):
        answer = post(app, source=source, **more)
        assert answer.status_code == 202, answer.text
        assert app.client.delete(f"/jobs/{answer.json()['job_id']}", headers=app.admin).status_code in (200, 202, 204)


def test_a_job_keeps_its_pairs_and_one_of_an_earlier_version_has_none():
    asked = FitRequest("adapted", ADAPTER, "source.jsonl", pairs="pairs.jsonl", test_pairs="test_pairs.jsonl")
    files = ["source.jsonl", "pairs.jsonl", "test_pairs.jsonl"]
    written = build_fit_job(asked, None, False, files)
    read = parse_request("fit", json.dumps(written).encode())
    assert (read.request.pairs, read.request.test_pairs) == ("pairs.jsonl", "test_pairs.jsonl")
    assert read.paths == [] and set(read.files) == set(files)
    assert "pairs" not in build_fit_job(replace(asked, pairs=None, test_pairs=None), None, False, files)["request"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"steps": ADAPTER}, "query_adapter is fitted on queries and their relevant documents"),
        ({"steps": [{"kind": "r2"}], "pairs": PAIRS}, "no step is fitted on pairs of query and document"),
        ({"steps": ADAPTER, "pairs": []}, "the list of pairs is empty"),
        ({"steps": {"query": [{"kind": "r2"}]}}, "steps with two sides have exactly query and document"),
        ({"steps": {"query": [], "document": []}}, "neither queries nor documents have a step"),
        ({"steps": ADAPTER, "pairs": [{"query": "x"}]}, "document"),
        ({"steps": ADAPTER, "pairs": [{"query": "", "document": "y"}]}, "at least 1 character"),
    ],
)
def test_impossible_pairs_and_sides_are_refused_before_a_job_is_queued(app, source, more, words):
    before = app.client.get("/jobs").json()
    answer = post(app, source=source, **more)
    assert answer.status_code in (400, 422), answer.text
    assert words in answer.json()["error"]["message"]
    assert app.client.get("/jobs").json() == before
