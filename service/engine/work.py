"""What an encoder is asked to do, cut into parts that several workers can take."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from service.engine.chain_ref import ChainRef
from training.encoder.batching import estimated_tokens, longest_first
from training.encoder.cutting import DENSE_CHARACTERS
from training.encoder.spec import Side

SEARCHED_CHARACTERS_PER_TOKEN = 256
"""Characters of a very long text that cost as much as a token: a worker may search all for what its model reads, and
they are held until it does. Requests that wait thus hold at most 256 characters for each token that may."""


@dataclass(frozen=True)
class EncodeOptions:
    """How texts are encoded; texts alike in this share batches."""

    prompt_name: str | None = None
    truncate: bool = True
    truncation_side: Side = "right"
    normalize: bool = True


@dataclass(frozen=True)
class Embedded:
    """What a worker gave for a request.

    Attributes:
        vectors: `(n, k)`, through the chain if there was one.
        raw: `(n, d)` the encoder's own, where they were asked for; those of `vectors` if there was no chain.
        tokens: `(n,)` that each text took.
        queue_ms: until the first of its texts was taken by a worker.
        inference_ms: from then on.
    """

    vectors: NDArray[np.float32]
    raw: NDArray[np.float32] | None
    tokens: NDArray[np.int64]
    queue_ms: float
    inference_ms: float


@dataclass(frozen=True)
class Result:
    """A worker's answer to a part; as `Embedded`."""

    vectors: NDArray[np.float32]
    raw: NDArray[np.float32] | None
    tokens: NDArray[np.int64]


@dataclass(eq=False)
class Work:
    """A request's texts, the longest first, with what has come back of them.

    Attributes:
        chain: None for raw vectors.
        keep_raw: also give the vectors before the chain.
        max_length: tokens the encoder reads, for the estimate.
        tokens_estimated: what the texts cost, in tokens: those the encoder reads, and the search for them.
    """

    texts: list[str]
    options: EncodeOptions
    chain: ChainRef | None
    keep_raw: bool
    max_length: int
    future: "Future[Embedded]" = field(default_factory=Future)
    submitted: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        self.estimates = [estimated_cost(text, self.max_length) for text in self.texts]
        self.tokens_estimated = sum(self.estimates)
        self.order = longest_first(self.estimates)
        self.taken = 0
        self.tokens_waiting = self.tokens_estimated
        self.begun: float | None = None
        self.results: list[tuple[list[int], Result]] = []
        self.missing = len(self.texts)
        self.answering = Lock()

    @property
    def waiting(self) -> bool:
        """Whether texts are left to take, and somebody who wants them."""
        return self.taken < len(self.texts) and not self.future.done()

    def take(self, tokens: int) -> "Part":
        """The next texts, at least one, of about so many tokens."""
        now = perf_counter()
        self.begun = self.begun or now
        first, total = self.taken, 0
        while self.taken < len(self.order) and (self.taken == first or total < tokens):
            total += self.estimates[self.order[self.taken]]
            self.taken += 1
        self.tokens_waiting -= total
        return Part(self, self.order[first : self.taken], total, now - self.submitted)

    def receive(self, rows: list[int], result: Result) -> None:
        """Take in a part's vectors; the last one answers the request."""
        with self.answering:
            self.results.append((rows, result))
            self.missing -= len(rows)
            if self.missing > 0:
                return
            answer = self.joined()  # before the future is taken: if this fails, `fail` can still answer
            if self.wanted():
                self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless it was answered or given up."""
        with self.answering:
            if self.wanted():
                self.future.set_exception(error)

    def wanted(self) -> bool:
        """Whether the answer is still to be given; from then on it cannot be given up."""
        return not self.future.done() and self.future.set_running_or_notify_cancel()

    def joined(self) -> Embedded:
        """All parts in the order of the texts."""
        now = perf_counter()
        begun = self.begun or now
        rows, result = self.results[0]
        if len(self.results) > 1:
            rows = [row for some, _ in self.results for row in some]
            parts = [part for _, part in self.results]
            raws = [part.raw for part in parts if part.raw is not None]
            result = Result(
                np.concatenate([part.vectors for part in parts]),
                np.concatenate(raws) if raws else None,
                np.concatenate([part.tokens for part in parts]),
            )
        back = np.argsort(rows)
        return Embedded(
            result.vectors[back],
            None if result.raw is None else result.raw[back],
            result.tokens[back],
            1000 * (begun - self.submitted),
            1000 * (now - begun),
        )


def estimated_cost(text: str, max_length: int) -> int:
    """About what a text costs a worker, in tokens; more for one so long that what is read of it must be searched."""
    searched = max(0, len(text) - DENSE_CHARACTERS * (max_length + 1))
    return estimated_tokens(text, max_length) + searched // SEARCHED_CHARACTERS_PER_TOKEN


@dataclass(frozen=True)
class Part:
    """Some texts of a request, by their places in it, of about so many tokens, and the seconds they waited."""

    work: Work
    rows: list[int]
    tokens: int
    waited: float
