"""Promotion gates: a version that fails one becomes live only by force, and its overridden gates are shown."""

import json

import pytest

from lathe.service.chains.registry import Registry
from lathe.transforms import Chain, parse_steps

NAME = "gated"
TOO_MUCH = {"local_spearman": 1.5, "positional_stress": 0.0, "bytes_per_vector.after": 1000}


def promote(app, version=2, **body):
    """Promote a version of the gated chain over HTTP and return the status and the JSON."""
    answer = app.client.post(f"/chains/{NAME}/promote", json={"version": version} | body, headers=app.admin)
    return answer.status_code, answer.json()


@pytest.fixture
def gated(add_version, real_rows):
    """Add a live version, and a second one below two of the three gates it was fitted with."""
    add_version(NAME, real_rows)
    return add_version(NAME, real_rows, gates=TOO_MUCH, promote=False)


def test_promote_answers_409_with_each_failed_gate_and_its_measured_value(lathe, gated):
    certificate = lathe.client.get(f"/chains/{NAME}@2").json()["certificate"]
    status, body = promote(lathe)
    assert (status, body["error"]["code"], body["error"]["param"]) == (409, "gate_failed", "version")
    message = body["error"]["message"]
    assert f"local_spearman is {certificate['local_spearman']:.4g}, wanted at least 1.5" in message
    assert f"positional_stress is {certificate['positional_stress']:.4g}, wanted at most 0" in message
    assert "bytes_per_vector" not in message
    assert lathe.client.get(f"/chains/{NAME}").json()["live"] == 1


def test_promote_with_force_shows_the_overridden_gates_while_the_version_is_live(lathe, gated):
    """A rollback hides the overridden gates, and deleting the version forgets them."""
    status, body = promote(lathe, force=True)
    past = ["local_spearman", "positional_stress"]
    assert (status, body) == (200, {"name": NAME, "live": 2, "earlier": [1], "forced": past})
    assert lathe.client.get(f"/chains/{NAME}").json()["forced"] == past
    rolled_back = lathe.client.post(f"/chains/{NAME}/rollback", headers=lathe.admin).json()
    assert (rolled_back["live"], rolled_back["forced"]) == (1, [])
    assert lathe.services.registry.read_pointer(NAME).forced == {2: tuple(past)}
    for version, status in ((1, 409), (2, 200), (2, 404)):  # the first is live
        assert lathe.client.delete(f"/chains/{NAME}/{version}", headers=lathe.admin).status_code == status
    assert lathe.services.registry.read_pointer(NAME).forced == {}
    assert lathe.client.post(f"/chains/{NAME}/rollback", headers=lathe.admin).status_code == 409
    assert promote(lathe, version=1, force=True) == (200, {"name": NAME, "live": 1, "earlier": [], "forced": []})


@pytest.mark.parametrize(
    ("gates", "held"),
    [
        ({"local_spearman": 0.1, "recall_at_10": 0.1}, True),
        ({"bytes_per_vector.after": 512}, True),
        ({"bytes_per_vector.after": 511}, False),
        ({"recall_at_10": 0.9999}, False),
        ({"positional_stress": 1e-9}, False),
        ({"out_of_domain.nowhere.recall_at_10": 0.0}, False),  # what was not measured does not hold
    ],
)
def test_promote_also_checks_the_gates_of_the_request(lathe, add_version, real_rows, gates, held):
    """A gate on a figure that was not measured fails."""
    for promoted in (None, False):
        add_version(NAME, real_rows, promote=promoted)
    status, body = promote(lathe, gates=gates)
    assert (status == 200) is held, body
    if not held:
        assert status == 409 and all(gate in body["error"]["message"] for gate in gates)
        assert "(asked for)" in body["error"]["message"]


def test_promote_answers_4xx_with_a_reason_for_invalid_gates_force_or_version(lathe, gated):
    for body, status, words in [
        ({"gates": {"beauty": 1}}, 400, "no gate 'beauty'"),
        ({"gates": {"recall_at_10": "much"}}, 422, "gates.recall_at_10"),
        ({"gates": [1]}, 422, "gates"),
        ({"force": "yes"}, 422, "force"),
        ({"version": 9, "force": True}, 404, "no version 9"),
    ]:
        found, answer = promote(lathe, **body)
        assert found == status and words in answer["error"]["message"]


def test_chains_commands_check_gates_promote_by_force_roll_back_delete_and_show_versions(run, home, real_rows):
    registry = Registry(home / "chains")
    for gates, promoted in ({}, True), ({"recall_at_10": 1.5}, False):
        chain = Chain(parse_steps("r2")).fit(real_rows)
        chain.metadata = {"encoder": None, "provenance": {"gates": gates}, "certificate": {"recall_at_10": 0.5}}
        registry.publish(chain, NAME, promoted)
    status, _, err = run("chains", "promote", f"{NAME}@2")
    assert status != 0 and "recall_at_10 is 0.5, wanted at least 1.5 (set by its fit)" in err
    assert registry.live(NAME) == 1
    status, _, err = run("chains", "promote", f"{NAME}@1", "--gate", "recall_at_10=0.6")
    assert status != 0 and "recall_at_10 is 0.5, wanted at least 0.6 (asked for)" in err
    status, out, _ = run("chains", "promote", f"{NAME}@2", "--force")
    assert (status, out) == (0, f"{NAME}@2 is live, promoted past recall_at_10\n")
    assert run("chains", "promote", f"{NAME}@1")[1] == f"{NAME}@1 is live\n"
    assert "2 is live" in run("chains", "rollback", NAME)[1]
    assert run("chains", "delete", f"{NAME}@1")[0] == 0
    assert json.loads(run("chains", "show", NAME)[1])["live"] == 2
    assert NAME in {chain["name"] for chain in json.loads(run("chains", "list", "--json")[1])}
    assert NAME in run("chains", "list")[1]
