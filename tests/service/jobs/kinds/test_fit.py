import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lathe.service.chains.fits import FitSetting, run_fit
from lathe.service.chains.registry import Registry
from lathe.training.fitting.requests import AddRows, NewFit
from lathe.transforms.artifact import TENSORS, load_moments
from lathe.transforms.progress import no_progress


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


def test_add_to_without_a_version_adds_to_the_live_one(app, grown, paragraphs, finish):
    job = finish(post(app, name="grown", add_to="grown", source={"texts": paragraphs[:60]}).json()["job_id"], app)
    assert job["result"]["certificate"]["compared_to"]["chain"] == "grown@2"


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"steps": [{"kind": "r2"}]}, 400, "give steps, bytes or both, or add_to"),
        ({"add_to": None}, 400, "give steps, bytes or both, or add_to"),
        ({"add_to": "nobody@1"}, 404, "no chain"),
        ({"add_to": "grown@99"}, 404, "no version 99"),
        ({"add_to": "compact@1"}, 400, "keep_moments"),
        ({"add_to": 7}, 422, "add_to"),
        ({"keep_moments": True}, 400, "keeps the steps of the version"),
        ({"targets": {"vectors": [[1.0, 2.0]] * 60}}, 400, "targets: unknown field; add_to keeps the steps"),
        ({"encoder": "nobody"}, 404, "nobody"),
    ],
)
def test_an_invalid_add_to_request_is_refused_before_a_job_is_queued(app, grown, paragraphs, change, status, words):
    answer = post(app, **{"name": "grown", "add_to": "grown@1", "source": {"texts": paragraphs[:60]}} | change)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_add_to_refuses_texts_for_a_chain_without_an_encoder_and_rows_of_other_dimensions(app, paragraphs, finish):
    rows = (np.random.default_rng(0).normal(size=(200, 20)) + 0.5).tolist()
    made = post(app, name="unnamed", steps=[{"kind": "r2"}], source={"vectors": rows}, keep_moments=True)
    assert finish(made.json()["job_id"], app)["state"] == "succeeded"
    answer = post(app, name="unnamed", add_to="unnamed@1", source={"texts": paragraphs[:60]})
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "space_mismatch"
    narrow = post(app, name="unnamed", add_to="unnamed@1", source={"vectors": [row[:16] for row in rows]})
    assert narrow.status_code == 400 and "20 dimensions" in narrow.json()["error"]["message"]
    others = (np.random.default_rng(1).normal(size=(200, 20)) + 0.5).tolist()
    more = finish(post(app, name="unnamed", add_to="unnamed@1", source={"vectors": others}).json()["job_id"], app)
    assert more["result"]["chain"] == "unnamed@2"


def test_damaged_stored_moments_fail_the_job_and_the_chain_still_serves(app, grown, paragraphs, finish):
    made = post(app, name="frail", steps=[{"kind": "r2"}], source={"texts": paragraphs[:60]}, keep_moments=True)
    finish(made.json()["job_id"], app)
    assert app.client.post("/embed", json={"inputs": "x", "chain": "frail"}).status_code == 200
    path = app.settings.home / "chains/frail/1" / TENSORS
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + bytes(8))
    job = finish(post(app, name="frail", add_to="frail@1", source={"texts": paragraphs[:60]}).json()["job_id"], app)
    assert job["state"] == "failed" and "altered" in job["error"]
    assert app.client.post("/embed", json={"inputs": "x", "chain": "frail"}).headers["x-chain"] == "frail@1"


def test_openapi_declares_keep_moments_and_add_to(app):
    schema = app.client.get("/openapi.json").json()["paths"]["/fit-transform"]["post"]["requestBody"]
    properties = schema["content"]["application/json"]["schema"]["properties"]
    assert {"keep_moments", "add_to"} <= properties.keys()


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--add-to", "compact@1", "--steps", "r2"], "give --steps, --bytes or both, or --add-to"),
        ([], "give --steps, --bytes or both, or --add-to"),
        (["--add-to", "compact@1"], "--keep-moments"),
        (["--add-to", "nobody@1"], "no chain"),
    ],
)
def test_fit_prints_one_line_for_an_invalid_add_to(run, arguments, words):
    status, out, err = run("fit", "--name", "a", "--source", "pydoc:", *arguments)
    assert status == 1 and words in err and len(err.strip().splitlines()) == 1 and out == ""


def test_concurrent_additions_to_one_version_become_separate_versions(tmp_path):
    registry = Registry(tmp_path / "chains")
    rng = np.random.default_rng(0)
    for name in "abcd":
        np.save(tmp_path / f"{name}.npy", (rng.normal(size=(200, 12)) + 0.4).astype(np.float32))

    context = FitSetting(registry, tmp_path / "work", "lathe fit")

    def fit(kind, name, **request):
        asked = kind(name="n", source=str(tmp_path / f"{name}.npy"), **request)
        return run_fit(asked, context, no_progress)["chain"]

    fit(NewFit, "a", steps=[{"kind": "r2"}], keep_moments=True)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda name: fit(AddRows, name, add_to="n@1"), "bcd"))
    assert sorted(made) == ["n@2", "n@3", "n@4"]
    counts = [load_moments(registry.root / "n" / str(version))[1].count for version in (1, 2, 3, 4)]
    assert counts == [150, 300, 300, 300]
