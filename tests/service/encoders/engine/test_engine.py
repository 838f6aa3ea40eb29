import threading
import time

import pytest
from prometheus_client import REGISTRY

from lathe.service.encoders.engine.work import EncoderInfo
from lathe.service.errors import ServiceError, TooLargeError, UnavailableError
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.errors import EncoderError
from tests.helpers import eventually
from tests.service.encoders.engine.doubles import HELD, INFO, SECONDS, ask, error_of, lengths


def test_a_request_over_the_token_limit_is_refused_unless_it_is_one_text(start):
    engine, _ = start(max_tokens=100)
    with pytest.raises(TooLargeError, match="104 tokens .* 100"):
        ask(engine, "x" * 200, "x" * 200)
    assert lengths(ask(engine, "x" * 4000)) == [4000]


def test_an_engine_is_loading_and_refuses_requests_before_its_model_is_ready(start):
    engine, made = start({"loads": False}, ready=False)
    eventually(lambda: made)
    assert engine.state == "loading" and not engine.settled.is_set()
    with pytest.raises(UnavailableError, match="loading"):
        ask(engine, "a")
    made[0].loaded.set()
    assert engine.settled.wait(SECONDS)
    assert engine.state == "ready" and engine.get_ready_info() is INFO
    assert lengths(ask(engine, "a")) == [1]


@pytest.mark.parametrize("plan", [{"problem": EOFError()}, {"refuse": BlockingIOError("no more processes")}])
def test_a_worker_that_ends_or_cannot_start_before_it_is_ready_makes_the_engine_fail(start, plan):
    engine, _ = start(plan, ready=False)
    assert engine.settled.wait(SECONDS)
    eventually(lambda: engine.state == "failed")
    assert "ended before it was ready" in engine.problem


