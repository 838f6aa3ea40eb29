import threading
import time
from collections import deque

import numpy as np
import pytest
from prometheus_client import REGISTRY

from service.encoders.engine.admission_queue import AdmissionQueue
from service.encoders.engine.encoder_info import EncoderInfo
from service.encoders.engine.engine import Engine
from service.encoders.engine.work import EncodeOptions, PartResult, Reply
from service.errors import OverloadedError, ServiceError, TooLargeError, UnavailableError
from tests.helpers import eventually
from training.encoder.encoder import WINDOW_BATCHES
from training.encoder.spec import DEFAULT_ENCODER
from training.errors import EncoderError, TooLongError

SECONDS = 10.0
"""Timeout of every wait in these tests."""

INFO = EncoderInfo(DEFAULT_ENCODER, "f" * 32, 2, 256, {}, None, "cpu", 25, None)
WINDOW = WINDOW_BATCHES * INFO.batch_tokens


class Double:
    """Fake worker process: encodes a text as its length, once it is open."""

    def __init__(self, problem=None, loads=True, open_at_first=True, info=INFO):
        self.problem = problem
        self.info = info
        self.loaded = threading.Event()
        self.turn = threading.Condition()
        self.open = open_at_first
        self.dead = False
        self.unread = deque()
        self.calls = []
        self.waited = []
        if loads:
            self.loaded.set()

    def set(self, **what):
        with self.turn:
            vars(self).update(what)
            self.turn.notify_all()

    def wait_ready(self):
        self.loaded.wait(SECONDS)
        if self.problem:
            raise self.problem
        return self.info

    def send(self, parts):
        if self.dead:
            raise BrokenPipeError
        self.unread.append(parts)
        self.calls.append([[part.work.texts[row] for row in part.rows] for part in parts])

    def receive(self, seconds):
        self.waited.append(seconds)
        with self.turn:
            if not self.turn.wait_for(lambda: self.open or self.dead, min(seconds, SECONDS)):
                raise TimeoutError
            if self.dead:
                raise EOFError
        parts = self.unread.popleft()
        return Reply([self.answer(part) for part in parts], [(2, 10, 12)], 0.01 * len(parts))

    def answer(self, part):
        texts = [part.work.texts[row] for row in part.rows]
        if "too long" in texts:
            return TooLongError("too long")
        vectors = np.array([[len(text), 1] for text in texts], np.float32)
        return PartResult(vectors, None, np.ones(len(texts), np.int64))

    def alive(self):
        return not self.dead

    def stop(self):
        self.loaded.set()
        self.set(dead=True)


class Starter:
    """Starts fake workers by plan, repeating the last plan, and keeps them in `made`."""

    def __init__(self, *plans):
        self.plans = list(plans) or [dict]
        self.made = []

    def __call__(self, spec):
        assert spec is DEFAULT_ENCODER
        plan = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        settings = plan()
        if "refuse" in settings:
            raise settings["refuse"]
        self.made.append(Double(**settings))
        return self.made[-1]


HELD = {"open_at_first": False}


@pytest.fixture
def start():
    """Return a function that starts an engine with fake workers; afterwards no request may be unanswered."""
    engines = []

    def make(*plans, ready=True, max_texts=1000, max_tokens=100_000, stopping=None, **settings):
        starter = Starter(*(lambda plan=plan: plan for plan in plans))
        queue = AdmissionQueue(max_texts, max_tokens)
        engine = Engine(DEFAULT_ENCODER, starter, queue, retry_seconds=(0.001, 0.004), **settings)
        engines.append(engine)
        engine.works = []
        put = queue.put

        def remembering(work):
            put(work)
            engine.works.append(work)

        queue.put = remembering
        engine.stopping = stopping or engine.stopping
        engine.start()
        if ready:
            eventually(lambda: engine.queue.idle == len(engine.supervisors))
        return engine, starter.made

    yield make
    for engine in engines:
        engine.stop(0)
        assert engine.state == "stopped"
        assert all(work.future.done() for work in engine.works)
        assert not any(supervisor.thread.is_alive() for supervisor in engine.supervisors)
        assert engine.queue.texts == engine.queue.tokens == 0
        assert all(worker.dead for worker in engine.start_worker.made)


def ask(engine, *texts, **options):
    """Have the engine's queue admit texts, if the engine is ready."""
    return engine.queue.admit(list(texts), EncodeOptions(**options), engine.require_ready().max_length)


def lengths(work):
    """Return the text lengths that the fake worker encoded into the vectors."""
    return work.future.result(SECONDS).vectors[:, 0].tolist()


def error_of(work):
    """Return the code of a work's error."""
    error = work.future.exception(SECONDS)
    assert isinstance(error, ServiceError), error
    return error.code


def flat(calls):
    """Return all texts of all calls, sorted."""
    return sorted(text for call in calls for part in call for text in part)


def test_waiting_requests_are_sent_together_and_answered_separately(start):
    engine, (worker,) = start(HELD)
    ask(engine, "busy")
    eventually(lambda: worker.calls)
    works = [ask(engine, "a"), ask(engine, "bb", "ccc"), ask(engine, "dddd", truncation_side="left")]
    worker.set(open=True)
    assert [lengths(work) for work in works] == [[1], [2, 3], [4]]
    assert worker.calls == [[["busy"]], [["a"], ["bb", "ccc"], ["dddd"]]]


