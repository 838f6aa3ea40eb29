"""Adaptations to judged searches over HTTP."""

import json

import pytest

from tests.helpers import eventually

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
PAIRS = [
    {"query": f"what of the {WORDS[n % 10]} {n}?", "document": f"the {WORDS[n % 10]} of {n} and {n % 7}"}
    for n in range(200)
]


@pytest.fixture(scope="module")
def app(start_app, new_home, tmp_path_factory, tiny_model):
    """Start an app whose default encoder is tiny, with documents in its data folder."""
    data = tmp_path_factory.mktemp("data")
    lines = "".join(f"{json.dumps({'text': pair['document']})}\n" for pair in PAIRS)
    (data / "documents.jsonl").write_text(lines)
    encoders = [{"name": "tiny", "model": str(tiny_model)}]
    with start_app(home=new_home(), data_root=data, encoders=encoders, device="cpu") as started:
        yield started


def submit(app, **changed):
    body = {"source": {"path": "documents.jsonl"}, "pairs": PAIRS, "name": "mine", "train": False} | changed
    return app.client.post("/adapt", json=body, headers=app.admin)


def test_an_adaptation_ends_with_one_recommendation_and_all_that_was_measured(app):
    answer = submit(app, bytes=8)
    assert answer.status_code == 202, answer.text
    url = f"/jobs/{answer.json()['job_id']}"
    eventually(lambda: app.client.get(url).json()["finished_at"], 60)
    job = app.client.get(url).json()
    assert job["state"] == "succeeded", job
    result = job["result"]
    assert result["queries"] == {"learn": 120, "choose": 80, "report": 80}
    assert result["sentence"]
    tried = [(trial["change"], trial["bytes"]) for trial in result["trials"] if not trial["problem"]]
    assert tried[:2] == [("as_is", None), ("debias", None)]
    assert ("as_is", 8) in tried
    assert result["bytes"] in (None, 8)
    assert "chain" in result  # codes of the bytes that were asked for, whatever comes before them


@pytest.mark.parametrize(
    "changed, status, words",
    [
        ({"pairs": []}, 400, "the list of pairs is empty"),
        ({"pairs": [{"query": "a", "document": "b", "position": 3}]}, 400, "the ranking that is to be improved"),
        ({"pairs": "../secret.jsonl"}, 403, "outside"),
        ({"source": {"vectors": [[1.0, 0.0]]}}, 400, "an adaptation encodes texts"),
        ({"folders": ["none"], "train": True}, 404, "there is no"),
        ({"folders": ["none"]}, 400, "folders are for training"),
        ({"name": "tiny", "train": True}, 409, "in use by another encoder"),
        ({"encoder": "nobody"}, 404, "nobody"),
    ],
)
def test_requests_that_cannot_be_done_are_refused_at_once(app, changed, status, words):
    answer = submit(app, **changed)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_adaptations_are_for_administrators(app):
    assert app.client.post("/adapt", json={}).status_code == 401
