"""The admission queue of an encoder."""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lathe.service.chains.folded_forms import ChainRef
from lathe.service.encoders.engine.work import EncodeOptions, Part, Work
from lathe.service.errors import BadValueError, OverloadedError, ServiceError, TooLargeError

MAX_RETRY_SECONDS = 60
"""Maximum seconds that an error asks callers to wait before a retry."""


@dataclass(frozen=True)
class BatchWait:
    """How many tokens a worker waits for before it takes a batch, and for how long at most.

    Callers who wait for their response before they send the next request return one by one. A worker that took the
    first of them at once would be busy with one text while the others arrive; a forward pass costs as much as four
    texts.
    """

    tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def after_batch(cls, parts: list[Part], seconds: float) -> "BatchWait":
        """Return what to wait for after a batch: half its tokens, for at most a quarter of its time.

        After a batch of one part, there is nothing to wait for.
        """
        return cls(sum(part.tokens for part in parts) // 2, seconds / 4) if len(parts) > 1 else cls()


NO_WAIT = BatchWait()


class AdmissionQueue:
    """Queue of accepted requests, which workers take in parts.

    A large request goes to the back each time a worker takes a part of it, so that small ones need not wait for it. All
    methods may be called from any thread.

    Attributes:
        texts: number of texts accepted and not yet answered.
        tokens: estimated tokens of these texts.
        rate: recent throughput in estimated tokens per second; 0 before the first batch.
        on_admit: called after a request was queued, outside of locks.
        build_refusal: builds the error that refuses requests while the queue is closed; None while it is open.
    """

    def __init__(self, max_texts: int, max_tokens: int) -> None:
        self.max_texts = max_texts
        self.max_tokens = max_tokens
        self.texts = 0
        self.tokens = 0
        self.works: deque[Work] = deque()
        self.idle = 0
        self.on_admit: Callable[[], None] = lambda: None
        self.build_refusal: Callable[[], ServiceError] | None = None
        self.changed = threading.Condition()
        self.rate = 0.0

    def admit(
        self,
        texts: list[str],
        options: EncodeOptions,
        max_length: int,
        chain: ChainRef | None = None,
        keep_raw: bool = False,
        positions: list[int] | None = None,
    ) -> Work:
        """Queue a request's texts for encoding. Return the work, whose `future` gets the vectors.

        Args:
            texts: texts of a request.
            options: how to encode them.
            max_length: maximum tokens that the encoder reads of a text.
            chain: chain to apply to the vectors; None for none.
            keep_raw: whether to return also the vectors before the chain.
            positions: positions of the texts in the request, for messages; None if they are all of its texts.

        Raises:
            BadValueError: if there are no texts.
            TooLargeError: if a request of several texts has more tokens than the queue may hold.
            OverloadedError: if the queue has no space for all of the texts; none is queued then.
            ServiceError: the refusal, if the queue is closed.
        """
        if not texts:
            raise BadValueError("the request has no texts to encode")
        work = Work(texts, options, chain, keep_raw, max_length, positions)
        if work.tokens_estimated > self.max_tokens and len(texts) > 1:
            raise TooLargeError(
                f"about {work.tokens_estimated} tokens in one request; at most {self.max_tokens} are taken"
            )
        self.put(work)
        return work

    def put(self, work: Work) -> None:
        """Queue all texts of a request, or raise `OverloadedError` if the queue has no space for them.

        Its texts and tokens count against the limits until its future is done or cancelled. A request larger than the
        limits is accepted if nothing else is in progress.

        Raises:
            OverloadedError: if the limits would be exceeded; it has the seconds after which to retry.
            ServiceError: the refusal, if the queue is closed.
        """
        with self.changed:
            if self.build_refusal is not None:
                raise self.build_refusal()

            texts, tokens = self.texts + len(work.texts), self.tokens + work.tokens_estimated
            # A request larger than the limits would never fit, so it is accepted when nothing else is in progress.
            if self.texts and (texts > self.max_texts or tokens > self.max_tokens):
                raise OverloadedError(
                    f"{self.texts} texts of about {self.tokens} tokens are queued already; at most {self.max_texts} "
                    f"and {self.max_tokens} are accepted; try again in {self.estimate_retry_seconds()} s",
                    retry_after=self.estimate_retry_seconds(),
                )
            self.texts, self.tokens = texts, tokens
            self.works.append(work)
            self.changed.notify()
        work.future.add_done_callback(lambda _future: self._release(work))
        self.on_admit()

    def _release(self, work: Work) -> None:
        """Subtract a finished or cancelled request from the accepted texts and tokens, and remove it from the queue."""
        with self.changed:
            self.texts -= len(work.texts)
            self.tokens -= work.tokens_estimated
            if work.tokens_waiting > 0 and work in self.works:  # cancelled before a worker took all of its texts
                self.works.remove(work)

    @property
    def full(self) -> bool:
        """Whether no further text would be accepted."""
        return self.texts >= self.max_texts or self.tokens >= self.max_tokens

    def estimate_retry_seconds(self) -> int:
        """Return an estimate of the seconds until half of the accepted tokens are done, from 1 to 60."""
        seconds = self.tokens / 2 / self.rate if self.rate else 1.0
        return min(max(1, math.ceil(seconds)), MAX_RETRY_SECONDS)

    def record_batch(self, tokens: int, seconds: float, workers: int) -> None:
        """Update `rate` (tokens per second of all workers) with one worker's batch, as a moving average."""
        pace = workers * tokens / max(seconds, 1e-6)
        with self.changed:
            # The latest batch counts a tenth, so that a single batch of few texts changes little.
            self.rate = pace if not self.rate else 0.9 * self.rate + 0.1 * pace

    def take(self, tokens: int, seconds: float, wait: BatchWait = NO_WAIT, max_texts: int | None = None) -> list[Part]:
        """Take parts of queued requests for a worker, of about `tokens` tokens in all, and return them.

        If other workers idle, only a share is taken. With `max_texts`, up to so many texts are taken whether others
        idle or not, because each batch is a call with a price of its own. Blocks up to `seconds` for the first text,
        and returns an empty list if none comes. Then, while fewer than `wait.tokens` tokens are queued, blocks up to
        `wait.seconds` for more.
        """
        with self.changed:
            self.idle += 1
            try:
                if not self.works and seconds > 0 and self.build_refusal is None:
                    self.changed.wait(seconds)
                if self.works and wait.seconds > 0:
                    self.changed.wait_for(
                        lambda: self.build_refusal is not None or self._count_waiting_tokens() >= wait.tokens,
                        wait.seconds,
                    )
            finally:
                self.idle -= 1

            # Workers that idle beside this one get an equal share of what waits.
            share = self._count_waiting_tokens() / (1 + (self.idle if max_texts is None else 0))
            tokens_left, texts_left = min(tokens, math.ceil(share)), max_texts
            parts: list[Part] = []
            unfinished: list[Work] = []
            while self.works and tokens_left > 0 and texts_left != 0:
                work = self.works.popleft()
                if not work.waiting:  # answered with an error, or cancelled
                    continue
                part = work.take(tokens_left, texts_left)
                parts.append(part)
                tokens_left -= part.tokens
                texts_left = None if texts_left is None else texts_left - len(part.rows)
                if work.waiting:
                    unfinished.append(work)

            # Large requests go to the back, so that small ones need not wait for them.
            self.works.extend(unfinished)
            if self.works:
                self.changed.notify()  # the next idle worker takes its share
            return parts

    def _count_waiting_tokens(self) -> int:
        return sum(work.tokens_waiting for work in self.works)

    def fail_all(self, error: Exception) -> None:
        """Remove all queued requests, and answer each with this error."""
        with self.changed:
            works, self.works = list(self.works), deque()
        for work in works:
            work.fail(error)

    def open(self) -> None:
        """Accept requests again after `close`.

        A new queue is open.
        """
        with self.changed:
            self.build_refusal = None

    def close(self, build_refusal: Callable[[], ServiceError]) -> None:
        """Close the queue: answer all queued requests with an error, and refuse new ones until `open` is called.

        It wakes all workers that wait for texts, and lets none wait while the queue is closed.

        Args:
            build_refusal: builds the error; each later request gets one of its own, as a raised one holds its caller's
                variables.
        """
        with self.changed:
            self.build_refusal = build_refusal
            self.changed.notify_all()
        self.fail_all(build_refusal())