def test_an_error_of_one_request_does_not_affect_others_of_its_batch(start):
    engine, (worker,) = start(HELD)
    ask(engine, "busy")
    eventually(lambda: worker.calls)
    works = [ask(engine, "a"), ask(engine, "too long"), ask(engine, "bb")]
    worker.set(open=True)
    with pytest.raises(TooLongError):
        works[1].future.result(SECONDS)
    assert [lengths(works[0]), lengths(works[2])] == [[1], [2]]
    assert engine.state == "ready"


def test_a_large_request_alternates_with_others_and_keeps_its_order(start):
    engine, (worker,) = start(HELD)
    texts = ["x" * (number % 37) for number in range(200)]
    large, small = ask(engine, *texts), ask(engine, "a small one")
    worker.set(open=True)
    assert lengths(large) == [len(text) for text in texts]
    assert lengths(small) == [11]
    assert ["a small one"] in worker.calls[1]
    assert len(worker.calls) > 5 and all(len(part) <= WINDOW for call in worker.calls for part in call)


def test_a_request_over_the_text_limit_is_refused_and_later_ones_accepted(start):
    engine, (worker,) = start(HELD, max_texts=10)
    first = ask(engine, *"abcdef")
    with pytest.raises(OverloadedError) as refused:
        ask(engine, *"abcdef")
    assert refused.value.retry_after >= 1
    second = ask(engine, *"abcd")
    worker.set(open=True)
    assert len(lengths(first)) == 6 and len(lengths(second)) == 4
    assert len(lengths(ask(engine, *"abcdefghij"))) == 10


def test_a_request_over_the_text_limit_is_accepted_by_an_idle_engine(start):
    engine, _ = start(max_texts=10)
    assert lengths(ask(engine, *["a"] * 50)) == [1] * 50


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
    assert engine.state == "ready" and engine.require_ready() is INFO
    assert lengths(ask(engine, "a")) == [1]


def test_a_model_that_cannot_be_loaded_refuses_requests_with_the_reason(start):
    engine, _ = start({"problem": EncoderError("the folder is empty")}, ready=False)
    assert engine.settled.wait(SECONDS)
    assert engine.state == "failed"
    with pytest.raises(UnavailableError, match="the folder is empty") as refused:
        ask(engine, "a")
    assert refused.value.status == 503


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


def test_loading_is_retried_with_growing_pauses(start):
    broken, stopping = {"problem": EncoderError("not yet")}, NotingEvent()
    engine, made = start(broken, broken, broken, broken, {"loads": False}, ready=False, stopping=stopping)
    eventually(lambda: len(made) == 5)
    assert engine.state == "failed" and engine.problem == "not yet"
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


def test_several_workers_share_one_request(start):
    engine, made = start(HELD, workers=2)
    work = ask(engine, *["x" * 400] * 8)
    eventually(lambda: all(worker.calls for worker in made))
    for worker in made:
        worker.set(open=True)
    assert lengths(work) == [400] * 8
    assert sum(len(flat(worker.calls)) for worker in made) == 8


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_worker_gets_up_to_ahead_batches_before_its_reply(start, ahead):
    engine, (worker,) = start(HELD, ahead=ahead)
    work = ask(engine, *["x" * 400] * 5)
    eventually(lambda: worker.waited)
    assert len(worker.calls) == ahead
    worker.set(open=True)
    assert lengths(work) == [400] * 5


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
    engine, made = start(idle_seconds=0.01)
    made[0].set(dead=True)
    eventually(lambda: len(made) == 2)
    eventually(lambda: engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]


def test_a_worker_over_the_timeout_is_killed_and_replaced(start):
    engine, made = start(HELD, {}, timeout=0.02)
    work = ask(engine, "a")
    assert error_of(work) == "encoder_crashed"
    eventually(lambda: len(made) == 2)
    assert made[0].dead and made[0].waited == [0.02]
    eventually(lambda: engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]


def test_a_restarted_worker_with_another_fingerprint_is_logged_and_used(start, caplog):
    changed = EncoderInfo(DEFAULT_ENCODER, "e" * 32, 2, 256, {}, None, "cpu", 25, None)
    engine, made = start({}, {"info": changed})
    made[0].set(dead=True)
    error_of(ask(engine, "a"))
    eventually(lambda: engine.state == "ready")
    assert engine.require_ready().fingerprint == "e" * 32
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
    for count in range(3, 8):
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


def test_texts_tokens_and_padding_are_counted_in_the_metrics(start):
    def counted():
        names = ("lathe_texts_total", "lathe_tokens_total", "lathe_padding_tokens_total", "lathe_queue_seconds_count")
        return np.array([REGISTRY.get_sample_value(name, {"encoder": DEFAULT_ENCODER.name}) or 0 for name in names])

    engine, _ = start()
    before = counted()
    lengths(ask(engine, "a"))
    eventually(lambda: (counted() - before == [2, 10, 2, 1]).all())
    assert engine.queue.rate == pytest.approx(2 / 0.01)  # two tokens estimated in the seconds the worker told


@pytest.mark.parametrize("reply", [None, Reply([], [], 0.0)])  # not one at all, and one without results
def test_a_worker_with_a_malformed_reply_is_replaced(start, reply):
    engine, made = start()
    made[0].receive = lambda _seconds: reply
    assert error_of(ask(engine, "a")) == "encoder_crashed"
    eventually(lambda: len(made) == 2 and engine.state == "ready")
    assert lengths(ask(engine, "a")) == [1]
