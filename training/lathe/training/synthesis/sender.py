"""Concurrent requests within a budget, whose answers are logged.

call ─ has a usable answer, or as many unusable answers as allowed? ─ yes ─ settled
  │ no
check the budget, send the request (chat.py), with the retries of training/lathe/training/endpoint_client.py
  ├── an answer       logged (answer_log.py); if it cannot be used, the call is sent again
  └── no answer       left for the next run; several such calls in a row stop this run
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from typing import Any

from lathe.training.endpoint_client import (
    MAX_ASKED_PAUSE,
    MINUTE,
    TIME_OUT,
    CallError,
    EndpointClient,
    RateLimiter,
    RetryPolicy,
)
from lathe.training.errors import JobError
from lathe.training.synthesis.answer_log import AnswerLog, LoggedAnswer
from lathe.training.synthesis.answer_parsing import Call, parse_answer
from lathe.training.synthesis.chat import ChatAnswer, Endpoint, ask_model, estimate_tokens
from lathe.training.synthesis.job import STAGES, StageName, SynthesisJob
from lathe.transforms.progress import Progress


class _Budget:
    """Limits on requests and tokens, with the numbers used so far and reserved for running requests.

    Args:
        max_requests: maximum number of requests; None for no limit.
        max_tokens: maximum number of tokens; None for no limit.
        requests: requests of earlier runs.
        tokens: tokens of earlier runs.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None, requests: int, tokens: int) -> None:
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests, self.tokens = requests, tokens

    def refusal_reason(self, tokens: int) -> str | None:
        """Return the reason why a request of at most `tokens` tokens would exceed the budget, or None if it would not.

        Nothing is reserved.
        """
        if self.max_requests is not None and self.requests >= self.max_requests:
            return f"the budget of {self.max_requests:,} requests is spent"
        if self.max_tokens is not None and self.tokens + tokens > self.max_tokens:
            return f"the budget of {self.max_tokens:,} tokens has too few left for another request"
        return None

    def reserve(self, tokens: int) -> None:
        """Count a request as used, with `tokens`, the maximum number of tokens that it can use."""
        self.requests += 1
        self.tokens += tokens

    def settle(self, reserved: int, used: int) -> None:
        """Replace the tokens that were reserved for a request by the tokens that the request used."""
        self.tokens += used - reserved


MAX_PAUSE = 60.0
"""Maximum pause between retries in seconds, unless the endpoint asks for a longer pause."""
MAX_FAILED_CALLS = 5
"""Number of consecutive calls without an answer after which the run stops."""
UNAUTHORIZED, FORBIDDEN = 401, 403
"""HTTP statuses of a rejected key, and of a prompt that moderation flagged."""
MIN_RETRY_TEMPERATURE = 0.7
"""Minimum temperature of attempts after the first. At temperature 0, a model would repeat the unusable answer."""
CHECK_PROMPT = "Say yes."
"""Prompt of the request that checks the endpoint."""
CHECK_TOKENS = 16
"""Maximum number of tokens of the answer to `CHECK_PROMPT`."""


class _HaltedError(Exception):
    """Raised within a call because the run is halted, and no more requests may be sent."""