class NotingEvent(threading.Event):
    """Notes how long it would have been waited for."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        return self.is_set()


def test_loading_is_retried_with_growing_pauses_while_requests_are_refused_with_the_reason(start):
    broken, stopping = {"problem": EncoderError("not yet")}, NotingEvent()
    engine, made = start(broken, broken, broken, broken, {"loads": False}, ready=False, stopping=stopping)
    eventually(lambda: len(made) == 5)
    assert engine.state == "failed" and engine.problem == "not yet" and engine.settled.is_set()
    with pytest.raises(UnavailableError, match="not yet") as refused:
        ask(engine, "a")
    assert refused.value.status == 503
    made[-1].loaded.set()
    eventually(lambda: engine.state == "ready")
    assert engine.problem is None
    assert stopping.waits == [0.001, 0.002, 0.004, 0.004]
    assert lengths(ask(engine, "a")) == [1]


def test_further_workers_start_after_the_first_has_loaded(start):
    engine, made = start({"loads": False}, {}, workers=3, ready=False)
    eventually(lambda: made)
    assert not engine.settled.wait(0.15) and len(made) == 1  # the others look every 0.05 s
    made[0].loaded.set()
    eventually(lambda: len(engine.ready_dispatchers) == 3)
    assert len(made) == 3


def test_a_crashed_worker_fails_only_the_requests_it_had(start):
    engine, made = start(HELD, workers=2, max_texts=100)
    works = [ask(engine, "a"), ask(engine, "bb")]
    eventually(lambda: made[0].calls and made[1].calls)
    waiting = ask(engine, "ccc")
    mine = works[0] if made[0].calls == [[["a"]]] else works[1]
    other = works[1] if mine is works[0] else works[0]
    made[0].set(dead=True)
    assert error_of(mine) == "encoder_crashed"
    assert mine.future.exception().status == 503
    made[1].set(open=True)
    assert lengths(other) == [len(other.texts[0])]
    eventually(lambda: len(made) == 3)
    made[2].set(open=True)
    assert lengths(waiting) == [3]
    assert engine.state == "ready"


def test_a_crash_of_the_only_worker_fails_waiting_requests_and_restarts_it(start):
    restarts = restarts_counted()
    engine, made = start(HELD, {"loads": False})
    works = [ask(engine, "a")]
    eventually(lambda: made[0].calls)
    works.append(ask(engine, "bb"))
    made[0].set(dead=True)
    assert [error_of(work) for work in works] == ["encoder_crashed"] * 2
    eventually(lambda: len(made) == 2)
    assert engine.state == "restarting" and engine.problem is None
    with pytest.raises(UnavailableError, match="restarting"):
        ask(engine, "a")
    made[1].loaded.set()
    eventually(lambda: engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]
    assert restarts_counted() == restarts + 1


def restarts_counted():
    """Return the number of worker restarts so far."""
    return REGISTRY.get_sample_value("lathe_worker_restarts_total", {"encoder": DEFAULT_ENCODER.name}) or 0


def test_an_engine_fails_with_the_reason_if_a_crashed_worker_cannot_be_restarted(start):
    engine, made = start({}, {"problem": EncoderError("the disk is gone")})
    made[0].set(dead=True)
    assert error_of(ask(engine, "a")) == "encoder_crashed"
    eventually(lambda: engine.state == "failed")
    with pytest.raises(UnavailableError, match="the disk is gone"):
        ask(engine, "a")


def test_a_worker_that_dies_idle_is_restarted(start):
    engine, made = start(check_seconds=0.01)
    made[0].set(dead=True)
    eventually(lambda: len(made) == 2)
    eventually(lambda: engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]


def test_a_restarted_worker_with_another_fingerprint_is_logged_and_used(start, caplog):
    changed = EncoderInfo(DEFAULT_ENCODER, "e" * 32, 2, 256, {}, None, "cpu", 25, None)
    engine, made = start({}, {"info": changed})
    made[0].set(dead=True)
    error_of(ask(engine, "a"))
    eventually(lambda: engine.state == "ready")
    assert engine.get_ready_info().fingerprint == "e" * 32
    assert "another space" in caplog.text


def test_stop_finishes_accepted_requests(start):
    engine, (worker,) = start(HELD)
    works = [ask(engine, *["x" * 400] * 5) for _ in range(3)]
    stopping = threading.Thread(target=engine.stop, args=(SECONDS,))
    stopping.start()
    worker.set(open=True)
    stopping.join(SECONDS)
    assert not stopping.is_alive() and engine.state == "stopped"
    assert [lengths(work) for work in works] == [[400] * 5] * 3
    with pytest.raises(UnavailableError):
        ask(engine, "a")


def test_stop_fails_requests_over_its_seconds_and_ends_all_workers(start):
    engine, made = start(HELD, workers=2)
    works = [ask(engine, *["x" * 400] * 5) for _ in range(3)]
    begun = time.monotonic()
    engine.stop(0.05)
    assert time.monotonic() - begun < SECONDS
    assert [error_of(work) for work in works] == ["stopped"] * 3
    assert len(made) == 2 and all(worker.dead for worker in made)  # and none in their place


def test_fail_unfinished_fails_all_accepted_requests_at_once(start):
    engine, (worker,) = start(HELD)
    works = [ask(engine, *["x" * 400] * 2) for _ in range(2)]
    eventually(lambda: worker.waited)
    engine.fail_unfinished()
    assert all(work.future.done() for work in works)
    assert [error_of(work) for work in works] == ["stopped"] * 2
    worker.set(open=True)  # its answer comes too late
    assert lengths(ask(engine, "a")) == [1]


def test_stop_during_loading_ends_the_loading(start):
    engine, made = start({"loads": False}, workers=2, ready=False)
    eventually(lambda: made)
    engine.stop(SECONDS)
    assert len(made) == 1 and made[0].dead
    assert not any(supervisor.thread.is_alive() for supervisor in engine.supervisors)


def test_every_request_ends_with_an_answer_or_error_under_crashes_and_stop(start):
    engine, made = start(workers=2)
    works, refused, ended = [], [], threading.Event()

    def keep_asking():
        while not ended.is_set():
            try:
                works.append(ask(engine, "a", "bb"))
            except ServiceError as error:
                refused.append(error)

    callers = [threading.Thread(target=keep_asking) for _ in range(3)]
    for caller in callers:
        caller.start()
    for count in range(3, 6):
        made[-1].set(dead=True)
        eventually(lambda count=count: len(made) >= count)
    engine.stop(0.05)
    ended.set()
    for caller in callers:
        caller.join(SECONDS)
    answered = [work for work in works if work.future.exception(0) is None]
    assert answered and all(lengths(work) == [1, 2] for work in answered)
    failed = {error_of(work) for work in works if work.future.exception(0)}
    assert "encoder_crashed" in failed and failed <= {"encoder_crashed", "stopped"}
