"""Fits on queries and their relevant documents, and chains with two sides, over HTTP."""

import json
import re

import pytest

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


def test_a_fit_on_pairs_runs_goes_live_and_has_relevance_in_its_certificate(app, source, finish):
    repeated = [*PAIRS, PAIRS[3], {"query": " what is  NUMBER 5?", "document": PAIRS[5]["document"]}]
    job = finish(post(app, name="to-the-end", steps=ADAPTER, source=source, pairs=repeated).json()["job_id"], app)
    assert (job["state"], job["error"]) == ("succeeded", None)
    result = job["result"]
    assert result["chain"] == "to-the-end@1" and result["promoted"]
    relevance = result["certificate"]["relevance"]
    assert relevance["queries"] == 52
    assert relevance["documents"] == 260
    assert set(relevance["ndcg_at_10"]) == {"before", "after", "gain", "ci95"}
    assert "2 pairs repeat others and count once" in result["certificate"]["warnings"]
    assert app.client.get("/chains/to-the-end").json()["certificate"] == result["certificate"]
    asked = {"inputs": PAIRS[0]["query"], "chain": "to-the-end"}
    for side in ("query", "document"):
        answer = app.client.post("/embed", json=asked | {"input_type": side})
        assert answer.headers["x-chain"] == "to-the-end@1" and len(answer.json()[0]) == 384


@pytest.mark.release
def test_a_fit_leaves_no_text_of_its_pairs_and_queries_in_the_state_folder(app, source, finish):
    pairs = [*PAIRS, {"query": "Who is Quillfeather Ozymandias?", "document": "Nobody by the name of Vexworthy."}]
    queries = {"texts": [*(pair["query"] for pair in PAIRS), "Where does Quillfeather live?"]}
    for body in ({"steps": ADAPTER, "pairs": pairs}, {"bytes": 24, "queries": queries}):
        job = finish(post(app, source=source, **body).json()["job_id"], app)
        assert (job["state"], job["error"]) == ("succeeded", None)
        files = [path for path in app.settings.home.rglob("*") if path.is_file()]
        assert [path for path in files if re.search(b"Quillfeather|Vexworthy", path.read_bytes())] == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"steps": ADAPTER}, "query_adapter is fitted on queries and their relevant documents"),
        ({"steps": [{"kind": "r2"}], "pairs": PAIRS}, "no step is fitted on pairs of query and document"),
        ({"steps": ADAPTER, "pairs": []}, "the list of pairs is empty"),
        ({"steps": {"query": [{"kind": "r2"}]}}, "steps with two sides have exactly query and document"),
        ({"steps": ADAPTER, "pairs": [{"query": "x"}]}, "document"),
        ({"steps": ADAPTER, "pairs": PAIRS[:149]}, "the pairs have 149 different queries: a fifth of them"),
        (
            {"steps": ADAPTER, "pairs": PAIRS, "test_pairs": PAIRS[200:240]},
            "40 queries of the test pairs are among the pairs to fit on, such as 'What is number 200?'",
        ),
    ],
)
def test_impossible_pairs_and_sides_are_refused_before_a_job_is_queued(app, source, more, words):
    before = app.client.get("/jobs").json()
    answer = post(app, source=source, **more)
    assert answer.status_code in (400, 422), answer.text
    assert words in answer.json()["error"]["message"]
    assert app.client.get("/jobs").json() == before


@pytest.mark.parametrize(
    ("more", "param"),
    [({"out_of_domain": {"news": "/etc/passwd"}}, "out_of_domain.news"), ({"test_pairs": "/etc/passwd"}, "test_pairs")],
)
def test_paths_of_a_fit_outside_of_the_data_folder_are_refused_by_the_name_of_their_field(app, source, more, param):
    answer = post(app, source=source, **{"steps": [{"kind": "r2"}]} | more)
    assert answer.status_code == 403 and answer.json()["error"]["param"] == param


@pytest.mark.release
def test_a_fit_reads_pairs_and_out_of_domain_text_below_the_data_folder(start_app, new_home, tmp_path, source, finish):
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    (tmp_path / "news.jsonl").write_text("\n".join(json.dumps({"text": f"News of day {day}."}) for day in range(60)))
    with start_app(home=new_home(), data_root=tmp_path) as app:
        more = {"pairs": "pairs.jsonl", "out_of_domain": {"news": "news.jsonl"}}
        job = finish(post(app, source=source, steps=ADAPTER, **more).json()["job_id"], app)
        assert (job["state"], job["error"]) == ("succeeded", None)
        assert "news" in job["result"]["certificate"]["out_of_domain"]
