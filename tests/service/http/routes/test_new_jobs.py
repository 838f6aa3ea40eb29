import io
import json

import numpy as np
import pytest

CERTIFICATE_KEYS = {
    "n_fit", "n_heldout", "seed", "local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress",
    "mean_norm", "isoscore", "bytes_per_vector", "out_of_domain", "warnings",
}  # fmt: skip
JOB_KEYS = {"id", "kind", "state", "progress", "message", "error", "result", "created_at", "finished_at"}


@pytest.fixture(scope="module")
def app(start_app, new_home, tmp_path_factory):
    """Start an app for this file, since its tests leave chains behind."""
    with start_app(home=new_home(), data_root=tmp_path_factory.mktemp("data")) as app:
        yield app


@pytest.fixture(scope="module")
def texts(paragraphs):
    return paragraphs[:120]


def submit(app, **body):
    """Submit a fit, assert that it is accepted, and return the job's id."""
    answer = app.client.post("/fit-transform", json=body, headers=app.admin)
    assert answer.status_code == 202, answer.text
    assert answer.json()["status_url"] == f"/jobs/{answer.json()['job_id']}"
    return answer.json()["job_id"]


@pytest.fixture(scope="module")
def fitted(app, texts, finish):
    """Fit a chain on 120 texts and return the finished job."""
    job_id = submit(
        app, name="mine", steps=[{"kind": "r2"}, {"kind": "geopres", "dimensions": 24, "steps": 40}],
        source={"texts": texts}, transform=True, serve_dimensions=True,
    )  # fmt: skip
    return finish(job_id, app)


