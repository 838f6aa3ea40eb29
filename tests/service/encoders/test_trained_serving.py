"""Engines that are unloaded and loaded again, and what decides when."""

import time
from dataclasses import replace

import pytest

from lathe.service.encoders.engine.admission_queue import AdmissionQueue
from lathe.service.encoders.engine.dispatcher import EngineOptions
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.trained_serving import Residency
from lathe.service.errors import UnavailableError
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.errors import EncoderError
from tests.helpers import eventually
from tests.service.encoders.engine.doubles import HELD, INFO, Starter, ask, error_of, lengths


def unloaded(engine):
    """Unload an engine and wait until its workers have ended."""
    assert engine.unload()
    eventually(lambda: engine.state == "idle")


def test_an_unloaded_engine_has_no_workers_and_loads_them_again_for_the_next_request(start):
    workers = 3
    engine, made = start({}, workers=workers)
    assert lengths(ask(engine, "a")) == [1]
    unloaded(engine)
    eventually(lambda: all(worker.dead for worker in made))
    assert len(made) == workers and engine.queue.build_refusal is None
    assert lengths(ask(engine, "bb", "ccc")) == [2, 3]
    eventually(lambda: engine.state == "ready" and len(made) == 2 * workers)


def test_requests_are_held_while_the_engine_is_loaded_again(start):
    engine, made = start({}, {"loads": False})
    unloaded(engine)
    works = [ask(engine, "a"), ask(engine, "bb")]
    eventually(lambda: len(made) == 2)
    assert engine.state == "waking" and not works[0].future.done()
    made[1].loaded.set()
    assert [lengths(work) for work in works] == [[1], [2]]


def test_requests_are_refused_with_the_seconds_of_the_last_load_if_they_are_not_held(start):
    engine, made = start({}, {"loads": False}, hold=False)
    unloaded(engine)
    engine.load_seconds = 6.2
    for _ in range(2):
        with pytest.raises(UnavailableError, match="was unloaded and is being loaded again") as refused:
            ask(engine, "a")
        assert (refused.value.status, refused.value.code, refused.value.retry_after) == (503, "not_ready", 7)
    eventually(lambda: len(made) == 2)
    made[1].loaded.set()
    eventually(lambda: engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1] and engine.load_seconds < 6


def test_an_engine_at_work_is_not_unloaded(start):
    engine, made = start(HELD)
    work = ask(engine, "a")
    eventually(lambda: made[0].calls)
    assert not engine.unload() and engine.state == "ready"
    made[0].set(open=True)
    assert lengths(work) == [1]
    eventually(lambda: not engine.queue.texts)
    unloaded(engine)
    assert not engine.unload()


def test_a_request_that_comes_while_the_engine_is_unloaded_is_answered(start):
    """It comes between the check that nothing is queued and the end of the worker."""
    engine, made = start({}, {})
    for _ in range(10):
        eventually(lambda: engine.state == "ready" and not engine.queue.texts)
        assert engine.unload()
        assert lengths(ask(engine, "a")) == [1]
    assert len(made) > 2


def test_a_load_that_fails_answers_the_requests_that_were_held_with_the_reason(start):
    engine, made = start({}, {"problem": EncoderError("the files are gone")}, {"loads": False})
    unloaded(engine)
    work = ask(engine, "a")
    assert error_of(work) == "not_ready" and "the files are gone" in str(work.future.exception())
    with pytest.raises(UnavailableError, match="the files are gone"):
        ask(engine, "a")
    eventually(lambda: len(made) == 3)
    made[2].loaded.set()
    eventually(lambda: engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]


def test_requests_for_the_earlier_vectors_fail_if_the_model_changed_while_it_was_unloaded(start):
    engine, _ = start({}, {"info": replace(INFO, fingerprint="e" * 32)})
    unloaded(engine)
    work = ask(engine, "a")
    assert error_of(work) == "changed"
    eventually(lambda: engine.state == "ready")
    assert engine.info.fingerprint == "e" * 32 and lengths(ask(engine, "a")) == [1]


