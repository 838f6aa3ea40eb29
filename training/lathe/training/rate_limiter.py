"""Rate limits of an endpoint: requests and tokens a minute, spread evenly."""

import time
from collections.abc import Callable

MINUTE = 60.0
"""Seconds of a minute."""


class RateLimiter:
    """Schedule of requests that keeps within the rate limits.

    A request occupies its share of a minute before the next may start, so no window of a minute exceeds the limits.

    Args:
        requests: maximum number of requests a minute; None for no limit.
        tokens: maximum number of tokens a minute; None for no limit.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self, requests: float | None, tokens: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.request_seconds = MINUTE / requests if requests else 0.0
        self.token_seconds = MINUTE / tokens if tokens else 0.0
        self.requests_free = self.tokens_free = self.held = -float("inf")

    def reserve_slot(self, tokens: float) -> float:
        """Reserve the next free slot for a request of about `tokens` tokens. Returns when the slot begins, in seconds
        on the limiter's clock.
        """
        # A slot begins when both limits allow it: the request before has used up its share of the minute.
        start = max(self.clock(), self.requests_free, self.tokens_free)
        self.requests_free = start + self.request_seconds
        self.tokens_free = start + tokens * self.token_seconds
        return start

    def correct_tokens(self, tokens: float) -> None:
        """Move the next slots by `tokens`, the number used minus the number claimed, which may be negative."""
        self.tokens_free += tokens * self.token_seconds

    def hold(self, seconds: float) -> None:
        """Let no request start for so many seconds from now, because the endpoint asked for a pause."""
        self.held = max(self.held, self.clock() + seconds)

    def seconds_until(self, start: float) -> float:
        """Return the seconds until a request with this slot may be sent.

        They are 0 or less if it may be sent now.
        """
        return max(start, self.held) - self.clock()