def test_a_fit_job_has_the_documented_fields_result_certificate_and_events(app, fitted):
    assert set(fitted) == JOB_KEYS
    assert (fitted["state"], fitted["error"], fitted["progress"]) == ("succeeded", None, 1.0)
    result = fitted["result"]
    assert result["chain"] == "mine@1" and result["promoted"] and result["failed_gates"] == []
    assert CERTIFICATE_KEYS <= set(result["certificate"])
    assert result["certificate"]["out_of_domain"]["pydoc"]["recall_at_10"] > 0.1
    answer = app.client.get(f"/jobs/{fitted['id']}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    last = answer.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["state"] == "succeeded"


def test_a_fitted_chain_serves_at_once_by_name_and_with_serve_dimensions_by_its_size(app, fitted, texts):
    by_name = app.client.post("/embed", json={"inputs": texts[:4], "chain": "mine"})
    by_size = app.client.post("/embed", json={"inputs": texts[:4], "dimensions": 24})
    assert by_name.headers["x-chain"] == by_size.headers["x-chain"] == "mine@1"
    assert app.client.post("/embed", json={"inputs": "x", "dimensions": 25}).headers["x-chain"] == "compact@1"
    answer = app.client.get(fitted["result"]["vectors_url"])
    assert answer.headers["content-type"] == "application/x-npy"
    vectors = np.load(io.BytesIO(answer.content))
    assert vectors.shape == (len(texts), 24)
    np.testing.assert_allclose(vectors[:4], by_name.json(), atol=1e-5)


def test_get_chain_answers_steps_provenance_and_certificate(app, fitted):
    chain = app.client.get("/chains/mine").json()
    assert chain["live"] == 1
    assert [step["kind"] for step in chain["steps"]] == ["r2", "geopres"]
    assert chain["provenance"]["rows"] == 120
    assert chain["certificate"] == fitted["result"]["certificate"]
    assert [v["version"] for v in chain["versions"]] == [1]
    listed = {chain["name"]: chain for chain in app.client.get("/chains").json()}
    assert {"mine", "compact", "debias"} <= set(listed)
    assert "pydoc" in listed["compact"]["certificate"]["out_of_domain"]


def test_files_of_a_job_hold_no_submitted_text_and_are_readable_by_their_owner_only(app, fitted, texts):
    """A job's process writes the request, its log, vectors under way and a chain."""
    needle = texts[3][:40].encode()
    assert (app.settings.home / "jobs" / fitted["id"] / "vectors.npy").is_file()
    found = [path for path in app.settings.home.rglob("*") if not path.is_symlink()]
    assert [path for path in found if path.stat().st_mode & 0o077] == []
    assert [path for path in found if path.is_file() and needle in path.read_bytes()] == []


def test_a_version_that_fails_a_gate_is_stored_and_not_live(app, fitted, texts, finish):
    job = finish(
        submit(app, name="mine", steps=[{"kind": "geopres", "dimensions": 4, "steps": 5}], source={"texts": texts},
               gates={"local_spearman": 0.99, "positional_stress": 100.0}, promote=True), app,
    )  # fmt: skip
    assert job["state"] == "succeeded"
    assert (job["result"]["promoted"], job["result"]["failed_gates"]) == (False, ["local_spearman"])
    assert app.client.get("/chains/mine").json()["live"] == 1
    assert app.client.post("/chains/mine/promote", json={"version": 2}).status_code == 401


def test_a_chain_fitted_on_vectors_is_served_by_reduce_and_refused_by_embed(app, finish):
    rows = (np.random.default_rng(0).normal(size=(300, 20)) + 0.5).tolist()
    job = finish(submit(app, name="unnamed", steps=[{"kind": "r2"}, {"kind": "geopres", "dimensions": 5, "steps": 5}],
                        source={"vectors": rows}, transform=True), app)  # fmt: skip
    assert job["state"] == "succeeded", job["error"]
    assert any("out-of-domain" in warning for warning in job["result"]["certificate"]["warnings"])
    reduced = app.client.post("/reduce", json={"vectors": rows[:3], "chain": "unnamed"}).json()["vectors"]
    vectors = np.load(io.BytesIO(app.client.get(job["result"]["vectors_url"]).content))
    np.testing.assert_allclose(reduced, vectors[:3], atol=1e-5)
    answer = app.client.post("/embed", json={"inputs": "x", "chain": "unnamed"})
    assert answer.status_code == 409 and answer.json()["error"]["code"] == "space_mismatch"


def test_a_fit_from_a_path_reads_the_data_folder_and_changes_no_answer_to_a_request_for_dimensions(
    app, fitted, texts, finish
):
    (app.settings.data_root / "some.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    embed = {"inputs": "a text", "dimensions": 20}
    before = app.client.post("/embed", json=embed)
    steps = [{"kind": "geopres", "dimensions": 20, "steps": 4, "nested": True}]
    job = finish(submit(app, name="pathed", steps=steps, source={"path": "some.jsonl#body"}), app)
    assert job["state"] == "succeeded", job["error"]
    assert job["result"]["promoted"] and job["result"]["size_routes"] == []
    after = app.client.post("/embed", json=embed)
    assert after.headers["x-space-id"] == before.headers["x-space-id"] and after.json() == before.json()


@pytest.mark.parametrize("what", ["source", "targets"])
def test_fit_transform_refuses_paths_that_lead_out_of_the_data_folder_or_would_have_to_be_fetched(app, what):
    """Nobody makes the server fetch anything."""
    link = app.settings.data_root / f"{what}.jsonl"
    link.symlink_to("/etc/hostname")
    for path, status, words in [
        (link.name, 403, "outside the server's data folder"),
        ("s3://bucket/a.npy", 403, "reads no URLs"),
        ("memory://texts.jsonl#body", 403, "reads no URLs"),
        ("file:///etc/hosts", 403, "reads no URLs"),
        ("HTTP://a/b.txt", 403, "reads no URLs"),
        ("hf:me/news/en:train#text", 400, "reads no data sets from the hub"),
        ("hf:/etc", 400, "reads no data sets from the hub"),
    ]:
        sources = {"source": {"vectors": [[row, 1.0] for row in range(8)]}} | {what: {"path": path}}
        body = {"name": "x", "steps": [{"kind": "procrustes" if what == "targets" else "r2"}]} | sources
        answer = app.client.post("/fit-transform", headers=app.admin, json=body)
        error = answer.json()["error"]
        assert answer.status_code == status and words in error["message"] and error["param"] == "source.path", path


def test_a_malformed_source_file_fails_the_job_with_its_line_number(app, finish):
    (app.settings.data_root / "bad.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    job = finish(submit(app, name="bad", steps=[{"kind": "r2"}], source={"path": "bad.jsonl"}), app)
    assert job["state"] == "failed" and "line 2" in job["error"]
    assert app.client.get("/chains/bad").status_code == 404


def test_an_admin_can_assign_a_size_route(app, fitted):
    put = app.client.put
    assert put("/encoders/all-MiniLM-L6-v2/dimensions/96", json={"chain": "compact"}).status_code == 401
    for path, chain, status in [
        ("/encoders/all-MiniLM-L6-v2/dimensions/24", "compact", 200),
        ("/encoders/all-MiniLM-L6-v2/dimensions/25", "mine@1", 400),
        ("/encoders/all-MiniLM-L6-v2/dimensions/24", "nobody", 404),
        ("/encoders/all-MiniLM-L6-v2/dimensions/x", "compact", 422),
        ("/encoders/nobody/dimensions/24", "compact", 404),
    ]:
        assert put(path, json={"chain": chain}, headers=app.admin).status_code == status
    assert app.client.post("/embed", json={"inputs": "x", "dimensions": 24}).headers["x-chain"] == "compact@1"
    described = app.client.get("/encoders").json()[0]
    assert described["size_routes"]["24"] == "compact" and described["nested"] == "compact"
    put("/encoders/all-MiniLM-L6-v2/dimensions/24", json={"chain": "mine"}, headers=app.admin)


def test_a_chain_in_use_is_deleted_only_with_force(app, fitted):
    app.services.registry.publish(app.services.registry.load("mine@1").chain, "used", None)
    assert app.client.put("/indexes/of-used", json={"chain": "used"}, headers=app.admin).status_code == 200
    refused = app.client.delete("/chains/used/1", headers=app.admin)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "chain_in_use"
    assert "the index of-used" in refused.json()["error"]["message"]
    assert app.client.delete("/chains/used/1?force=true", headers=app.admin).status_code == 200
    refused = app.client.delete("/chains/mine/1", headers=app.admin)
    assert refused.status_code == 409 and "dimensions 24" in refused.json()["error"]["message"]


@pytest.mark.parametrize("rows", ["texts", "pairs"])
def test_a_body_of_many_short_rows_takes_little_more_memory_than_itself(lathe, rows):
    """The watch on the memory of requests fails this test otherwise. The fit is refused once the rows are stored."""
    source = {"texts": [f"t{n}" for n in range(100_000)] if rows == "texts" else ["a", "b", "c", "d"]}
    pairs = [{"query": f"q{n}", "document": f"d{n}"} for n in range(50_000)] if rows == "pairs" else None
    body = {"name": "many", "steps": [{"kind": "geopres", "dimensions": 500}], "source": source, "pairs": pairs}
    answer = lathe.client.post("/fit-transform", json=body, headers=lathe.admin)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("field", ["gates", "out_of_domain"])
def test_more_entries_than_anybody_needs_are_refused(lathe, field):
    many = {f"e{n}": 1.0 if field == "gates" else "x" for n in range(1001)}
    body = {"name": "many", "steps": [{"kind": "r2"}], "source": {"texts": ["a"]}, field: many}
    answer = lathe.client.post("/fit-transform", json=body, headers=lathe.admin)
    assert answer.status_code == 400 and "at most 1000" in answer.json()["error"]["message"], answer.text
