"""Circuit breaker that holds calls back for a while after several failures in a row, then lets one through.

closed     calls are made; several failures in a row ──► open
open       calls are held back; the pause is over    ──► half-open
half-open  one call is made; it succeeds ──► closed, it fails ──► open, for a longer pause
"""

import time
from collections.abc import Callable

MAX_FAILURES = 5
"""Number of failures in a row that opens the breaker."""

FIRST_PAUSE, MAX_PAUSE = 5.0, 60.0
"""Seconds of the first pause, and of the longest; each pause is twice as long as the one before."""


class CircuitBreaker:
    """State of a circuit breaker, used by one thread.

    Args:
        clock: monotonic clock, in seconds.
        max_failures: failures in a row that open it.

    Attributes:
        failures: failures in a row.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_failures: int = MAX_FAILURES) -> None:
        self.clock, self.max_failures = clock, max_failures
        self.failures = 0
        self.opened_until: float | None = None
        self.pause = FIRST_PAUSE
        self.trying = False

    @property
    def open(self) -> bool:
        """Whether the breaker is open or half-open: at most one call is let through."""
        return self.opened_until is not None

    def reserve_call(self) -> float:
        """Return the seconds until a call may be made, 0 if it may be made now. In the half-open state, only the first
        caller gets 0.
        """
        if self.opened_until is None:
            return 0.0

        seconds = self.opened_until - self.clock()
        if seconds > 0:
            return seconds
        if self.trying:
            return 1.0

        self.trying = True
        return 0.0

    def record_success(self) -> None:
        """Close the breaker."""
        self.failures, self.opened_until, self.pause, self.trying = 0, None, FIRST_PAUSE, False

    def record_failure(self) -> None:
        """Count a failed call, and open the breaker after `max_failures` in a row. A half-open breaker opens again, for
        a longer pause.
        """
        self.failures += 1
        if self.open and not self.trying:
            return  # a call that began before it opened
        if self.trying:
            self.pause = min(2 * self.pause, MAX_PAUSE)
        if self.trying or self.failures >= self.max_failures:
            self.opened_until, self.trying = self.clock() + self.pause, False

    def abandon(self) -> None:
        """Let another call through while half-open: the last one was cancelled, or says nothing of the API."""
        self.trying = False
