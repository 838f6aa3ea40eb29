from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from lathe.training.endpoint_client import FIRST_OPEN, MAX_OPEN, CircuitBreaker, RateLimiter, parse_retry_after


def test_parse_retry_after_takes_seconds_and_dates():
    assert [parse_retry_after(header) for header in ("2.5", "-1", None, "soon")] == [2.5, 0, None, None]
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90))
    assert 85 < parse_retry_after(later) <= 90


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_rate_limiter_spaces_requests_evenly_over_the_minute():
    limiter = RateLimiter(30, None, Clock())
    starts = [limiter.reserve_slot(500) for _ in range(90)]
    assert starts[0] == 100 and all(b - a == 2 for a, b in zip(starts, starts[1:], strict=False))


def test_rate_limiter_spaces_requests_by_tokens_and_returns_unused_ones():
    limiter = RateLimiter(None, 6000, Clock())
    assert [limiter.reserve_slot(1000), limiter.reserve_slot(500)] == [100, 110]
    limiter.correct_tokens(-300)
    assert limiter.reserve_slot(1) == 112


def test_rate_limiter_hold_delays_all_requests_and_idle_time_allows_no_burst():
    clock = Clock()
    limiter = RateLimiter(60, None, clock)
    start = limiter.reserve_slot(1)
    limiter.hold(5)
    assert limiter.seconds_until(start) == 5
    clock.now = 200.0
    assert [limiter.reserve_slot(1), limiter.reserve_slot(1)] == [200, 201] and limiter.seconds_until(200) == 0


def test_rate_limiter_without_limits_delays_no_request():
    limiter = RateLimiter(None, None, Clock())
    assert {limiter.reserve_slot(10**6) for _ in range(5)} == {100}


def open_breaker(failures=3):
    clock = Clock()
    breaker = CircuitBreaker(clock, max_failures=failures)
    for _ in range(failures):
        assert breaker.reserve_call() == 0
        breaker.record_failure()
    return clock, breaker


def test_a_breaker_opens_after_several_failures_in_a_row_and_a_success_between_them_counts_from_0():
    breaker = CircuitBreaker(Clock(), max_failures=2)
    breaker.record_failure()
    breaker.record_success()
    breaker.record_failure()
    assert not breaker.open and breaker.reserve_call() == 0
    breaker.record_failure()
    assert breaker.open and breaker.reserve_call() == FIRST_OPEN


def test_after_the_pause_one_call_tries_and_its_success_closes_the_breaker():
    clock, breaker = open_breaker()
    clock.now += FIRST_OPEN
    assert breaker.reserve_call() == 0 and breaker.reserve_call() > 0
    breaker.record_success()
    assert breaker.reserve_call() == breaker.reserve_call() == 0


def test_each_failed_try_doubles_the_pause_up_to_the_longest():
    clock, breaker = open_breaker()
    pauses = []
    for _ in range(6):
        clock.now += MAX_OPEN
        assert breaker.reserve_call() == 0
        breaker.record_failure()
        pauses.append(breaker.reserve_call())
    assert pauses == [10, 20, 40, 60, 60, 60]


def test_a_try_that_is_abandoned_leaves_its_place_to_another_call():
    clock, breaker = open_breaker()
    clock.now += FIRST_OPEN
    assert breaker.reserve_call() == 0
    breaker.abandon()
    assert breaker.reserve_call() == 0


def test_failures_of_calls_from_before_it_opened_do_not_lengthen_the_pause():
    clock, breaker = open_breaker()
    clock.now += 1
    breaker.record_failure()
    assert breaker.reserve_call() == FIRST_OPEN - 1
