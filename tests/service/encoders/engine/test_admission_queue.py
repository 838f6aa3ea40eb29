import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lathe.service.encoders.engine.admission_queue import MAX_RETRY_SECONDS, NO_WAIT, AdmissionQueue, BatchWait
from lathe.service.encoders.engine.work import EncodeOptions, Part, PartResult, Work
from lathe.service.errors import BadValueError, OverloadedError, UnavailableError
from tests.helpers import eventually

EVERYTHING = 10**9
"""More tokens than anything here holds."""


def work_of(*texts, keep_raw=False):
    """Build work of these texts."""
    return Work(list(texts), EncodeOptions(), None, keep_raw, 256)


def text_of(tokens):
    """A text that is estimated to take so many tokens."""
    return "x" * 4 * (tokens - 2)


def encoded(part, raw=False):
    """Build a worker's result, in which each vector holds its text's length."""
    lengths = [len(part.work.texts[row]) for row in part.rows]
    vectors = np.array([[length, 1] for length in lengths], np.float32)
    return PartResult(vectors, -vectors if raw else None, np.array(lengths), np.zeros(len(lengths), np.int64))


def rows_of(parts, work):
    """Return the rows of a work in these parts."""
    return [row for part in parts if part.work is work for row in part.rows]


@pytest.fixture
def queue():
    return AdmissionQueue(max_texts=10, max_tokens=1000)


def test_a_request_over_the_limits_of_texts_and_tokens_is_refused_as_a_whole_and_a_smaller_one_is_accepted(queue):
    queue.put(work_of(*"abcdef"))
    refused = work_of(*"ghijk")
    with pytest.raises(OverloadedError, match="6 texts .* at most 10"):
        queue.put(refused)
    assert queue.texts == 6 and not refused.future.done()
    queue.put(work_of(*"lmno"))
    taken = queue.take(EVERYTHING, 0)
    assert queue.texts == 10 and not rows_of(taken, refused)
    queue = AdmissionQueue(max_texts=10, max_tokens=1000)
    queue.put(work_of(*[text_of(200)] * 4))
    with pytest.raises(OverloadedError, match="800 tokens .* 1000"):
        queue.put(work_of(text_of(201)))
    queue.put(work_of(text_of(200)))
    assert queue.tokens == 1000


def test_a_request_over_the_limits_is_accepted_by_an_empty_queue(queue):
    large = work_of(*"x" * 50)
    queue.put(large)
    with pytest.raises(OverloadedError):
        queue.put(work_of("a"))
    parts = queue.take(EVERYTHING, 0)
    assert sorted(rows_of(parts, large)) == list(range(50))
    with pytest.raises(BadValueError, match="no texts"):
        queue.admit([], EncodeOptions(), 256)


def test_retry_seconds_follow_the_recent_throughput(queue):
    def told():
        with pytest.raises(OverloadedError) as error:
            queue.put(work_of(*"x" * 11))
        return error.value.retry_after

    queue.put(work_of(*[text_of(100)] * 10))
    assert told() == 1  # nothing was measured yet
    queue.record_batch(100, seconds=1.0, workers=1)
    assert told() == 5  # half of 1,000 tokens at 100 a second
    queue.record_batch(100, seconds=1.0, workers=11)  # a tenth of the way to 1,100
    assert queue.rate == pytest.approx(200)
    assert told() == 3  # 2.5, in whole seconds
    for _ in range(100):
        queue.record_batch(1, seconds=10.0, workers=1)
    assert told() == MAX_RETRY_SECONDS


def test_a_cancelled_request_and_what_remains_of_a_failed_one_leave_the_queue(queue):
    leaving, staying = work_of("a", "b"), work_of("c")
    queue.put(leaving)
    queue.put(staying)
    assert leaving.future.cancel()
    assert queue.texts == 1
    assert [part.work for part in queue.take(EVERYTHING, 0)] == [staying]
    queue = AdmissionQueue(max_texts=10, max_tokens=1000)
    work = work_of(*[text_of(50)] * 4)
    queue.put(work)
    queue.take(100, 0)
    work.fail(ValueError("no"))
    assert queue.take(EVERYTHING, 0) == [] and queue.texts == 0


