"""Fits on queries and their relevant documents, and chains with two sides, over HTTP."""

import pytest

from service.cli.fit import format_fit_result

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


def test_a_fit_on_pairs_is_certified_by_other_queries_and_served(app, source, finish):
    steps = {"query": [{"kind": "r2"}], "document": [{"kind": "r2"}]}
    sides = finish(post(app, name="sides", steps=steps, source=source, test_pairs=PAIRS[:40]).json()["job_id"], app)
    assert sides["state"] == "succeeded", sides["error"]
    assert sides["result"]["certificate"]["relevance"]["queries"] == 40
    answer = post(app, steps=ADAPTER, source=source, pairs=PAIRS)
    assert answer.status_code == 202, answer.text
    job = finish(answer.json()["job_id"], app)
    assert job["state"] == "succeeded", job["error"]
    relevance = job["result"]["certificate"]["relevance"]
    assert (relevance["queries"], relevance["documents"]) == (52, 260)
    printed = format_fit_result(job["result"])
    assert "ndcg_at_10, 52 queries" in printed
    assert "recall_at_10, halves of pydoc" in printed
    for input_type in ("query", "document"):
        body = {"inputs": "What is number 3?", "chain": "adapted", "input_type": input_type}
        assert app.client.post("/embed", json=body).status_code == 200


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


def test_too_few_pairs_end_the_job_with_the_reason(app, source, finish):
    job = finish(post(app, name="few", steps=ADAPTER, source=source, pairs=PAIRS[:100]).json()["job_id"], app)
    assert job["state"] == "failed"
    assert "the pairs have 100 different queries" in job["error"]
    assert app.client.get("/chains/few").status_code == 404
