"""Indexes whose chain ends in codes, over HTTP and from the command line."""

from itertools import count

import pytest

numbers = count()
CODES = {"chain": "codes48"}


@pytest.fixture
def fill(app, sentences):
    """Return a function that creates an index of the sentences, and returns its path."""

    def make(**body):
        path = f"/indexes/index-{next(numbers)}"
        created = app.client.put(path, json=body, headers=app.admin)
        assert created.status_code == 200, created.text
        ok(app, f"{path}/upsert", ids=list("abcdef"), texts=sentences, metadata=[{"n": n} for n in range(6)])
        return path

    return make


def ok(app, path, **body):
    answer = app.client.post(path, json=body, headers=app.admin)
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


def refused(app, path, **body):
    answer = app.client.post(path, json=body, headers=app.admin)
    return answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["message"]


def scores_by_id(found):
    return [{hit["id"]: hit["score"] for hit in hits} for hits in found["results"]]


def test_originals_none_is_refused_for_a_chain_without_codes(app):
    for chain in ("compact", "none"):
        answer = app.client.put("/indexes/wrong", json={"chain": chain, "originals": "none"}, headers=app.admin)
        assert answer.status_code == 400 and "ends in codes" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "originals"
    assert app.client.get("/indexes/wrong").status_code == 404


def test_whatever_needs_originals_is_answered_409_where_none_are_stored(app, fill):
    path = fill(**CODES, originals="none")
    for call, body in {
        "search": {"texts": ["a"], "rescore": 4},
        "get": {"ids": ["a"], "vectors": True},
        "reindex": {"chain": "compact"},
    }.items():
        status, code, message = refused(app, f"{path}/{call}", **body)
        assert (status, code) == (409, "no_originals") and "originals: none" in message
    assert refused(app, f"{path}/reindex", chain="none")[1] == "no_originals"
    assert ok(app, f"{path}/get", ids=["a"])["items"][0]["metadata"] == {"n": 0}
    assert app.client.put(path, json=CODES | {"originals": "float32"}, headers=app.admin).status_code == 409


@pytest.mark.release
def test_an_index_without_originals_is_compacted_and_gets_another_graph_and_metric(app, fill, sentences, finish):
    path = fill(**CODES, originals="none")
    before = scores_by_id(ok(app, f"{path}/search", texts=sentences, k=6))
    ok(app, f"{path}/delete", ids=["f"])
    ok(app, f"{path}/upsert", ids=["a"], texts=[sentences[0]])
    for body in ({}, {"m": 8, "chain": "codes48"}, {"metric": "ip"}):
        job = finish(ok(app, f"{path}/reindex", **body)["job_id"], app)
        assert job["state"] == "succeeded", job["error"]
    described = app.client.get(path).json()
    assert (described["deleted"], described["count"], described["m"], described["metric"]) == (0, 5, 8, "ip")
    after = scores_by_id(ok(app, f"{path}/search", texts=sentences, k=6))
    for one, other in zip(after, before, strict=True):
        assert one == pytest.approx({item: score for item, score in other.items() if item != "f"}, abs=1e-4)


def test_an_index_moves_from_floats_to_codes_and_back(app, fill, sentences, finish):
    path = fill(chain="compact")
    before = ok(app, f"{path}/search", texts=sentences, k=6)
    for chain in ("codes48", "compact"):
        job = finish(ok(app, f"{path}/reindex", chain=chain)["job_id"], app)
        assert job["state"] == "succeeded", job["error"]
        assert app.client.get(path).json()["chain"] == f"{chain}@1"
        expected = scores_by_id(before if chain == "compact" else ok(app, f"{fill(**CODES)}/search", texts=sentences))
        found = scores_by_id(ok(app, f"{path}/search", texts=sentences, k=6))
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-4)
        rescored = ok(app, f"{path}/search", texts=sentences, k=1, rescore=6)["results"]
        assert [hits[0]["id"] for hits in rescored] == list("abcdef")
