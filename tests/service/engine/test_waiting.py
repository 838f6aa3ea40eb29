import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.waiting import NO_HOPE, RETRY_SECONDS_MOST, Hope, WaitingRoom
from service.engine.work import EncodeOptions, Part, Result, Work
from service.errors import OverloadedError, UnavailableError

EVERYTHING = 10**9
"""More tokens than anything here holds."""


def work_of(*texts, keep_raw=False):
    return Work(list(texts), EncodeOptions(), None, keep_raw, 256)


def text_of(tokens):
    """A text that is estimated to take so many tokens."""
    return "x" * 4 * (tokens - 2)


def encoded(part, raw=False):
    """Stands for what a worker gives: each vector tells its text's length."""
    lengths = [len(part.work.texts[row]) for row in part.rows]
    vectors = np.array([[length, 1] for length in lengths], np.float32)
    return Result(vectors, -vectors if raw else None, np.array(lengths, np.int64))


def rows_of(parts, work):
    return [row for part in parts if part.work is work for row in part.rows]


def eventually(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.001)


@pytest.fixture
def room():
    return WaitingRoom(max_texts=10, max_tokens=1000)


def test_what_waits_is_counted_until_it_is_answered(room):
    work = work_of("a", "bb", text_of(50))
    room.put(work)
    assert (room.texts, room.tokens) == (3, 2 + 2 + 50)
    (part,) = room.take(EVERYTHING, 0)
    assert room.texts == 3  # taken, but not yet answered
    work.receive(part.rows, encoded(part))
    assert (room.texts, room.tokens) == (0, 0)


def test_past_the_limit_of_texts_all_of_a_request_is_refused_and_smaller_ones_are_taken(room):
    room.put(work_of(*"abcdef"))
    refused = work_of(*"ghijk")
    with pytest.raises(OverloadedError, match="6 texts .* at most 10"):
        room.put(refused)
    assert room.texts == 6 and not refused.future.done()
    room.put(work_of(*"lmno"))
    taken = room.take(EVERYTHING, 0)
    assert room.texts == 10 and not rows_of(taken, refused)


def test_the_limit_of_tokens_holds_as_well(room):
    room.put(work_of(*[text_of(200)] * 4))
    with pytest.raises(OverloadedError, match="800 tokens .* 1000"):
        room.put(work_of(text_of(201)))
    room.put(work_of(text_of(200)))
    assert room.tokens == 1000


def test_a_request_larger_than_the_limits_is_taken_when_nothing_else_is_there(room):
    large = work_of(*"x" * 50)
    room.put(large)
    with pytest.raises(OverloadedError):
        room.put(work_of("a"))
    parts = room.take(EVERYTHING, 0)
    assert sorted(rows_of(parts, large)) == list(range(50))


def test_the_seconds_to_wait_come_from_the_pace_of_late(room):
    def told():
        with pytest.raises(OverloadedError) as error:
            room.put(work_of(*"x" * 11))
        return error.value.retry_after

    room.put(work_of(*[text_of(100)] * 10))
    assert told() == 1  # nothing was measured yet
    room.measured(100, seconds=1.0, workers=1)
    assert told() == 5  # half of 1,000 tokens at 100 a second
    room.measured(100, seconds=1.0, workers=11)  # a tenth of the way to 1,100
    assert room.rate == pytest.approx(200)
    assert told() == 3  # 2.5, in whole seconds
    for _ in range(100):
        room.measured(1, seconds=10.0, workers=1)
    assert told() == RETRY_SECONDS_MOST


def test_who_gives_up_leaves_the_room_and_nothing_of_it_is_taken(room):
    leaving, staying = work_of("a", "b"), work_of("c")
    room.put(leaving)
    room.put(staying)
    assert leaving.future.cancel()
    assert room.texts == 1
    assert [part.work for part in room.take(EVERYTHING, 0)] == [staying]


def test_the_rest_of_a_request_that_failed_is_not_taken(room):
    work = work_of(*[text_of(50)] * 4)
    room.put(work)
    room.take(100, 0)
    work.fail(ValueError("no"))
    assert room.take(EVERYTHING, 0) == [] and room.texts == 0


def test_large_requests_take_turns_with_those_that_came_later(room):
    large, small = work_of(*[text_of(100)] * 4), work_of(text_of(100))
    room.put(large)
    room.put(small)
    turns = [[part.work for part in room.take(100, 0)] for _ in range(5)]
    assert turns == [[large], [small], [large], [large], [large]]
    assert room.take(100, 0) == []


def test_small_requests_that_wait_are_taken_together_up_to_the_tokens_asked_for(room):
    works = [work_of(text_of(40)) for _ in range(5)]
    for work in works:
        room.put(work)
    assert [part.work for part in room.take(100, 0)] == works[:3]  # the third goes past 100
    assert [part.work for part in room.take(100, 0)] == works[3:]


def test_a_single_text_of_more_tokens_than_asked_for_is_taken_alone(room):
    work = work_of(text_of(200), text_of(150))
    room.put(work)
    assert rows_of(room.take(10, 0), work) == [0]
    assert rows_of(room.take(10, 0), work) == [1]


def shares_of_two_idle_workers(room, wait):
    """Which of ten texts each takes that come while both wait; within 5 s, however long they would wait."""
    work = work_of(*[text_of(50)] * 10)
    with ThreadPoolExecutor(2) as workers:
        asked = [workers.submit(room.take, EVERYTHING, wait) for _ in range(2)]
        eventually(lambda: room.idle == 2)
        room.put(work)
        return [rows_of(answer.result(5), work) for answer in asked]


