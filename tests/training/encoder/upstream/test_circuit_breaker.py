from lathe.training.encoder.upstream.circuit_breaker import FIRST_PAUSE, MAX_PAUSE, CircuitBreaker


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


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
    assert breaker.open and breaker.reserve_call() == FIRST_PAUSE


def test_after_the_pause_one_call_tries_and_its_success_closes_the_breaker():
    clock, breaker = open_breaker()
    clock.now += FIRST_PAUSE
    assert breaker.reserve_call() == 0 and breaker.reserve_call() > 0
    breaker.record_success()
    assert breaker.reserve_call() == breaker.reserve_call() == 0


def test_each_failed_try_doubles_the_pause_up_to_the_longest():
    clock, breaker = open_breaker()
    pauses = []
    for _ in range(6):
        clock.now += MAX_PAUSE
        assert breaker.reserve_call() == 0
        breaker.record_failure()
        pauses.append(breaker.reserve_call())
    assert pauses == [10, 20, 40, 60, 60, 60]


def test_a_try_that_is_abandoned_leaves_its_place_to_another_call():
    clock, breaker = open_breaker()
    clock.now += FIRST_PAUSE
    assert breaker.reserve_call() == 0
    breaker.abandon()
    assert breaker.reserve_call() == 0


def test_failures_of_calls_from_before_it_opened_do_not_lengthen_the_pause():
    clock, breaker = open_breaker()
    clock.now += 1
    breaker.record_failure()
    assert breaker.reserve_call() == FIRST_PAUSE - 1
