"""How fast an endpoint may be asked: so many requests and tokens a minute, sent evenly."""

import time
from collections.abc import Callable

MINUTE = 60.0


class Pace:
    """When the next request may be sent.

    Every request takes its share of the minute, so that no window of a minute holds more than the limits.

    Args:
        requests: a minute; None for no limit.
        tokens: likewise.
        clock: seconds that only go forward.
    """

    def __init__(
        self, requests: float | None, tokens: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.request_seconds = MINUTE / requests if requests else 0.0
        self.token_seconds = MINUTE / tokens if tokens else 0.0
        self.requests_free = self.tokens_free = self.held = -float("inf")

    def claim(self, tokens: float) -> float:
        """Take the next place for a request of about so many tokens; when it may be sent, by the clock."""
        start = max(self.clock(), self.requests_free, self.tokens_free)
        self.requests_free = start + self.request_seconds
        self.tokens_free = start + tokens * self.token_seconds
        return start

    def correct(self, tokens: float) -> None:
        """So many tokens more were used than was claimed, or fewer."""
        self.tokens_free += tokens * self.token_seconds

    def hold(self, seconds: float) -> None:
        """Nobody sends anything for so long: the endpoint asked for it."""
        self.held = max(self.held, self.clock() + seconds)

    def left(self, start: float) -> float:
        """Seconds until a request with this place may be sent; none or less if it may."""
        return max(start, self.held) - self.clock()
