"""Calls asked at once, and again where that helps.

call ─ is it answered well, or badly often enough? ─ yes ─ done
  │ no
wait for a place (pace.py), look whether anything may be spent (budget.py), ask (chat.py)
  ├── an answer       written down (book.py); one that cannot be used is asked for again
  ├── try again       429, 5xx, a cut connection …: after a pause that doubles, or that the endpoint asks for
  └── no use, or tries are used up: left for the next run; several in a row stop this one
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from training.errors import JobError
from training.synthesis.book import Book, Record
from training.synthesis.budget import Budget
from training.synthesis.chat import TIME_OUT, UNAUTHORIZED, Answer, Chat, ChatError, guessed_tokens
from training.synthesis.job import STAGES, StageName, SynthesisJob
from training.synthesis.pace import MINUTE, Pace
from training.synthesis.stages import Call, read
from transforms.progress import Progress

LONGEST_PAUSE = 60.0
"""Seconds between tries, unless the endpoint asks for more."""
LONGEST_WAIT = 600.0
"""Seconds that an endpoint may ask to wait; a daily limit is no reason to sit here."""
IN_A_ROW = 5
"""Calls without an answer, one after the other, after which nothing is asked any more."""
OF_THE_PROMPT = (400, 403, 413, 422)
"""Statuses that may be about this prompt alone: too long, or flagged by a moderator."""
WARMER = 0.7
"""The least temperature of a second attempt: at zero a model would say the same again."""
PROBE = "Say yes."
PROBE_TOKENS = 16


class Asker:
    """What is asked in one run.

    Args:
        chat: the connection.
        book: the answers.
        job: the settings.
        on_progress: told a fraction and a sentence.
    """

    def __init__(self, chat: Chat, book: Book, job: SynthesisJob, on_progress: Progress) -> None:
        self.chat, self.book, self.job, self.on_progress = chat, book, job, on_progress
        limits = job.limits
        spent = list(book)
        self.pace = Pace(limits.requests_per_minute, limits.tokens_per_minute)
        self.budget = Budget(limits.max_requests, limits.max_tokens, len(spent), sum(record.tokens for record in spent))
        self.sent = 0
        self.failures: Counter[str] = Counter()
        self.unanswered: dict[str, tuple[Call, str]] = {}
        self.in_a_row = 0
        self.halted = asyncio.Event()
        self.spent: str | None = None
        self.error: JobError | None = None
        self.probed = False

    async def ask(self, stage: StageName, calls: Sequence[Call]) -> None:
        """Ask what is not answered yet, until it is or nothing more may be asked; `error` says why not."""
        attempts = self.job.limits.attempts
        distinct = {call.key: call for call in calls}.values()
        waiting = [call for call in distinct if not self.book.is_settled(call.key, attempts)]
        if waiting and not self.probed:
            await self.probe()
        queue, begun, done = iter(waiting), time.monotonic(), 0

        async def work() -> None:
            nonlocal done
            for call in queue:  # one queue for all who work
                if self.halted.is_set():
                    return
                await self.settle(call)
                done += 1
                self.tell(stage, done, len(waiting), time.monotonic() - begun)

        workers = [asyncio.create_task(work()) for _ in range(min(self.job.limits.concurrency, len(waiting)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def probe(self) -> None:
        """A short request to each model before anything is asked; what trying again does not mend ends the run."""
        self.probed = True
        for model, stage in {self.job.model_of(stage): stage for stage in STAGES}.items():
            parameters = self.job.parameters_of(stage) | {self.job.endpoint.limit_field: PROBE_TOKENS}
            if self.lacks(most := guessed_tokens(PROBE) + PROBE_TOKENS):
                return
            await self.until(self.pace.claim(most))
            self.sent += 1
            self.budget.promise(most)
            try:
                answer = await self.chat.ask(model, PROBE, parameters)
                self.budget.settle(most, answer.prompt_tokens + answer.completion_tokens)
            except ChatError as error:
                self.failures[error.kind] += 1
                if error.again and (error.status or error.kind == TIME_OUT):
                    continue
                self.end(f"the endpoint {self.chat.endpoint.url} does not answer as {model} should: {error}")
                return

    async def settle(self, call: Call) -> None:
        """Ask until there is an answer that can be used, or attempts are used up."""
        attempts = self.job.limits.attempts
        while not self.halted.is_set() and not self.book.is_settled(call.key, attempts):
            attempt = len(self.book.attempts(call.key)) + 1
            parameters = warmer(call.parameters) if attempt > 1 else call.parameters
            begun = time.monotonic()
            answer = await self.answer(call, parameters)
            if answer is None:
                return
            reading = read(answer, call, self.job.stages[call.stage])
            self.book.add(
                Record(
                    key=call.key,
                    stage=call.stage,
                    seed=call.seed,
                    attempt=attempt,
                    items=reading.items,
                    dropped=[[reason, text] for reason, text in reading.dropped],
                    model=call.model,
                    endpoint=self.chat.endpoint.host,
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

    async def answer(self, call: Call, parameters: dict[str, Any]) -> Answer | None:
        """An answer, whatever it says; None if there is none to be had."""
        prompt_tokens = guessed_tokens(call.prompt)
        most = prompt_tokens + int(parameters[self.job.endpoint.limit_field])
        for tried in range(self.job.limits.retries + 1):
            await self.until(self.pace.claim(most))
            if self.halted.is_set() or self.lacks(most):
                return None
            self.sent += 1
            self.budget.promise(most)
            try:
                answer = await self.chat.ask(call.model, call.prompt, parameters)
            except ChatError as error:
                self.budget.settle(most, 0)
                self.failures[error.kind] += 1
                if error.status == UNAUTHORIZED:
                    self.fail(f"the endpoint does not take the key: {error}")
                    return None
                if not error.again or tried == self.job.limits.retries:
                    self.give_up(call, error)
                    return None
                await self.pause(error, tried)
            else:
                used = answer.prompt_tokens + answer.completion_tokens
                self.budget.settle(most, used)
                self.pace.correct(used - most)
                self.in_a_row = 0
                return answer
        return None

    async def pause(self, error: ChatError, tried: int) -> None:
        """Wait before another try: longer each time, never all at once, and as long as the endpoint asks."""
        seconds = min(LONGEST_PAUSE, self.job.limits.backoff * 2**tried) * random.uniform(0.5, 1)
        if error.after is not None:
            if error.after > LONGEST_WAIT:
                self.fail(f"the endpoint asks to wait {error.after / MINUTE:,.0f} minutes ({error})")
                return
            seconds = error.after + random.uniform(0, 0.1) * self.job.limits.backoff
            self.pace.hold(seconds)
        await self.until(self.pace.clock() + seconds)

    async def until(self, start: float) -> None:
        """Wait for a time by the pace's clock, or for the end of the run."""
        while (left := self.pace.left(start)) > 0 and not self.halted.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.halted.wait(), left)

    def lacks(self, tokens: int) -> bool:
        """Whether the budget is spent; the run ends then with what is under way."""
        lacking = self.budget.lacking(tokens)
        if lacking is not None:
            self.spent = self.spent or lacking
            self.halted.set()
        return lacking is not None

    def give_up(self, call: Call, error: ChatError) -> None:
        """A call is left for the next run; with too many in a row the endpoint is to blame."""
        self.unanswered[call.key] = (call, str(error))
        self.in_a_row += error.status not in OF_THE_PROMPT
        if self.in_a_row >= IN_A_ROW:
            self.fail(f"{IN_A_ROW} calls in a row were not answered, the last: {error}")

    def fail(self, reason: str) -> None:
        """Nothing more is asked of an endpoint that answered before."""
        self.end(f"{reason}. What was answered is kept; the same command goes on from there")

    def end(self, reason: str) -> None:
        """Nothing more is asked; what is under way is waited for."""
        self.error = self.error or JobError(reason)
        self.halted.set()

    def tell(self, stage: StageName, done: int, count: int, seconds: float) -> None:
        """How far it is, how fast it goes, and how long this stage still takes."""
        rate = done / max(seconds, 1e-9)
        left = (count - done) / rate
        wait = f"{left / MINUTE:.0f} min" if left >= 2 * MINUTE else f"{left:.0f} s"
        fraction = (STAGES.index(stage) + done / count) / len(STAGES)
        self.on_progress(fraction, f"{stage}: {done:,} of {count:,}, {MINUTE * rate:,.0f} a minute, {wait} left")


def warmer(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of another attempt."""
    if "temperature" not in parameters:
        return parameters
    return parameters | {"temperature": max(WARMER, parameters["temperature"])}
