"""Shadows: a candidate is measured on live rows besides the live version, without affecting clients."""

import threading
import time

import numpy as np
import pytest

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.registry import Registry
from lathe.service.chains.starters import STARTERS
from lathe.service.monitoring.shadow.neighbours import compare_neighbours
from lathe.service.monitoring.shadow.plan import ShadowPlan
from lathe.service.monitoring.shadow.reservoir import Reservoir
from lathe.service.monitoring.shadow.shadow import Shadow
from lathe.service.monitoring.shadow.side import ShadowSide
from lathe.transforms import recall_at_k

NAME = "trial"
PLAN = {"version": 3, "share": 1.0}


@pytest.fixture
def trial(lathe, add_version, real_rows):
    """Publish `compact` as the live version of a chain, and add a candidate fitted on other text."""
    registry = lathe.services.registry
    add_version(NAME, real_rows)
    registry.delete(NAME, 1)
    registry.publish(Registry(STARTERS).load("compact").chain, NAME, True)
    add_version(NAME, real_rows, promote=False)
    yield lathe
    lathe.services.shadows.replace_shadow(NAME, None)


def shadow(app, **body):
    """Start a shadow of version 3; return its report."""
    answer = app.client.put(f"/chains/{NAME}/shadow", json=PLAN | body, headers=app.admin)
    assert answer.status_code == 200, answer.text
    return answer.json()


def report(app):
    """Return the report of the shadow."""
    answer = app.client.get(f"/chains/{NAME}/shadow")
    assert answer.status_code == 200, answer.text
    return answer.json()


def send(app, rows, chain=NAME):
    """Send rows through a chain with `/reduce`; return the vectors."""
    answer = app.client.post("/reduce", json={"vectors": rows.tolist(), "chain": chain})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["vectors"])


