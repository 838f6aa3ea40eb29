"""HTTP client of one endpoint, with rate limits, retries and a circuit breaker.

call ─ wait for the circuit breaker and for a slot of the rate limits ─ one attempt, which posts a request
  ├── an answer       returned
  ├── retryable       another attempt after a pause that doubles, or that the endpoint asks for, while the policy allows
  └── not retryable, or no further attempt is allowed: the `CallError` is raised

Requests go only to the endpoint: redirects are not followed, and nothing is read from the environment, neither proxies
nor .netrc. The providers' own clients are not used: their retries would bypass rate limits, budgets and the circuit
breaker, and they follow redirects with the key, take headers from the environment, and read a response of any size.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx2
import orjson

T = TypeVar("T")

CONNECT_SECONDS = 15.0
"""Maximum time to connect, in seconds."""
MAX_QUOTED = 200
"""Maximum number of characters of an endpoint's own text that an error message repeats."""
REDIRECTS, REFUSALS, SERVER_ERRORS = 300, 400, 500
"""Lowest HTTP statuses of redirects, of refusals and of server errors."""
REQUEST_TIMEOUT, RATE_LIMIT = 408, 429
"""HTTP statuses below 500 that can be retried."""
CONTENT_STATUSES = (400, 413, 422)
"""HTTP statuses that may be due to the content of one request."""

TIME_OUT, UNREADABLE = "time-out", "unreadable"
"""Kinds of failures: no whole response in time; a response that is too large or compressed."""

MAX_RETRY_SECONDS = 86_400.0
"""Maximum seconds to wait that are read from a Retry-After header."""
MAX_ASKED_PAUSE = 600.0
"""Maximum seconds of a pause that an endpoint asks for. Afterwards a call tests whether the endpoint still refuses."""
MINUTE = 60.0
"""Seconds of a minute."""

MAX_FAILURES = 5
"""Number of failures in a row that opens a circuit breaker."""
FIRST_OPEN, MAX_OPEN = 5.0, 60.0
"""Seconds for which a circuit breaker opens first, and at most; each time is twice as long as the one before."""


