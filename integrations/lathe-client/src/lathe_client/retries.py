"""When a call is tried again, and after how long."""

import random
from dataclasses import dataclass

import httpx

from lathe_client.calls import Call
from lathe_client.errors import read_retry_after

BUSY = (429, 503)
"""Statuses with which a server refuses a request before it changes anything."""
BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)
"""Errors after which another try may succeed. An answer that took too long is not among them: it would again."""


@dataclass(frozen=True)
class Retries:
    """How often and after how long calls are tried again.

    Attributes:
        tries: further tries after the first one.
        first_delay: seconds before the first of them; doubled each time.
        max_delay: most seconds to wait. If `Retry-After` asks for more, the call fails at once.
    """

    tries: int = 3
    first_delay: float = 0.5
    max_delay: float = 30.0

    def choose_delay(
        self, call: Call[object], outcome: httpx.Response | httpx.RequestError, tried: int
    ) -> float | None:
        """Return the seconds to wait before the next try: those of `Retry-After`, and a random part of the delay.

        After a broken connection, only calls that change nothing are tried again.

        Args:
            call: the call.
            outcome: answer or error of the last try.
            tried: number of tries that failed before this one.

        Returns:
            Seconds; None if the outcome is final.
        """
        if tried >= self.tries or not _may_succeed_later(call, outcome):
            return None
        asked = read_retry_after(outcome) if isinstance(outcome, httpx.Response) else None
        if asked is not None and asked > self.max_delay:
            return None
        # Random, or else all clients that a busy server has refused would come back at the same moment.
        backoff = min(self.first_delay * 2.0**tried, self.max_delay) * random.uniform(0.5, 1.0)
        return backoff + (asked or 0.0)


DEFAULT_RETRIES = Retries()


def _may_succeed_later(call: Call[object], outcome: httpx.Response | httpx.RequestError) -> bool:
    """Return whether the same call may succeed later, and may be sent twice."""
    if isinstance(outcome, httpx.Response):
        return outcome.status_code in BUSY
    return isinstance(outcome, BROKEN) and not call.changes_state