def test_a_retired_worker_is_no_restart_and_an_idle_engine_can_be_stopped(start):
    from lathe.service.encoders.engine.metrics import UNLOADS, WORKER_RESTARTS

    counters = [metric.labels(DEFAULT_ENCODER.name) for metric in (WORKER_RESTARTS, UNLOADS)]
    before = [counter._value.get() for counter in counters]
    engine, _ = start({})
    unloaded(engine)
    lengths(ask(engine, "a"))
    assert [counter._value.get() for counter in counters] == [before[0], before[1] + 1]
    unloaded(engine)
    engine.stop(0)
    assert engine.state == "stopped"


@pytest.fixture
def fleet():
    """Return a function that starts engines of given bytes, in the order of their last use, and their residency."""
    running = []

    def make(*sizes, max_bytes=0, unload_seconds=0.0):
        residency = Residency(lambda: running, 0)
        for number, size in enumerate(sizes):
            starter = Starter(lambda size=size: {"info": replace(INFO, model_bytes=size)})
            engine = Engine(
                DEFAULT_ENCODER,
                starter,
                AdmissionQueue(100, 10_000),
                EngineOptions(check_seconds=0.01, unload_seconds=unload_seconds),
                make_room=residency.make_room,
            )
            running.append(engine)
            engine.start()
            eventually(lambda engine=engine: engine.state == "ready")
            engine.last_used = time.monotonic() - 1000 + number
        residency.max_bytes = max_bytes
        return residency, running

    yield make
    for engine in running:
        engine.stop(0)


def states(engines):
    return ["idle" if not engine.wanted.is_set() else "loaded" for engine in engines]


def test_the_least_recently_used_encoders_are_unloaded_until_the_others_fit_the_memory(fleet):
    residency, engines = fleet(50, 30, 40, 20, max_bytes=70)
    assert residency.find_problem() == (
        "the loaded encoders have 140 bytes of weights, more than LATHE_MODEL_BYTES, 70"
    )
    residency.unload_beyond_limit()
    assert states(engines) == ["idle", "idle", "loaded", "loaded"]
    eventually(lambda: engines[0].state == engines[1].state == "idle")
    assert residency.find_problem() is None
    residency.unload_beyond_limit()
    assert states(engines) == ["idle", "idle", "loaded", "loaded"]
    residency.max_bytes = 10
    for _ in range(2):  # one that is larger than the limit stays loaded alone
        residency.unload_beyond_limit()
        assert states(engines) == ["idle", "idle", "idle", "loaded"]


def test_an_encoder_that_is_loaded_again_displaces_the_least_recently_used_before(fleet):
    residency, engines = fleet(50, 30, 40, max_bytes=70)
    residency.unload_beyond_limit()
    assert states(engines) == ["idle", "loaded", "loaded"]
    eventually(lambda: engines[0].state == "idle")
    assert lengths(ask(engines[0], "a")) == [1]
    assert states(engines) == ["loaded", "idle", "idle"]  # 50 and 40 would be too many
    eventually(lambda: not engines[0].queue.texts and engines[1].state == "idle")
    assert lengths(ask(engines[1], "a")) == [1]
    assert states(engines) == ["idle", "loaded", "idle"]


def test_encoders_are_unloaded_after_their_idle_seconds_and_not_before(fleet):
    residency, engines = fleet(10, 10, unload_seconds=500)
    engines[1].wake()
    residency.unload_idle()
    assert states(engines) == ["idle", "loaded"]
    engines[1].options = replace(engines[1].options, unload_seconds=0)  # it stays loaded
    engines[1].last_used = 0
    residency.unload_idle()
    assert states(engines) == ["idle", "loaded"]


def test_the_thread_runs_only_if_something_limits_how_long_encoders_stay_loaded(fleet):
    residency, engines = fleet(10)
    residency.start()
    assert not residency.thread.is_alive()
    engines[0].options = replace(engines[0].options, unload_seconds=0.05)
    residency.start()
    eventually(lambda: engines[0].state == "idle")
    residency.start()
    residency.stop()
    assert not residency.thread.is_alive()
