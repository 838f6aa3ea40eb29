"""When a call is tried again, and after how long."""

import random
from dataclasses import dataclass

import httpx2

from lathe_client.calls import Call
from lathe_client.errors import read_retry_after

BUSY = (429, 503)
"""Statuses with which a server refuses a request before it changes anything."""
BROKEN = (httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ConnectTimeout)
"""Errors after which another try may succeed. An answer that took too long is not among them: it would again."""


@dataclass(frozen=True)
class Retries:
    """How often and after how long calls are tried again.

    Attributes:
        tries: number of retries after the first try.
        first_delay: seconds before the first retry; doubled for each further one.
        max_delay: maximum seconds of that delay, and of a `Retry-After`: if it asks for more, the call fails at once.
            The two are added.
    """

    tries: int = 3
    first_delay: float = 0.5
    max_delay: float = 30.0

    def choose_delay(
        self, call: Call[object], outcome: httpx2.Response | httpx2.RequestError, tried: int
    ) -> float | None:
        """Return the seconds to wait before a retry, or None if the call must not be sent again.

        That is `Retry-After`, plus half to all of the delay, at random. After a broken connection, only calls that
        change nothing are tried again.

        Args:
            call: the call.
            outcome: answer or error of the last try.
            tried: number of tries before the last one, all of which failed.
        """
        if tried >= self.tries or not _is_retryable(call, outcome):
            return None
        asked = read_retry_after(outcome) if isinstance(outcome, httpx2.Response) else None
        if asked is not None and asked > self.max_delay:
            return None
        # Random, or else all clients that a busy server has refused would come back at the same moment.
        backoff = min(self.first_delay * 2.0**tried, self.max_delay) * random.uniform(0.5, 1.0)
        return backoff + (asked or 0.0)


DEFAULT_RETRIES = Retries()


def _is_retryable(call: Call[object], outcome: httpx2.Response | httpx2.RequestError) -> bool:
    """Return whether a retry may succeed, and cannot make the same change twice."""
    if isinstance(outcome, httpx2.Response):
        return outcome.status_code in BUSY
    return isinstance(outcome, BROKEN) and not call.changes_state
