"""Calls to an embeddings API with retries, rate limits and a circuit breaker.

send ─ wait for the breaker and for a slot of the rate limits ─ one call (client.py)
  ├── an answer       returned; its tokens are counted
  ├── retryable       tried again after a pause that doubles, or that the API asks for, while patience lasts
  └── not retryable, or patience is over: an `UpstreamError`
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from lathe.training.encoder.batching import estimate_tokens
from lathe.training.encoder.spec import UpstreamSpec
from lathe.training.encoder.upstream.circuit_breaker import CircuitBreaker
from lathe.training.encoder.upstream.client import CallError, UpstreamClient
from lathe.training.encoder.upstream.protocols import ApiAnswer, CallOptions
from lathe.training.errors import UpstreamBusyError, UpstreamError, UpstreamUnavailableError
from lathe.training.rate_limiter import RateLimiter

FIRST_PAUSE, MAX_PAUSE = 0.25, 20.0
"""Seconds of the first pause between two tries of a call, and of the longest that the API does not ask for."""

MAX_ASKED_PAUSE = 600.0
"""Maximum seconds of a pause that the API asks for. Afterwards one call finds out whether it still refuses."""
MILLION = 1_000_000
MODEL_TOKENS = 64
"""Maximum tokens that a model adds to a text."""

Usage = Literal["calls", "retries", "failures", "texts", "tokens", "cost"]
"""Counters of the use of an API: calls, retries among them, calls without an answer, texts and tokens in answers, and
the cost of the tokens in the currency of the price."""

OnUsage = Callable[[Usage, float], None]
"""Function called with a counter and the amount to add to it."""


class UpstreamCalls:
    """Calls to one API, made by one event loop.

    Args:
        client: connections to the API.
        patience: seconds after the first failure of a call in which it is tried again.
        on_usage: called with a counter and the amount to add to it.

    Attributes:
        breaker: circuit breaker of all calls.
        problem: why the latest call failed; None if it did not.
    """

    def __init__(self, client: UpstreamClient, patience: float, on_usage: OnUsage) -> None:
        spec: UpstreamSpec = client.spec
        self.client, self.spec, self.patience, self.on_usage = client, spec, patience, on_usage
        self.limiter = RateLimiter(spec.requests_per_minute, spec.tokens_per_minute)
        self.breaker = CircuitBreaker()
        self.problem: str | None = None

    async def send(self, texts: Sequence[str], options: CallOptions, max_length: int) -> ApiAnswer:
        """Send one call for texts to the API, and return its answer. A failed call is sent again while that may succeed
        and the time for retries lasts.

        Args:
            texts: texts of one call.
            options: options of the encoding.
            max_length: tokens that the model reads of a text, for the estimate of the tokens that are used.

        Raises:
            UpstreamError: if there is no answer.
            CallError: if the API refuses the call and one of its texts may be the reason.
        """
        estimate = sum(estimate_tokens(text, max_length) for text in texts)
        failed_at: float | None = None
        tries = 0

        while True:
            try:
                await self._wait_for_slot(estimate)
                self.on_usage("calls", 1)
                self.on_usage("retries", min(tries, 1))
                answer = _bound_tokens(await self.client.embed(texts, options), texts, options)
                return self._record_answer(answer, len(texts), estimate)
            except CallError as error:
                self.on_usage("failures", 1)
                if error.blames_text:  # the API works
                    self.breaker.record_success()
                    raise
                failed_at = failed_at or time.monotonic()
                await self._pause(self._record_failure(error, tries), error, time.monotonic() - failed_at)
                tries += 1
            except asyncio.CancelledError:
                self.breaker.abandon()
                raise

    async def _wait_for_slot(self, estimate: int) -> None:
        """Wait until the circuit breaker and the rate limits allow a call of about `estimate` tokens.

        Raises:
            UpstreamUnavailableError: if the breaker is open for longer than patience lasts.
            UpstreamBusyError: if the API asked for a longer pause.
        """
        while (seconds := self.breaker.reserve_call()) > 0:
            if seconds > self.patience:
                raise UpstreamUnavailableError(f"{self.spec.provider_name}: {self.problem}", seconds)
            await asyncio.sleep(seconds)

        self._require_not_held()
        start = self.limiter.reserve_slot(estimate)
        while (seconds := self.limiter.seconds_until(start)) > 0:
            await asyncio.sleep(seconds)
            self._require_not_held()

    def _require_not_held(self) -> None:
        """Check that the API did not ask for a pause that is longer than the time for retries.

        Raises:
            UpstreamBusyError: if it did.
        """
        held = self.limiter.seconds_until(self.limiter.held)
        if held > self.patience:
            self.breaker.abandon()
            raise UpstreamBusyError(f"{self.spec.provider_name}: {self.problem}", held)

    def _record_failure(self, error: CallError, tries: int) -> float:
        """Record a failed call in the circuit breaker and the rate limits. Returns the seconds to wait before another
        try.
        """
        self.problem = str(error)
        if error.retryable and not error.limited:
            self.breaker.record_failure()
        else:
            self.breaker.abandon()

        # Jitter keeps clients that failed together from calling together again.
        pause = random.uniform(0.5, 1) * min(FIRST_PAUSE * 2**tries, MAX_PAUSE)  # noqa: S311
        seconds: float = max(pause, min(error.retry_after or 0.0, MAX_ASKED_PAUSE))
        if error.limited:
            self.limiter.hold(seconds)

        return seconds

    async def _pause(self, seconds: float, error: CallError, waited: float) -> None:
        """Wait so many seconds before another try, or raise if there should be none. `waited` are the seconds since the
        first failure.

        Raises:
            UpstreamError: if another try would fail, or come after more than `patience` seconds.
        """
        if error.retryable and waited + seconds <= self.patience:
            await asyncio.sleep(seconds)
            return

        message = f"{self.spec.provider_name}: {error}"
        if error.limited:
            raise UpstreamBusyError(message, seconds)
        if error.retryable:
            raise UpstreamUnavailableError(message, max(seconds, 1.0))

        raise UpstreamError(message)

    def _record_answer(self, answer: ApiAnswer, texts: int, estimate: int) -> ApiAnswer:
        """Record a successful call in the circuit breaker, rate limits and usage counters, and return its answer."""
        self.breaker.record_success()
        self.problem = None
        used = estimate if answer.tokens is None else answer.tokens
        self.limiter.correct_tokens(used - estimate)
        self.on_usage("texts", texts)
        self.on_usage("tokens", used)

        if self.spec.price:
            self.on_usage("cost", used * self.spec.price / MILLION)

        return answer


def _bound_tokens(answer: ApiAnswer, texts: Sequence[str], options: CallOptions) -> ApiAnswer:
    """Return an answer, without its number of tokens if the texts cannot have so many.

    A token covers at least a byte. Tokens of the model around each text, such as [CLS] and [SEP], come on top.
    """
    max_tokens = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    max_tokens += len(texts) * (len((options.prompt or "").encode()) + MODEL_TOKENS)
    return answer if answer.tokens is None or answer.tokens <= max_tokens else replace(answer, tokens=None)
