import json

import pytest


@pytest.fixture(scope="module")
def app(start_app, new_home, tmp_path_factory):
    """Start an app for this file, since its tests leave chains behind."""
    with start_app(home=new_home(), data_root=tmp_path_factory.mktemp("data")) as app:
        yield app


def post(app, **body):
    """Post a body to `/fit-transform` as an admin."""
    return app.client.post("/fit-transform", json=body, headers=app.admin)


@pytest.fixture(scope="module")
def grown(app, paragraphs, finish):
    """Fit a chain with stored moments, add texts to it, and return the job that added them."""
    first = post(app, name="grown", steps=[{"kind": "r2"}, {"kind": "pca", "dimensions": 16}], keep_moments=True,
                 source={"texts": paragraphs[:100]})  # fmt: skip
    assert finish(first.json()["job_id"], app)["state"] == "succeeded"
    second = post(app, name="grown", add_to="grown@1", source={"texts": paragraphs[100:180]}, promote=True)
    assert second.status_code == 202, second.text
    return finish(second.json()["job_id"], app)


def test_add_to_makes_a_version_with_summed_moments_that_is_compared_to_the_old_one(app, grown):
    assert grown["state"] == "succeeded", grown["error"]
    result = grown["result"]
    assert (result["chain"], result["promoted"]) == ("grown@2", True)
    assert result["certificate"]["compared_to"]["chain"] == "grown@1"
    chain = app.client.get("/chains/grown").json()
    assert chain["provenance"]["added_to"][0]["chain"] == "grown@1"
    counts = [version["moments"]["count"] for version in chain["versions"]]
    assert counts == [v["certificate"]["n_fit"] for v in chain["versions"]] and counts[0] < counts[1]
    assert app.client.post("/embed", json={"inputs": "x", "chain": "grown"}).headers["x-chain"] == "grown@2"


def test_an_invalid_add_to_request_is_refused_before_a_job_is_queued(app, grown, paragraphs):
    for change, status, words in [
        ({"steps": [{"kind": "r2"}]}, 400, "give steps, bytes or both, or add_to"),
        ({"add_to": "grown@99"}, 404, "no version 99"),
        ({"add_to": "compact@1"}, 400, "keep_moments"),
        ({"add_to": 7}, 422, "add_to"),
        ({"keep_moments": True}, 400, "keeps the steps of the version"),
        ({"source": {"vectors": [[1.0, 2.0]] * 60}}, 409, "those of all-MiniLM-L6-v2 have 384"),
    ]:
        answer = post(app, **{"name": "grown", "add_to": "grown@1", "source": {"texts": paragraphs[:60]}} | change)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["error"]["message"]


@pytest.mark.release
def test_fit_add_to_takes_encoder_and_steps_from_the_version(run, paragraphs, tmp_path):
    for name, texts in (("may", paragraphs[:100]), ("june", paragraphs[100:180])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    may, june = tmp_path / "may.jsonl", tmp_path / "june.jsonl"
    assert run("fit", "--name", "mine", "--steps", "r2,pca:16", "--source", may, "--keep-moments")[0] == 0
    status, out, err = run("fit", "--name", "mine", "--add-to", "mine@1", "--source", june)
    assert status == 0, err
    assert "difference to mine@1 on the same rows" in out and "lathe chains promote mine@2" in out
    shown = json.loads(run("chains", "show", "mine@2")[1])
    assert shown["certificate"]["compared_to"]["chain"] == "mine@1"
    assert [step["kind"] for step in shown["steps"]] == ["r2", "pca"]
    assert shown["encoder"]["name"] == "all-MiniLM-L6-v2"

    assert run("embed", "--source", june, "--out", tmp_path / "june.npy")[0] == 0
    assert run("fit", "--name", "mine", "--add-to", "mine@2", "--source", tmp_path / "june.npy")[0] == 0
