import numpy as np
import pytest


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(120, 8))
    rotation, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    return rows.tolist(), (rows @ rotation).tolist()


def post(app, **body):
    return app.client.post("/fit-transform", json={"name": "aligned"} | body, headers=app.admin)


def test_procrustes_fit_aligns_vectors_with_the_submitted_targets(app, pairs, finish):
    vectors, targets = pairs
    answer = post(app, steps=[{"kind": "procrustes"}], source={"vectors": vectors}, targets={"vectors": targets})
    assert answer.status_code == 202, answer.text
    job = finish(answer.json()["job_id"], app)
    assert job["state"] == "succeeded", job["error"]
    assert job["result"]["certificate"]["alignment"]["cosine"] == pytest.approx(1, abs=1e-5)
    reduced = app.client.post("/reduce", json={"vectors": vectors[:3], "chain": "aligned"}).json()["vectors"]
    expected = np.array(targets[:3]) / np.linalg.norm(targets[:3], axis=1, keepdims=True)
    np.testing.assert_allclose(reduced, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [
        ({}, 400, "procrustes is fitted on pairs"),
        ({"targets": {"texts": ["a", "b"]}}, 400, "name their target_encoder"),
        ({"targets": {"path": "/etc/passwd"}}, 403, "paths are off"),
        ({"target_encoder": "nobody"}, 404, "there is no target_encoder 'nobody'"),
        ({"steps": [{"kind": "r2"}], "targets": {"vectors": [[1.0, 2.0]]}}, 400, "no step is fitted on targets"),
    ],
)
def test_fit_transform_refuses_missing_or_invalid_targets(app, pairs, more, status, reason):
    answer = post(app, **({"steps": [{"kind": "procrustes"}], "source": {"vectors": pairs[0]}} | more))
    assert answer.status_code == status, answer.text
    assert reason in answer.json()["error"]["message"]