def test_a_large_request_alternates_with_later_ones_and_small_ones_are_taken_together(queue):
    large, small = work_of(*[text_of(100)] * 4), work_of(text_of(100))
    queue.put(large)
    queue.put(small)
    turns = [[part.work for part in queue.take(100, 0)] for _ in range(5)]
    assert turns == [[large], [small], [large], [large], [large]]
    assert queue.take(100, 0) == []
    works = [work_of(text_of(40)) for _ in range(5)]
    for work in works:
        queue.put(work)
    assert [part.work for part in queue.take(100, 0)] == works[:3]  # the third goes past 100
    assert [part.work for part in queue.take(100, 0)] == works[3:]


def shares_of_two_idle_workers(queue, wait):
    """Return the rows of ten new texts that each of two idle workers takes, within 5 s."""
    work = work_of(*[text_of(50)] * 10)
    with ThreadPoolExecutor(2) as workers:
        asked = [workers.submit(queue.take, EVERYTHING, wait) for _ in range(2)]
        eventually(lambda: queue.idle == 2)
        queue.put(work)
        return [rows_of(answer.result(5), work) for answer in asked]


def test_idle_workers_share_a_new_request_without_waiting_for_the_timeout(queue):
    shares = shares_of_two_idle_workers(queue, wait=30)
    assert sorted(map(len, shares)) == [5, 5]
    assert sorted(shares[0] + shares[1]) == list(range(10))


def test_take_waits_for_a_request_or_for_the_end_of_the_queue_and_returns_nothing_after_its_timeout(queue):
    assert queue.take(EVERYTHING, 0.01) == []
    with ThreadPoolExecutor(1) as workers:
        asked = workers.submit(queue.take, EVERYTHING, 30)
        eventually(lambda: queue.idle == 1)
        work = work_of("a")
        queue.put(work)
        assert rows_of(asked.result(10), work) == [0]
        assert queue.idle == 0
        asked = workers.submit(queue.take, EVERYTHING, 30)
        eventually(lambda: queue.idle == 1)
        queue.close(partial(UnavailableError, "gone"))
        assert asked.result(10) == []
        assert workers.submit(queue.take, EVERYTHING, 30).result(10) == []


def test_a_closed_queue_fails_queued_requests_and_refuses_later_ones_each_with_an_error_of_its_own(queue):
    waiting = queue.admit(["a"], EncodeOptions(), 256)
    queue.close(partial(UnavailableError, "gone"))
    errors = [waiting.future.exception(0)]
    for _ in range(2):
        with pytest.raises(UnavailableError, match="gone") as refused:
            queue.admit(["b"], EncodeOptions(), 256)
        errors.append(refused.value)
    assert len(set(map(id, errors))) == 3 and queue.texts == queue.tokens == 0
    queue.open()
    work = queue.admit(["c"], EncodeOptions(), 256)
    assert [part.work for part in queue.take(EVERYTHING, 0)] == [work]


def test_no_request_is_left_in_a_queue_that_is_closed_while_others_ask():
    for _ in range(20):
        queue, admitted, together = AdmissionQueue(10**6, 10**6), [], threading.Barrier(5)

        def keep_asking(queue=queue, admitted=admitted, together=together):
            together.wait(10)
            with suppress(UnavailableError):
                while True:
                    admitted.append(queue.admit(["a"], EncodeOptions(), 256))

        callers = [threading.Thread(target=keep_asking) for _ in range(4)]
        for caller in callers:
            caller.start()
        together.wait(10)
        queue.close(partial(UnavailableError, "gone"))
        for caller in callers:
            caller.join(10)
        assert all(work.future.done() for work in admitted) and queue.texts == 0