def seen(app, condition):
    """Wait until a condition on the shadow's report holds, and return the report."""
    deadline = time.monotonic() + 20
    while not condition(found := report(app)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def promote(app, **body):
    """Promote a version over HTTP; return the status and the JSON."""
    answer = app.client.post(f"/chains/{NAME}/promote", json={"version": 3} | body, headers=app.admin)
    return answer.status_code, answer.json()


# The sample


def test_reservoir_keeps_each_row_with_equal_probability_however_rows_are_split():
    stayed = np.zeros(40)
    for seed in range(2000):
        reservoir = Reservoir(10, 1, np.random.default_rng(seed))
        for part in np.array_split(np.arange(40, dtype=np.float32)[:, None], 1 + seed % 7):
            reservoir.add(part)
        stayed[reservoir.copy_distinct()[:, 0].astype(int)] += 1
    assert stayed.sum() == 10 * 2000 and np.abs(stayed / 2000 - 0.25).max() < 0.05  # five standard deviations


def test_reservoir_copy_distinct_has_each_row_once():
    reservoir = Reservoir(10, 2, np.random.default_rng(0))
    reservoir.add(np.float32([[1, 2], [3, 4], [1, 2], [1, 2]]))
    assert reservoir.copy_distinct().tolist() == [[1, 2], [3, 4]]


# The figures


def test_compare_neighbours_gives_1_for_equal_outputs_and_0_for_rows_that_are_not_finite(real_rows):
    found = compare_neighbours(real_rows, real_rows[:, :64], real_rows[:, :64], 10)
    assert found["agreement_at_k"] == {"value": 1, "low": 1, "high": 1}
    recall = recall_at_k(real_rows, real_rows[:, :64], 10)
    assert found["raw_recall_at_k"]["live"]["value"] == pytest.approx(recall)
    assert found["raw_recall_at_k"]["difference"] == {"value": 0, "low": 0, "high": 0}
    spoiled = real_rows[:, :64].copy()
    spoiled[::2] = np.nan
    found = compare_neighbours(real_rows, real_rows[:, :64], spoiled, 10)
    assert found["agreement_at_k"]["value"] == 0.5
    assert found["raw_recall_at_k"]["difference"]["high"] < 0


def test_compare_neighbours_gives_none_with_k_rows_or_a_failed_version(real_rows):
    assert compare_neighbours(real_rows[:10], real_rows[:10], real_rows[:10], 10)["agreement_at_k"] is None
    found = compare_neighbours(real_rows, real_rows, None, 10)
    assert found["agreement_at_k"] is found["raw_recall_at_k"]["candidate"] is None
    assert found["raw_recall_at_k"]["live"]["value"] == 1


def test_shadow_side_counts_failed_rows_and_stores_the_error_without_raising():
    side = ShadowSide(Registry(STARTERS).load("compact"))
    assert side.measure(np.zeros((3, 5), np.float32)) is None
    assert (side.failed, side.bad_rows) == (3, 3) and "384" in side.error


def test_shadow_side_counts_outputs_without_norm_1(real_rows):
    side = ShadowSide(Registry(STARTERS).load("compact"))
    side.measure(np.concatenate([real_rows[:5], np.zeros((2, 384), np.float32)]))  # nothing has no direction
    assert side.describe_problems() == {"not_finite": 0, "off_norm": 2, "failed": 0, "error": None}


# On the server


def test_a_shadows_figures_are_those_of_all_rows_through_the_live_version(trial, real_rows):
    registry = trial.services.registry
    began = shadow(trial)
    assert (began["live"], began["candidate"], began["state"], began["rows"]) == (2, 3, "running", 0)
    assert began["agreement_at_k"] is began["latency_ms"] is None and began["verdict"] == "no gates"
    answered = send(trial, real_rows)
    send(trial, real_rows[:50])
    send(trial, real_rows[:50], "compact")
    send(trial, real_rows[:50], f"{NAME}@3")
    found = seen(trial, lambda found: found["seen"] == len(real_rows) + 50)
    live, candidate = (registry.load(f"{NAME}@{version}").chain.transform(real_rows) for version in (2, 3))
    np.testing.assert_allclose(answered, live, atol=1e-5)
    assert found["rows"] == len(np.unique(real_rows, axis=0)) == len(real_rows)
    agreement, recall = found["agreement_at_k"], found["raw_recall_at_k"]
    assert agreement["value"] == pytest.approx(recall_at_k(live, candidate, 10), abs=0.005)
    assert agreement["low"] < agreement["value"] < agreement["high"] < agreement["low"] + 0.1
    for name, after in (("live", live), ("candidate", candidate)):
        assert recall[name]["value"] == pytest.approx(recall_at_k(real_rows, after, 10), abs=0.005)
    gained = recall["candidate"]["value"] - recall["live"]["value"]
    assert recall["difference"]["value"] == pytest.approx(gained)
    assert found["recall_ratio"] == pytest.approx(recall["candidate"]["value"] / recall["live"]["value"])
    assert found["tried"] >= 256 and found["latency_ms"]["ratio"] > 0
    assert found["problems"]["candidate"] == {"not_finite": 0, "off_norm": 0, "failed": 0, "error": None}


def test_a_shadow_samples_embedded_texts_also_from_the_cache(trial, paragraphs):
    shadow(trial)
    for _ in range(2):
        answer = trial.client.post("/embed", json={"inputs": paragraphs[:30], "chain": NAME, "dimensions": 16})
        assert answer.headers["x-chain"] == f"{NAME}@2"
    found = seen(trial, lambda found: found["seen"] == 60)
    assert found["rows"] == 30 and found["agreement_at_k"] is not None


def test_a_shadow_samples_its_share_and_holds_at_most_its_rows(trial):
    rows = np.random.default_rng(0).normal(size=(2000, 384)).astype(np.float32)
    shadow(trial, share=0.1)
    send(trial, rows)
    assert 120 < seen(trial, lambda found: found["seen"] == 2000)["rows"] < 280  # six standard deviations
    shadow(trial, rows=200)  # in place of the first
    send(trial, rows)
    assert seen(trial, lambda found: found["seen"] == 2000)["rows"] == 200


def test_clients_get_the_live_versions_vectors_if_the_candidate_fails(trial, add_version, real_rows):
    """Outputs of the candidate that are not finite are counted and fail its gate."""

    def spoil(chain):  # each step is finite, their product is not
        for step in chain.transforms:
            step.weight.mul_(1e30)

    version = add_version(NAME, real_rows, "pca:130,pca:128", promote=False, spoil=spoil)
    shadow(trial, version=version, gates={"recall_ratio": 0.9})
    answered = send(trial, real_rows)
    assert np.isfinite(answered).all() and np.allclose(np.linalg.norm(answered, axis=1), 1, atol=1e-5)
    found = seen(trial, lambda found: found["tried"] > 0)
    assert found["problems"]["candidate"]["not_finite"] == found["tried"] == len(real_rows)
    assert found["problems"]["live"]["not_finite"] == found["agreement_at_k"]["value"] == 0
    assert (found["verdict"], found["failed_gates"]) == ("failed", ["recall_ratio"])
    status, body = promote(trial, version=version)
    assert status == 409 and "shadow.recall_ratio is 0, wanted at least 0.9" in body["error"]["message"]
    text = trial.client.get("/metrics").text
    assert f'lathe_shadow_troubled_rows_total{{chain="{NAME}"}} {len(real_rows)}.0' in text


def test_requests_do_not_wait_for_the_shadow(trial, real_rows):
    shadow(trial)
    running = trial.services.shadows.shadows[NAME]
    done = threading.Event()
    with running.changing:  # whoever takes rows now waits
        for _ in range(3):
            send(trial, real_rows[:20])
        done.set()
    assert done.is_set() and seen(trial, lambda found: found["seen"] == 60)


def test_metrics_have_figures_of_running_shadows_only(trial, real_rows):
    shadow(trial)
    send(trial, real_rows)
    agreement = seen(trial, lambda found: found["rows"] == len(real_rows))["agreement_at_k"]["value"]
    labels = f'{{candidate="{NAME}@3",chain="{NAME}"}}'
    lines = trial.client.get("/metrics").text.splitlines()
    assert f"lathe_shadow_agreement{labels} {agreement}" in lines
    assert trial.client.delete(f"/chains/{NAME}/shadow", headers=trial.admin).status_code == 200
    assert "lathe_shadow_agreement{" not in trial.client.get("/metrics").text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda app: promote(app), f"the candidate {NAME}@3 became live"),
        (lambda app: app.services.registry.publish(app.services.registry.load(NAME).chain, NAME, True),
         f"{NAME}@2 is no longer live: {NAME}@4 is"),
        (lambda app: app.services.registry.delete(NAME, 3), f"the candidate {NAME}@3 was deleted"),
    ],
)  # fmt: skip
def test_a_shadow_ends_with_a_reason_if_its_live_version_or_candidate_changes(trial, real_rows, change, words):
    """Its last figures stay, and no more rows are sampled."""
    shadow(trial, gates={"agreement_at_k": 0.01})
    send(trial, real_rows)
    before = seen(trial, lambda found: found["seen"] == len(real_rows))
    change(trial)
    after = report(trial)
    assert (after["state"], after["ended"]) == ("ended", words)
    assert after["agreement_at_k"] == before["agreement_at_k"]  # what was found stays to be read
    assert not trial.services.shadows.observing
    send(trial, real_rows[:5], f"{NAME}@2")
    assert report(trial)["seen"] == before["seen"]