def test_idle_workers_share_what_comes(room):
    shares = shares_of_two_idle_workers(room, wait=0.2)
    assert sorted(map(len, shares)) == [5, 5]
    assert sorted(shares[0] + shares[1]) == list(range(10))


def test_a_worker_waits_for_what_comes_and_goes_empty_handed_after_its_time(room):
    assert room.take(EVERYTHING, 0.01) == []
    with ThreadPoolExecutor(1) as workers:
        asked = workers.submit(room.take, EVERYTHING, 30)
        eventually(lambda: room.idle == 1)
        work = work_of("a")
        room.put(work)
        assert rows_of(asked.result(10), work) == [0]
    assert room.idle == 0


def test_a_closed_room_keeps_nobody_waiting(room):
    with ThreadPoolExecutor(1) as workers:
        asked = workers.submit(room.take, EVERYTHING, 30)
        eventually(lambda: room.idle == 1)
        room.close()
        assert asked.result(10) == []
        assert workers.submit(room.take, EVERYTHING, 30).result(10) == []


def test_whatever_waits_can_be_failed_at_once(room):
    works = [work_of("a"), work_of("b", "c")]
    for work in works:
        room.put(work)
    room.fail_all(UnavailableError("gone"))
    for work in works:
        with pytest.raises(UnavailableError, match="gone"):
            work.future.result(0)
    assert room.texts == room.tokens == 0 and room.take(EVERYTHING, 0) == []


@given(
    lengths=st.lists(st.lists(st.integers(0, 1200), min_size=1, max_size=12), min_size=1, max_size=6),
    window=st.integers(1, 600),
    idle=st.integers(0, 3),
)
def test_every_text_is_taken_once_and_answers_come_in_the_order_of_the_texts(lengths, window, idle):
    room = WaitingRoom(10**6, 10**6)
    works = [work_of(*["x" * length for length in some], keep_raw=True) for some in lengths]
    for work in works:
        room.put(work)
    room.idle = idle  # others that ask at the same time
    while parts := room.take(window, 0):
        for part in parts:
            estimates = [part.work.estimates[row] for row in part.rows]
            assert sum(estimates) == part.tokens and sum(estimates[:-1]) < window
            part.work.receive(part.rows, encoded(part, raw=True))
    for work, some in zip(works, lengths, strict=True):
        answer = work.future.result(0)
        assert answer.vectors[:, 0].tolist() == (-answer.raw)[:, 0].tolist() == answer.tokens.tolist() == some
    assert room.texts == room.tokens == 0


def test_the_longest_texts_are_taken_first():
    work = work_of(text_of(10), text_of(200), text_of(50), text_of(60))
    assert [work.take(100).rows for _ in range(2)] == [[1], [3, 2]]
    assert work.take(1).rows == [0] and not work.waiting


def test_an_answer_tells_how_long_its_first_text_waited_and_how_long_it_took():
    work = work_of(text_of(50), text_of(50))
    parts = [work.take(1), work.take(1)]
    work.submitted = work.begun - 0.25
    for part in parts:
        work.receive(part.rows, encoded(part))
    answer = work.future.result(0)
    assert answer.queue_ms == pytest.approx(250)
    assert 0 <= answer.inference_ms < 10_000
    assert answer.raw is None and parts[0].waited <= parts[1].waited


def test_work_that_failed_once_stays_so():
    work = work_of(text_of(50), text_of(50))
    first, second = work.take(1), work.take(1)
    work.fail(ValueError("first"))
    work.fail(ValueError("second"))
    work.receive(first.rows, encoded(first))
    work.receive(second.rows, encoded(second))
    with pytest.raises(ValueError, match="first"):
        work.future.result(0)


def test_work_that_was_given_up_takes_neither_answer_nor_error():
    work = work_of("a")
    part = work.take(1)
    assert work.waiting is False and work.future.cancel()
    work.receive(part.rows, encoded(part))
    work.fail(ValueError("late"))
    assert work.future.cancelled()


def test_work_that_was_answered_cannot_be_given_up():
    work = work_of("a")
    part = work.take(1)
    work.receive(part.rows, encoded(part))
    assert not work.future.cancel()
    work.fail(ValueError("late"))
    assert work.future.result(0).vectors[0, 0] == 1


def test_parts_that_come_back_at_once_from_several_threads_give_one_answer():
    for _ in range(50):
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


def test_what_one_idle_worker_leaves_another_takes_at_once(room):
    shares = shares_of_two_idle_workers(room, wait=30)
    assert sorted(shares[0] + shares[1]) == list(range(10))


def test_a_worker_that_just_did_several_texts_waits_a_little_for_half_as_many(room):
    several = [Part(work_of(text_of(10)), [0], 10, 0.0) for _ in range(4)]
    assert Hope.after(several, 8.0) == Hope(20, 2.0)
    assert Hope.after(several[:1], 8.0) == NO_HOPE
    works = [work_of(text_of(50)) for _ in range(3)]
    room.put(works[0])
    with ThreadPoolExecutor(1) as workers:
        asked = workers.submit(room.take, EVERYTHING, 30, Hope(works[0].tokens_estimated + 1, 30.0))
        eventually(lambda: room.idle == 1)
        for work in works[1:]:
            room.put(work)
        found = asked.result(5)
    assert len(found) >= 2


def test_what_does_not_come_is_not_waited_for_long(room):
    room.put(work_of(text_of(50)))
    assert len(room.take(EVERYTHING, 30, Hope(10**6, 0.01))) == 1
