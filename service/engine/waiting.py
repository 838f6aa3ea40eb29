"""What waits for an encoder, and how much of it is let in."""

import math
import threading
from collections import deque
from dataclasses import dataclass

from service.engine.work import Part, Work
from service.errors import OverloadedError

RETRY_SECONDS_MOST = 60


@dataclass(frozen=True)
class Hope:
    """What a worker expects to come within some seconds, from what it just did.

    Callers who wait for their answer before they ask again come back one by one. A worker that took the first of
    them at once would be busy with one text while the others arrive; a pass costs as much as four texts.
    """

    tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def after(cls, parts: list[Part], seconds: float) -> "Hope":
        """Half of what came together last time, within a quarter of the time that took."""
        return cls(sum(part.tokens for part in parts) // 2, seconds / 4) if len(parts) > 1 else cls()


NO_HOPE = Hope()


class WaitingRoom:
    """Requests in the order they came, in turns: a large one goes to the back each time some of it was taken.

    Attributes:
        texts: accepted and not yet answered.
        tokens: the same, estimated.
        rate: tokens a second of late, estimated as well; 0 before anything was done.
    """

    def __init__(self, max_texts: int, max_tokens: int) -> None:
        self.max_texts = max_texts
        self.max_tokens = max_tokens
        self.texts = 0
        self.tokens = 0
        self.works: deque[Work] = deque()
        self.idle = 0
        self.closed = False
        self.changed = threading.Condition()
        self.rate = 0.0

    def put(self, work: Work) -> None:
        """Let a request in, whole or not at all; one larger than the limits when nothing else is there.

        Raises:
            OverloadedError: if that would be more than may wait, with the seconds after which it may not.
        """
        with self.changed:
            texts, tokens = self.texts + len(work.texts), self.tokens + work.tokens_estimated
            if self.texts and (texts > self.max_texts or tokens > self.max_tokens):
                raise OverloadedError(
                    f"{self.texts} texts of about {self.tokens} tokens wait already, and at most {self.max_texts} "
                    f"and {self.max_tokens} may; try again in {self.retry_after()} s",
                    retry_after=self.retry_after(),
                )
            self.texts, self.tokens = texts, tokens
            self.works.append(work)
            self.changed.notify()
        work.future.add_done_callback(lambda _future: self.leave(work))

    def leave(self, work: Work) -> None:
        """A request was answered or given up."""
        with self.changed:
            self.texts -= len(work.texts)
            self.tokens -= work.tokens_estimated
            if work.tokens_waiting > 0 and work in self.works:  # given up: its texts need not be kept
                self.works.remove(work)

    @property
    def full(self) -> bool:
        """Whether not one more text would be let in."""
        return self.texts >= self.max_texts or self.tokens >= self.max_tokens

    def retry_after(self) -> int:
        """Whole seconds after which half of what waits will be done, at the pace of late."""
        seconds = self.tokens / 2 / self.rate if self.rate else 1.0
        return min(max(1, math.ceil(seconds)), RETRY_SECONDS_MOST)

    def measured(self, tokens: int, seconds: float, workers: int) -> None:
        """A worker did so many tokens in so many seconds: what the pace is judged by."""
        pace = workers * tokens / max(seconds, 1e-6)
        with self.changed:
            self.rate = pace if not self.rate else 0.9 * self.rate + 0.1 * pace

    def take(self, tokens: int, seconds: float, hope: Hope = NO_HOPE) -> list[Part]:
        """What a worker does next, of about so many tokens; less if others idle, to share it with them.

        Waits up to `seconds`, and gives nothing then. What is there but less than hoped for is given a
        little time to become more.
        """
        with self.changed:
            self.idle += 1
            try:
                if not self.works and seconds > 0 and not self.closed:
                    self.changed.wait(seconds)
                if self.works and hope.seconds > 0:
                    self.changed.wait_for(lambda: self.closed or self.waiting_tokens() >= hope.tokens, hope.seconds)
            finally:
                self.idle -= 1
            share = self.waiting_tokens() / (1 + self.idle)
            left = min(tokens, math.ceil(share))
            parts: list[Part] = []
            again: list[Work] = []
            while self.works and left > 0:
                work = self.works.popleft()
                if not work.waiting:  # answered with an error, or its caller hung up
                    continue
                part = work.take(left)
                parts.append(part)
                left -= part.tokens
                if work.waiting:
                    again.append(work)
            self.works.extend(again)
            if self.works:
                self.changed.notify()  # the next idle worker takes its share
            return parts

    def waiting_tokens(self) -> int:
        """Tokens no worker has taken yet, estimated."""
        return sum(work.tokens_waiting for work in self.works)

    def fail_all(self, error: Exception) -> None:
        """Answer whatever waits with an error."""
        with self.changed:
            works, self.works = list(self.works), deque()
        for work in works:
            work.fail(error)

    def close(self) -> None:
        """Nobody will come any more."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