class CallError(Exception):
    """Error of a call to an HTTP endpoint that got no usable answer.

    CallError
    ├── retryable      429, 408, 5xx, no connection, a time-out, a cut connection, a body that is not JSON
    └── not retryable  400, 401, 403, 404, 413, 422, a redirect …: another attempt would fail too

    Attributes:
        kind: short description, by which failures are counted.
        retryable: whether another attempt may succeed.
        status: HTTP status; 0 if there was no response, or a response with a success status that is not an answer.
        retry_after: seconds after which another attempt may succeed; None if the endpoint does not ask for a pause.
    """

    def __init__(
        self, kind: str, message: str, retryable: bool, status: int = 0, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.retryable, self.status, self.retry_after = kind, retryable, status, retry_after

    @property
    def limited(self) -> bool:
        """Whether the endpoint refused because of a rate limit."""
        return self.status == RATE_LIMIT

    @property
    def blames_content(self) -> bool:
        """Whether the content of this one request may be the reason: the status is one of `CONTENT_STATUSES`."""
        return self.status in CONTENT_STATUSES


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
        """Reserve the next free slot for a request of about `tokens` tokens. The method does not wait.

        Returns:
            The time when the slot begins, in seconds on the limiter's clock.
        """
        # A slot begins when both limits allow it: the request before has used up its share of the minute.
        start = max(self.clock(), self.requests_free, self.tokens_free)
        self.requests_free = start + self.request_seconds
        self.tokens_free = start + tokens * self.token_seconds
        return start

    def correct_tokens(self, tokens: float) -> None:
        """Correct the reserved tokens of a request to the tokens that it used, which moves the following slots.

        Args:
            tokens: number used minus number reserved; may be negative.
        """
        self.tokens_free += tokens * self.token_seconds

    def hold(self, seconds: float) -> None:
        """Let no request start for a number of seconds from now. A longer pause that was set before remains."""
        self.held = max(self.held, self.clock() + seconds)

    def seconds_until(self, start: float) -> float:
        """Return the seconds until a request with a slot that begins at `start` may be sent, pauses included.

        The seconds are 0 or less if the request may be sent now.
        """
        return max(start, self.held) - self.clock()


class CircuitBreaker:
    """Circuit breaker for one thread, which holds calls back after several failures in a row.

    closed     calls are made; several failures in a row ──► open
    open       calls are held back; the pause is over    ──► half-open
    half-open  one call is made; it succeeds ──► closed, it fails ──► open, for a longer pause

    Args:
        clock: monotonic clock, in seconds.
        max_failures: failures in a row that open the breaker.

    Attributes:
        failures: failures in a row.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_failures: float = MAX_FAILURES) -> None:
        self.clock, self.max_failures = clock, max_failures
        self.failures = 0
        self.opened_until: float | None = None
        self.pause = FIRST_OPEN
        self.trying = False

    @property
    def open(self) -> bool:
        """Whether the breaker is open or half-open, so that at most one call is let through."""
        return self.opened_until is not None

    def reserve_call(self) -> float:
        """Return 0 if a call may be made now, else the seconds to wait. Half-opens an open breaker after its pause.

        If the pause of an open breaker is over, the first caller gets 0 and the breaker becomes half-open. Other
        callers then get 1.
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
        """Close the breaker, and forget earlier failures and longer pauses."""
        self.failures, self.opened_until, self.pause, self.trying = 0, None, FIRST_OPEN, False

    def record_failure(self) -> None:
        """Count a failed call, and open the breaker after `max_failures` in a row, or again if it is half-open.

        A half-open breaker opens for a longer pause. An open breaker ignores the failure of a call that began before.
        """
        self.failures += 1
        if self.open and not self.trying:
            return  # a call that began before it opened
        if self.trying:
            self.pause = min(2 * self.pause, MAX_OPEN)
        if self.trying or self.failures >= self.max_failures:
            self.opened_until, self.trying = self.clock() + self.pause, False

    def abandon(self) -> None:
        """End the test call of a half-open breaker without a result, so that another call may be made.

        The call was cancelled, or its failure says nothing about the endpoint.
        """
        self.trying = False


@dataclass(frozen=True)
class RetryPolicy:
    """Settings of when a failed call is tried again.

    Attributes:
        first_pause: seconds before the first retry; each further pause is twice as long.
        max_pause: maximum seconds of a pause that the endpoint does not ask for.
        retries: maximum number of retries of a call; None for no limit.
        patience: seconds after the first failure of a call during which the call is tried again.
        max_failures: failures in a row that open the circuit breaker; inf for none.
    """

    first_pause: float
    max_pause: float
    retries: int | None = None
    patience: float = math.inf
    max_failures: float = MAX_FAILURES


class EndpointClient:
    """HTTP client of one endpoint for one event loop, with rate limits, retries and a circuit breaker.

    Args:
        key: API key, sent as a bearer token; None for none.
        timeout: maximum time of a whole response, in seconds.
        policy: when a failed call is tried again.
        limiter: rate limits of the calls.
        kept: maximum number of idle connections to keep; None for no limit.
        sleep: waits the given seconds before a call; an exception that it raises ends the call.

    Attributes:
        breaker: circuit breaker of all calls.
        problem: why the latest call failed; None if it succeeded, or if the content of the call may be the reason.
    """

    def __init__(
        self,
        key: str | None,
        timeout: float,
        policy: RetryPolicy,
        limiter: RateLimiter,
        kept: int | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.key, self.timeout, self.policy, self.limiter, self.sleep = key, timeout, policy, limiter, sleep
        self.breaker = CircuitBreaker(max_failures=policy.max_failures)
        self.problem: str | None = None
        self.held_by: CallError | None = None
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # decompressed, a small response can be of any size
            "content-type": "application/json",
        }
        self.client = httpx2.AsyncClient(
            headers=headers | ({"authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=kept),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close the connections to the endpoint."""
        await self.client.aclose()

    async def call(self, attempt: Callable[[int], Awaitable[T]], tokens: float) -> T:
        """Make attempts of a call until one succeeds, and return the result. Without another try, the error is raised.

        A failed attempt is repeated after a pause while another may succeed and the policy allows it. Each attempt
        waits for the circuit breaker and the rate limits first.

        Args:
            attempt: makes one attempt, given the number of attempts before.
            tokens: estimated tokens of an attempt. The attempt corrects the limiter by the tokens it used.

        Raises:
            CallError: of the last attempt. If it is retryable, its `retry_after` is set.
        """
        tries, failed_at = 0, None

        while True:
            await self.wait_for_slot(tokens)
            try:
                answer = await attempt(tries)
            except CallError as error:
                pause = self._record_failure(error, tries)
                failed_at = failed_at or time.monotonic()
                self._raise_unless_retried(error, pause, tries, time.monotonic() - failed_at)
            except BaseException:  # a cancelled call, for example, says nothing about the endpoint
                self.breaker.abandon()
                raise
            else:
                self.breaker.record_success()
                self.problem = None
                return answer

            await self.sleep(pause)
            tries += 1

    async def wait_for_slot(self, tokens: float) -> None:
        """Wait until the breaker and rate limits allow an attempt, and reserve tokens. Raise beyond the patience.

        Raises:
            CallError: if the circuit breaker, or a pause that the endpoint asked for, would take longer than the
                policy's patience.
        """
        while (seconds := self.breaker.reserve_call()) > 0:
            if seconds > self.policy.patience:
                raise CallError("circuit breaker", str(self.problem), retryable=True, retry_after=seconds)
            await self.sleep(seconds)

        try:
            self._check_not_held()
            start = self.limiter.reserve_slot(tokens)
            while (seconds := self.limiter.seconds_until(start)) > 0:
                await self.sleep(seconds)
                self._check_not_held()
        except BaseException:
            self.breaker.abandon()
            raise

    def _check_not_held(self) -> None:
        """Raise `CallError` if the pause that the endpoint asked for ends later than the policy's patience allows.

        The error has the kind, message and status of the error that asked for the pause.
        """
        seconds = self.limiter.seconds_until(self.limiter.held)
        if self.held_by is not None and seconds > self.policy.patience:
            raise CallError(self.held_by.kind, str(self.held_by), True, self.held_by.status, seconds)

    def _record_failure(self, error: CallError, tries: int) -> float:
        """Record a failed attempt in breaker and limiter, and return seconds to wait, 0 if the content may be to blame.

        If the content of the request may be the reason, the attempt counts as a success and the pause is 0. A pause
        that the endpoint asked for holds all calls.
        """
        if error.blames_content:  # the endpoint works
            self.breaker.record_success()
            return 0.0

        self.problem = str(error)
        if error.retryable and not error.limited:
            self.breaker.record_failure()
        else:
            self.breaker.abandon()

        # Jitter keeps clients that failed together from calling together again.
        backoff = random.uniform(0.5, 1) * min(self.policy.first_pause * 2**tries, self.policy.max_pause)  # noqa: S311
        pause: float = max(backoff, min(error.retry_after or 0.0, MAX_ASKED_PAUSE))
        if error.limited or error.retry_after is not None:
            self.limiter.hold(pause)
            self.held_by = error

        return pause

    def _raise_unless_retried(self, error: CallError, pause: float, tries: int, waited: float) -> None:
        """Raise the error of a failed call unless it may be tried again after `pause` seconds.

        The error is raised if it is not retryable, or if the policy's retries or patience are used up. In the latter
        case its `retry_after` is set to `pause`.

        Args:
            error: error of the latest attempt.
            pause: seconds before another attempt.
            tries: number of attempts before the latest.
            waited: seconds since the call first failed.

        Raises:
            CallError: the error itself, if another try would fail, or the policy allows none.
        """
        if not error.retryable:
            raise error
        is_last = self.policy.retries is not None and tries >= self.policy.retries
        if is_last or waited + pause > self.policy.patience:
            error.retry_after = pause
            raise error

    async def post(self, url: str, content: bytes, limit: int) -> tuple[Mapping[str, str], bytes]:
        """Post JSON to a URL once, and return headers and body. Compressed, too large, late or failed responses raise.

        Args:
            url: URL of the endpoint.
            content: JSON body.
            limit: maximum size of the response, in bytes.

        Raises:
            CallError: if no response comes within the time limit, the response is compressed or larger than `limit`, or
                its status is not a success.
        """
        try:
            async with (
                asyncio.timeout(self.timeout),  # of the whole response: httpx2 limits only each read
                self.client.stream("POST", url, content=content) as response,
            ):
                encoding = response.headers.get("content-encoding", "identity")
                if encoding != "identity":
                    message = f"the response is compressed ({self.redact(encoding)}), although it must not be"
                    raise CallError(UNREADABLE, message, retryable=False)
                payload = bytearray()
                async for part in response.aiter_raw():
                    payload += part
                    if len(payload) > limit:
                        raise CallError(UNREADABLE, f"the response has more than {limit:,} bytes", retryable=False)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise CallError(TIME_OUT, f"no answer within {self.timeout:g} s", retryable=True) from error
        except (httpx2.ConnectError, httpx2.InvalidURL) as error:
            message = f"no connection: {self.redact(str(error))}"
            raise CallError("no connection", message, retryable=True) from error
        except httpx2.HTTPError as error:
            message = f"the connection was cut: {self.redact(str(error))}"
            raise CallError("cut connection", message, retryable=True) from error

        if response.status_code >= REDIRECTS:
            raise self._build_status_error(response, bytes(payload))

        return response.headers, bytes(payload)

    def _build_status_error(self, response: httpx2.Response, payload: bytes) -> CallError:
        """Build the error of an unsuccessful response, with the endpoint's message, retryable for 408, 429 and 5xx.

        The target of a redirect is named.
        """
        status = response.status_code
        if status < REFUSALS:
            where = self.redact(response.headers.get("location", "nowhere"))
            message = f"{status}: it points to {where}, which is not followed"
            return CallError(f"refused with {status}", message, False, status)

        try:
            quoted = self.redact(extract_message(orjson.loads(payload)))
        except orjson.JSONDecodeError:
            # An HTML page contains no more information than the status.
            quoted = "" if payload.lstrip().startswith(b"<") else self.redact(payload.decode("utf-8", "replace"))

        message = f"{status}: {quoted or response.reason_phrase}"
        if status in (RATE_LIMIT, REQUEST_TIMEOUT) or status >= SERVER_ERRORS:
            kind = "rate limit" if status == RATE_LIMIT else f"server error {status}"
            return CallError(kind, message, True, status, parse_retry_after(response.headers.get("retry-after")))

        return CallError(f"refused with {status}", message, False, status)

    def redact(self, text: str) -> str:
        """Remove the key from a text of the endpoint, put it on one line, and cut it to `MAX_QUOTED` characters."""
        text = text.replace(self.key, "…") if self.key else text
        return " ".join(text.split())[:MAX_QUOTED]


def extract_message(response: Any) -> str:
    """Return the error message in a JSON response, which common formats have under `error` or `message`.

    Without these fields, the whole response is the message. A message that is not a string is returned as JSON text.
    """
    error = response.get("error", response) if isinstance(response, dict) else response
    message = error.get("message", error) if isinstance(error, dict) else error
    return message if isinstance(message, str) else orjson.dumps(message).decode()


def parse_retry_after(header: str | None) -> float | None:
    """Parse a Retry-After header, seconds or a date, to the seconds to wait. None if it is missing or malformed.

    The result is between 0 and `MAX_RETRY_SECONDS`.
    """
    if header is None:
        return None

    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
            seconds = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):  # a year of twenty digits
            return None

    return None if math.isnan(seconds) else min(max(seconds, 0.0), MAX_RETRY_SECONDS)
