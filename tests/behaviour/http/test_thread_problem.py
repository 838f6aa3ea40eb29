"""No exception ends a background thread: it goes on, logs each kind once, and `/health` names it."""

import logging
import threading

import pytest

from lathe.service.index.embedded.damage import RecordChecks
from lathe.service.index.embedded.maintenance import Maintainer
from lathe.service.jobs.runner import JobThread
from lathe.service.monitoring import state_monitor
from lathe.training.thread_problem import ThreadProblem
from tests.helpers import eventually


def fail(*_):
    """Raise what nothing expects, with a message that may hold what nobody may see."""
    raise RecursionError("sk-" + "secret")


def test_a_problem_is_logged_once_without_its_message_and_cleared_by_success(caplog):
    problem = ThreadProblem("turning")
    for _ in range(3):
        with problem.watch():
            fail()
    assert problem.message.startswith("turning failed: an unexpected RecursionError in test_thread_problem.py line ")
    assert len(caplog.records) == 1 and "sk-secret" not in caplog.text + caplog.records[0].frames
    with problem.watch():
        pass
    assert problem.message is None


@pytest.fixture(scope="module")
def app(start_app, tmp_path_factory):
    with start_app(home=tmp_path_factory.mktemp("home")) as app:
        yield app


def read_warnings(app):
    return app.client.get("/health").json()["warnings"]


@pytest.mark.parametrize(
    ("owner", "name", "work"),
    [
        (JobThread, "manage", "managing the jobs failed"),
        (state_monitor.StateMonitor, "check", "checking the state folder failed"),
        (Maintainer, "run_step", "maintenance of the index docs failed"),
    ],
)
def test_a_thread_goes_on_after_any_exception_and_health_names_it(app, monkeypatch, owner, name, work):
    assert app.client.put("/indexes/docs", json={"chain": "none", "width": 4}, headers=app.admin).status_code == 200
    monkeypatch.setattr(state_monitor, "CHECK_SECONDS", 0.01)
    if owner is state_monitor.StateMonitor:
        monitor = app.services.state_monitor
        monitor.thread = threading.Thread(target=monitor.run, daemon=True)
        monitor.thread.start()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, fail)
        eventually(lambda: any(work in warning for warning in read_warnings(app)))
    eventually(lambda: not any(work in warning for warning in read_warnings(app)))


def test_an_observer_that_fails_fails_no_request_and_is_named(app, monkeypatch):
    live = app.services.embedder.live_vectors
    monkeypatch.setattr(live, "observer", fail)
    body = {"inputs": "a text", "chain": "compact"}
    assert app.client.post("/embed", json=body).status_code == 200
    assert any("observing live vectors failed" in warning for warning in read_warnings(app))
    monkeypatch.undo()
    live.submit(lambda: None)
    eventually(lambda: live.unexpected.message is None)


def test_a_check_that_fails_is_a_result_and_the_next_record_is_checked(tmp_path, caplog):
    def check(path, _):
        return fail() if path.name == "first" else "damaged"

    checks = RecordChecks(check)
    checks.queue("first", tmp_path / "first")
    checks.queue("second", tmp_path / "second")
    with caplog.at_level(logging.CRITICAL):
        checks.start()
        eventually(lambda: len(checks.list_damaged()) == 2)
    checks.stop()
    assert "unexpected RecursionError" in checks.list_damaged()["first"]