class Sender(AbstractAsyncContextManager["Sender"]):
    """Sender of the calls of a run, concurrently and within a budget. Use as an asynchronous context manager.

    Args:
        endpoint: address and key.
        log: answer log, to which answers are added.
        job: settings of the job.
        on_progress: called with progress in [0, 1] and a message.

    Attributes:
        sent: number of requests sent.
        failures: number of failed requests by kind.
        unanswered: calls that got no answer, with the error, by key.
        consecutive_failures: number of consecutive calls without an answer that are not the fault of the prompt.
        halted: event that is set when no more requests may be sent.
        spent: sentence on the budget that is spent; None if no budget is spent.
        error: error that stopped the run; None if no error did.
        has_checked_models: whether the endpoint was checked already.
    """

    def __init__(self, endpoint: Endpoint, log: AnswerLog, job: SynthesisJob, on_progress: Progress) -> None:
        self.endpoint, self.log, self.job, self.on_progress = endpoint, log, job, on_progress
        limits = job.limits
        # Without a circuit breaker: the run stops by itself after some calls without an answer.
        policy = RetryPolicy(limits.backoff, MAX_PAUSE, limits.retries, max_failures=math.inf)
        limiter = RateLimiter(limits.requests_per_minute, limits.tokens_per_minute)
        self.client = EndpointClient(endpoint.key, job.endpoint.timeout, policy, limiter, sleep=self._sleep)
        spent = list(log)
        self.budget = _Budget(
            limits.max_requests, limits.max_tokens, len(spent), sum(record.tokens for record in spent)
        )
        self.sent = 0
        self.failures: Counter[str] = Counter()
        self.unanswered: dict[str, tuple[Call, str]] = {}
        self.consecutive_failures = 0
        # An event instead of a flag, so that waiting workers are woken.
        self.halted = asyncio.Event()
        self.spent: str | None = None
        self.error: JobError | None = None
        self.has_checked_models = False

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.client.close()

    async def send_calls(self, stage: StageName, calls: Sequence[Call]) -> None:
        """Send all unsettled calls of a stage concurrently, and log the answers. Failures are not raised but stored.

        If the budget is spent or the endpoint fails, the method returns early, and `spent` or `error` says why. Calls
        with unusable answers are sent again up to `limits.attempts` times.

        Equal calls are sent once. Before the first call, a short request to every model checks the endpoint. Repeated
        calls have a temperature of at least `MIN_RETRY_TEMPERATURE`.
        """
        attempts = self.job.limits.attempts
        distinct = {call.key: call for call in calls}.values()
        waiting = [call for call in distinct if not self.log.is_settled(call.key, attempts)]

        if waiting and not self.has_checked_models:
            await self._check_models()

        queue, begun, done = iter(waiting), time.monotonic(), 0

        async def settle_calls() -> None:
            nonlocal done
            for call in queue:  # all workers share the queue
                if self.halted.is_set():
                    return
                await self._ask_until_settled(call)
                done += 1
                self._report_progress(stage, done, len(waiting), time.monotonic() - begun)

        workers = [asyncio.create_task(settle_calls()) for _ in range(min(self.job.limits.concurrency, len(waiting)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _check_models(self) -> None:
        """Send a short request to every model of the job, and halt the run with `error` if a request is refused.

        The run is also halted if the endpoint cannot be reached. A rate limit, a server error or a time-out is ignored,
        because a retry may help. The requests count towards the budget.
        """
        self.has_checked_models = True
        asking = [stage for stage in STAGES if self.job.asks(stage)]
        for model, stage in {self.job.model_of(stage): stage for stage in asking}.items():
            parameters = self.job.parameters_of(stage) | {self.job.endpoint.limit_field: CHECK_TOKENS}
            try:
                await self.client.wait_for_slot(self._count_tokens(CHECK_PROMPT, parameters))
                await self._send_request(model, CHECK_PROMPT, parameters)
            except _HaltedError:
                return
            except CallError as error:
                if error.retryable and (error.status or error.kind == TIME_OUT):
                    continue
                self._halt(f"the endpoint {self.endpoint.url} cannot be used with the model {model}: {error}")
                return

    async def _ask_until_settled(self, call: Call) -> None:
        """Send a call, and log every answer, until an answer is usable, the attempts are used up, or none comes.

        From the second attempt on, the temperature is raised to at least `MIN_RETRY_TEMPERATURE`. The method also
        returns if the run is halted.
        """
        attempts = self.job.limits.attempts
        while not self.halted.is_set() and not self.log.is_settled(call.key, attempts):
            attempt = len(self.log.list_answers(call.key)) + 1
            # At temperature 0 the model would give the same unusable answer again.
            parameters = _raise_temperature(call.parameters) if attempt > 1 else call.parameters
            begun = time.monotonic()
            answer = await self._send(call, parameters)
            if answer is None:
                return

            items, dropped = parse_answer(answer, call, self.job.stages[call.stage])
            self.log.add(
                LoggedAnswer(
                    key=call.key,
                    stage=call.stage,
                    seed=call.seed,
                    attempt=attempt,
                    items=items,
                    dropped=dropped,
                    model=call.model,
                    endpoint=self.endpoint.host,
                    template=call.template,
                    parameters=parameters,
                    created_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    finish_reason=answer.finish_reason,
                    prompt_tokens=answer.prompt_tokens,
                    completion_tokens=answer.completion_tokens,
                    counted=answer.counted,
                    seconds=round(time.monotonic() - begun, 3),
                )
            )

    async def _send(self, call: Call, parameters: dict[str, Any]) -> ChatAnswer | None:
        """Send a call with retries, and return the answer, or None. A call without an answer is stored in `unanswered`.

        An answer resets `consecutive_failures`. A rejected key stops the run. The result is also None if the run is
        halted or over budget.
        """
        try:
            answer = await self.client.call(
                lambda _tries: self._send_request(call.model, call.prompt, parameters),
                self._count_tokens(call.prompt, parameters),
            )
        except _HaltedError:
            return None
        except CallError as error:
            if error.status == UNAUTHORIZED:
                self._fail(f"the endpoint rejects the API key: {error}")
            else:
                self._give_up(call, error)
            return None

        self.consecutive_failures = 0
        return answer

    async def _send_request(self, model: str, prompt: str, parameters: dict[str, Any]) -> ChatAnswer:
        """Send one request if the budget allows, charge its tokens, and return the answer. Halt the run over budget.

        Tokens are charged to the budget and the rate limit. A failure is counted by kind in `failures`. If the endpoint
        asks for a pause longer than `MAX_ASKED_PAUSE`, as for a daily limit, the run is stopped.

        Raises:
            CallError: if there is no answer.
            _HaltedError: if the run is halted, or this request would exceed the budget, which then halts the run.
        """
        max_tokens = self._count_tokens(prompt, parameters)
        if self.halted.is_set() or self._halt_if_over_budget(max_tokens):
            raise _HaltedError

        self.sent += 1
        self.budget.reserve(max_tokens)
        try:
            answer = await ask_model(self.client, self.endpoint, model, prompt, parameters)
        except CallError as error:
            self.budget.settle(max_tokens, 0)
            self.failures[error.kind] += 1
            if error.retry_after is not None and error.retry_after > MAX_ASKED_PAUSE:
                self._fail(f"the endpoint asks to wait {error.retry_after / MINUTE:,.0f} minutes ({error})")
            raise

        used = answer.prompt_tokens + answer.completion_tokens
        self.budget.settle(max_tokens, used)
        # The slot was reserved for the longest allowed answer: the difference is given back to the rate limit.
        self.client.limiter.correct_tokens(used - max_tokens)

        return answer

    def _count_tokens(self, prompt: str, parameters: dict[str, Any]) -> int:
        """Estimate the tokens of a prompt together with the longest allowed answer."""
        return estimate_tokens(prompt) + int(parameters[self.job.endpoint.limit_field])

    async def _sleep(self, seconds: float) -> None:
        """Wait a number of seconds. Raise `_HaltedError` as soon as the run is halted."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.halted.wait(), seconds)
            raise _HaltedError

    def _halt_if_over_budget(self, tokens: int) -> bool:
        """Halt the run and set `spent` if the budget does not allow a request of `tokens`. Return whether it halted."""
        reason = self.budget.refusal_reason(tokens)
        if reason is not None:
            self.spent = self.spent or reason
            self.halted.set()
        return reason is not None

    def _give_up(self, call: Call, error: CallError) -> None:
        """Record a call without an answer in `unanswered`, and stop the run after `MAX_FAILED_CALLS` in a row.

        Calls whose prompt may be the cause, because it is too long or flagged by moderation, do not count. Unanswered
        calls are sent again in the next run.
        """
        self.unanswered[call.key] = (call, str(error))
        # A refused prompt says nothing about the state of the endpoint.
        self.consecutive_failures += not error.blames_content and error.status != FORBIDDEN
        if self.consecutive_failures >= MAX_FAILED_CALLS:
            self._fail(f"{MAX_FAILED_CALLS} calls in a row were not answered, the last: {error}")

    def _fail(self, reason: str) -> None:
        """Halt the run with a reason, to which the message adds that the run can be resumed."""
        self._halt(f"{reason}. The answers so far are stored; the same command resumes the run")

    def _halt(self, reason: str) -> None:
        """Set `error` to the reason, unless it is set already, and set `halted`, so that no more requests are sent."""
        self.error = self.error or JobError(reason)
        self.halted.set()

    def _report_progress(self, stage: StageName, done: int, count: int, seconds: float) -> None:
        rate = done / max(seconds, 1e-9)
        seconds_left = (count - done) / rate
        wait = f"{seconds_left / MINUTE:.0f} min" if seconds_left >= 2 * MINUTE else f"{seconds_left:.0f} s"
        fraction = (STAGES.index(stage) + done / count) / len(STAGES)
        self.on_progress(fraction, f"{stage}: {done:,} of {count:,}, {MINUTE * rate:,.0f} a minute, {wait} left")


def _raise_temperature(parameters: dict[str, Any]) -> dict[str, Any]:
    if "temperature" not in parameters:
        return parameters
    return parameters | {"temperature": max(MIN_RETRY_TEMPERATURE, parameters["temperature"])}
