import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from lathe.training import endpoint_client
from lathe.training.endpoint_client import (
    FIRST_OPEN,
    MAX_RETRY_SECONDS,
    CallError,
    CircuitBreaker,
    EndpointClient,
    RateLimiter,
    RetryPolicy,
    parse_retry_after,
)


def test_parse_retry_after_takes_seconds_and_dates():
    said = {"2.5": 2.5, "-1": 0, "inf": MAX_RETRY_SECONDS, "nan": None, None: None, "soon": None}
    assert {header: parse_retry_after(header) for header in said} == said
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


def call_in_turn(policy, *attempts):
    """Make a call of each attempt with one client, and return its results or exceptions."""

    async def call_all():
        client = EndpointClient(None, 1.0, policy, RateLimiter(None, None))
        results = [await asyncio.gather(client.call(attempt, 1), return_exceptions=True) for attempt in attempts]
        await client.close()
        return [result for (result,) in results]

    return asyncio.run(call_all())


def failing(error):
    async def attempt(tries):
        raise error

    return attempt


async def answering(tries):
    return f"answer after {tries}"


def test_a_pause_that_an_endpoint_asks_for_holds_the_calls_after_it_too():
    busy = CallError("server error 503", "503: busy", retryable=True, status=503, retry_after=30)
    first, second = call_in_turn(RetryPolicy(0.01, 0.01, patience=1), failing(busy), answering)
    assert first is busy and busy.retry_after == 30
    assert (str(second), second.status, second.retryable) == ("503: busy", 503, True) and 29 < second.retry_after <= 30


def test_a_call_is_tried_as_often_as_the_policy_allows_while_another_try_may_succeed():
    tried = []

    def failing_twice(retryable):
        async def attempt(tries):
            tried.append(tries)
            if len(tried) < 3:
                raise CallError("cut connection", "cut", retryable)
            return "answered"

        return attempt

    policy = RetryPolicy(0.01, 0.01, retries=2)
    assert call_in_turn(policy, failing_twice(retryable=True)) == ["answered"] and tried == [0, 1, 2]
    tried.clear()
    (error,) = call_in_turn(policy, failing_twice(retryable=False))
    assert isinstance(error, CallError) and tried == [0]
    tried.clear()
    (error,) = call_in_turn(RetryPolicy(0.01, 0.01, retries=1), failing_twice(retryable=True))
    assert isinstance(error, CallError) and tried == [0, 1]


def test_an_unexpected_exception_of_the_one_call_of_a_half_open_breaker_leaves_its_place_to_another(monkeypatch):
    monkeypatch.setattr(endpoint_client, "FIRST_OPEN", 0.01)
    cut = CallError("cut connection", "cut", retryable=True)
    policy = RetryPolicy(0.01, 0.01, retries=0, max_failures=1)
    results = call_in_turn(policy, failing(cut), failing(KeyError("unexpected")), answering)
    assert [type(result) for result in results] == [CallError, KeyError, str]