def test_a_rollback_ends_a_shadow(trial, real_rows):
    trial.services.registry.publish(trial.services.registry.load(NAME).chain, NAME, True)
    shadow(trial)
    trial.client.post(f"/chains/{NAME}/rollback", headers=trial.admin)
    assert report(trial)["ended"] == f"{NAME}@4 is no longer live: {NAME}@2 is"


# The gate


def test_promotion_follows_the_shadows_verdict_and_can_be_forced(trial, real_rows):
    """With fewer than 200 rows the verdict is "not yet"."""
    shadow(trial, gates={"agreement_at_k": 0.99, "latency_ratio": 1000})
    send(trial, real_rows[:150])
    found = seen(trial, lambda found: found["rows"] == 150)
    assert (found["verdict"], found["failed_gates"]) == ("not yet", [])
    status, body = promote(trial)
    assert (status, body["error"]["code"]) == (409, "gate_failed")
    assert "shadow.rows is 150, wanted at least 200 (its shadow has too few rows yet)" in body["error"]["message"]
    send(trial, real_rows[150:])
    found = seen(trial, lambda found: found["rows"] == len(real_rows))
    assert (found["verdict"], found["failed_gates"]) == ("failed", ["agreement_at_k"])
    message = promote(trial)[1]["error"]["message"]
    agreement = found["agreement_at_k"]["value"]
    assert f"shadow.agreement_at_k is {agreement:.4g}, wanted at least 0.99 (set by its shadow)" in message
    assert "latency" not in message
    status, body = promote(trial, force=True)
    assert (status, body["live"], body["forced"]) == (200, 3, ["shadow.agreement_at_k"])