@given(
    lengths=st.lists(st.lists(st.integers(0, 1200), min_size=1, max_size=12), min_size=1, max_size=6),
    window=st.integers(1, 600),
    idle=st.integers(0, 3),
)
def test_every_text_is_taken_once_and_vectors_are_in_the_order_of_the_texts(lengths, window, idle):
    queue = AdmissionQueue(10**6, 10**6)
    works = [work_of(*["x" * length for length in some], keep_raw=True) for some in lengths]
    for work in works:
        queue.put(work)
    queue.idle = idle  # others that ask at the same time
    while parts := queue.take(window, 0):
        for part in parts:
            estimates = [part.work.estimates[row] for row in part.rows]
            assert sum(estimates) == part.tokens and sum(estimates[:-1]) < window
            part.work.receive(part.rows, encoded(part, raw=True))
    for work, some in zip(works, lengths, strict=True):
        answer = work.future.result(0)
        assert answer.vectors[:, 0].tolist() == (-answer.raw)[:, 0].tolist() == answer.tokens.tolist() == some
    assert queue.texts == queue.tokens == 0


def test_the_longest_texts_are_taken_first():
    work = work_of(text_of(10), text_of(200), text_of(50), text_of(60))
    assert [work.take(100).rows for _ in range(2)] == [[1], [3, 2]]
    assert work.take(1).rows == [0] and not work.waiting


def test_the_answer_has_the_queue_time_of_its_first_text_and_the_inference_time():
    work = work_of(text_of(50), text_of(50))
    parts = [work.take(1), work.take(1)]
    work.submitted = work.begun - 0.25
    for part in parts:
        work.receive(part.rows, encoded(part))
    answer = work.future.result(0)
    assert answer.queue_ms == pytest.approx(250)
    assert 0 <= answer.inference_ms < 10_000
    assert answer.raw is None and parts[0].waited <= parts[1].waited


def test_work_that_failed_or_was_cancelled_or_answered_ignores_what_comes_later():
    failed, cancelled, answered = (work_of(text_of(50), text_of(50)), work_of("a"), work_of("a"))
    parts = {work: [work.take(1) for _ in work.texts] for work in (failed, cancelled, answered)}
    failed.fail(ValueError("first"))
    assert cancelled.waiting is False and cancelled.future.cancel()
    answered.receive(parts[answered][0].rows, encoded(parts[answered][0]))
    assert not answered.future.cancel()
    for work in (failed, cancelled, answered):
        work.fail(ValueError("late"))
    for part in parts[failed] + parts[cancelled]:
        part.work.receive(part.rows, encoded(part))
    with pytest.raises(ValueError, match="first"):
        failed.future.result(0)
    assert cancelled.future.cancelled() and answered.future.result(0).vectors[0, 0] == 1


def test_parts_received_from_several_threads_at_once_give_one_answer():
    for _ in range(20):
        work = work_of(*["x" * length for length in range(16)])
        parts = [work.take(1) for _ in range(16)]
        together = threading.Barrier(len(parts))

        def come_back(part, together=together, work=work):
            together.wait(10)
            work.receive(part.rows, encoded(part))

        threads = [threading.Thread(target=come_back, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert work.future.result(0).vectors[:, 0].tolist() == list(range(16))


def test_after_a_batch_of_several_texts_take_waits_for_half_as_many_tokens(queue):
    several = [Part(work_of(text_of(10)), [0], 10, 0.0) for _ in range(4)]
    assert BatchWait.after_batch(several, 8.0) == BatchWait(20, 2.0)
    assert BatchWait.after_batch(several[:1], 8.0) == NO_WAIT
    works = [work_of(text_of(50)) for _ in range(3)]
    queue.put(works[0])
    with ThreadPoolExecutor(1) as workers:
        asked = workers.submit(queue.take, EVERYTHING, 30, BatchWait(works[0].tokens_estimated + 1, 30.0))
        eventually(lambda: queue.idle == 1)
        for work in works[1:]:
            queue.put(work)
        found = asked.result(5)
    assert len(found) >= 2
    queue.take(EVERYTHING, 0)
    queue.put(work_of(text_of(50)))
    assert len(queue.take(EVERYTHING, 30, BatchWait(10**6, 0.01))) == 1