def test_promotion_passes_with_passed_gates_and_ignores_gates_of_another_candidate(trial, add_version, real_rows):
    other = add_version(NAME, real_rows, promote=False)
    shadow(trial, gates={"agreement_at_k": 0.01, "recall_ratio": 0.5})
    assert promote(trial)[0] == 409
    send(trial, real_rows)
    assert seen(trial, lambda found: found["rows"] == len(real_rows))["verdict"] == "passed"
    assert promote(trial)[0] == 200
    trial.client.post(f"/chains/{NAME}/rollback", headers=trial.admin)
    shadow(trial, gates={"agreement_at_k": 1.0})
    assert promote(trial, version=other)[0] == 200


# What makes no sense


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"version": 2}, 409, "is live"),
        ({"version": 9}, 404, "no version 9"),
        ({"version": 0}, 400, "version"),
        ({"version": "3"}, 422, "version"),
        ({}, 422, "version"),
        ({"version": 3, "share": 0}, 400, "share"),
        ({"version": 3, "share": 1.01}, 400, "share"),
        ({"version": 3, "k": 0}, 400, "k"),
        ({"version": 3, "rows": 10**6}, 400, "rows"),
        ({"version": 3, "rows": 10}, 400, "rows"),
        ({"version": 3, "gates": {"local_spearman": 0.9}}, 400, "no gate 'local_spearman'"),
        ({"version": 3, "gates": {"agreement_at_k": None}}, 422, "gates"),
    ],
)
def test_an_invalid_shadow_is_refused_with_a_reason(trial, body, status, words):
    answer = trial.client.put(f"/chains/{NAME}/shadow", json=body, headers=trial.admin)
    assert answer.status_code == status and words in answer.json()["error"]["message"]
    assert trial.client.get(f"/chains/{NAME}/shadow").status_code == 404


def test_a_candidate_of_another_space_is_answered_409(trial, add_version, real_rows):
    version = add_version(NAME, real_rows[:, :200], promote=False)
    body = {"version": version}
    answer = trial.client.put(f"/chains/{NAME}/shadow", json=body, headers=trial.admin)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "space_mismatch")


def test_a_damaged_candidate_is_answered_503_and_the_live_version_serves(trial, real_rows):
    folder = trial.services.registry.root / NAME / "3"
    tensors = next(folder.glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-100])
    answer = trial.client.put(f"/chains/{NAME}/shadow", json={"version": 3}, headers=trial.admin)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "corrupt_artifact")
    send(trial, real_rows[:3])


@pytest.mark.parametrize("name", ["nobody", "trial@2", "a b", NAME])
def test_shadow_routes_answer_404_for_unknown_chains_and_need_the_admin_key(trial, name):
    path = f"/chains/{name}/shadow"
    assert trial.client.get(path).status_code == 404
    assert trial.client.delete(path, headers=trial.admin).status_code == 404
    assert trial.client.put(path, json={"version": 3}).status_code == 401
    assert trial.client.delete(path).status_code == 401
    if name != NAME:
        assert trial.client.put(path, json={"version": 3}, headers=trial.admin).status_code == 404


def test_a_shadow_ignores_rows_of_other_dimensions():
    loaded = Registry(STARTERS).load("compact")
    trial = Shadow(
        loaded, LoadedChain("compact", 2, loaded.chain, loaded.folder), ShadowPlan(1.0), np.random.default_rng(0)
    )
    assert trial.sample(np.ones((64, 384), np.float32)) == 64 and trial.sample(np.ones((64, 3), np.float32)) == 0
    assert trial.seen == 64
