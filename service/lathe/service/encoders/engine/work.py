"""The encoding of a request's texts, split into parts that several workers can take, and what a worker has loaded."""

from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.chains.folded_forms import ChainRef
from lathe.training.encoder.batching import estimate_tokens, sort_longest_first
from lathe.training.encoder.cutting import DENSE_CHARACTERS
from lathe.training.encoder.devices import Agreement
from lathe.training.encoder.spec import EncoderSpec, LongText, SearchSide, Side
from lathe.training.encoder.text_encoder import PromptedEncoder, find_side_prompt
from lathe.training.errors import EncoderError

SEARCHED_CHARACTERS_PER_TOKEN = 256
"""Characters of a very long text that cost as much as a token: a worker may search all of them for what its model
reads, and they are held until then. Requests in the queue thus hold at most 256 characters for each token allowed in
it."""


@dataclass(frozen=True)
class EncodeOptions:
    """Options of how texts are encoded.

    Texts with equal options share batches.

    Attributes:
        long_text: what becomes of texts that are too long; None takes the encoder's.
    """

    prompt_name: str | None = None
    long_text: LongText | None = None
    truncation_side: Side = "right"
    normalize: bool = True


@dataclass(frozen=True)
class PartResult:
    """A worker's vectors of the texts of a part.

    Attributes:
        vectors: `(n, k)`, transformed by the chain if there is one.
        raw: `(n, d)` before the chain, if requested and there is a chain; otherwise None.
        tokens: `(n,)`, number of tokens of each text.
        cut: `(n,)`, number of tokens of each text that were not read.
    """

    vectors: NDArray[np.float32]
    raw: NDArray[np.float32] | None
    tokens: NDArray[np.int64]
    cut: NDArray[np.int64]


@dataclass(frozen=True)
class EncodedTexts(PartResult):
    """Vectors of a request's texts.

    Attributes:
        queue_ms: milliseconds until a worker took the first of the texts.
        inference_ms: milliseconds from then on.
    """

    queue_ms: float
    inference_ms: float


@dataclass(frozen=True)
class Reply:
    """A worker's reply to a list of parts.

    Attributes:
        results: result or error of each part.
        batches: rows, tokens, and tokens with padding of each forward pass.
        seconds: time the worker was busy.
    """

    results: list[PartResult | Exception]
    batches: list[tuple[int, int, int]]
    seconds: float


@dataclass(eq=False)
class Work:
    """The encoding of one request's texts, which workers take in parts, longest texts first.

    Attributes:
        chain: chain to apply; None for raw vectors.
        keep_raw: whether to return also the vectors before the chain.
        max_length: maximum tokens that the encoder reads of a text, for the estimate.
        positions: positions of the texts in the request, for messages; None if they are all of its texts.
        future: receives the vectors or an error.
        submitted: time of creation, in seconds of `perf_counter`.
        tokens_estimated: estimated cost of the texts in tokens: those the encoder reads, and the search for them.
    """

    texts: list[str]
    options: EncodeOptions
    chain: ChainRef | None
    keep_raw: bool
    max_length: int
    positions: list[int] | None = None
    future: "Future[EncodedTexts]" = field(default_factory=Future)
    submitted: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        """Estimate the cost of each text in tokens, and sort the texts by cost, longest first."""
        self.estimates = [_estimate_cost(text, self.max_length) for text in self.texts]
        self.tokens_estimated = sum(self.estimates)
        # Texts of like length are neighbours, so that a part needs little padding.
        self.order = sort_longest_first(self.estimates)
        self.taken = 0
        self.tokens_waiting = self.tokens_estimated
        self.begun: float | None = None
        self.results: list[tuple[list[int], PartResult]] = []
        self.missing = len(self.texts)
        self.answering = Lock()

    @property
    def waiting(self) -> bool:
        """Whether texts are left to take, and the request is neither answered nor cancelled."""
        return self.taken < len(self.texts) and not self.future.done()

    def take(self, tokens: int, max_texts: int | None = None) -> "Part":
        """Take the next texts, the longest first, and return them as a part of about `tokens` estimated tokens.

        A part has at least one text and at most `max_texts`.
        """
        now = perf_counter()
        self.begun = self.begun or now
        first, total = self.taken, 0
        end = len(self.order) if max_texts is None else min(first + max_texts, len(self.order))
        # At least one text, however many tokens it has, or it would never be taken.
        while self.taken < end and (self.taken == first or total < tokens):
            total += self.estimates[self.order[self.taken]]
            self.taken += 1
        self.tokens_waiting -= total
        return Part(self, self.order[first : self.taken], total, now - self.submitted)

    def receive(self, rows: list[int], result: PartResult) -> None:
        """Store the vectors of the texts at positions `rows`, and set the future's result once all are there."""
        with self.answering:
            self.results.append((rows, result))
            self.missing -= len(rows)
            if self.missing > 0:
                return
            answer = self._join_results()  # before the future is taken: if this fails, `fail` can still answer
            if self._claim_future():
                self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Set an error on the request's future, unless that has a result or was cancelled."""
        with self.answering:
            if self._claim_future():
                self.future.set_exception(error)

    def _claim_future(self) -> bool:
        """Return whether the future can still get a result. If so, it can no longer be cancelled."""
        return not self.future.done() and self.future.set_running_or_notify_cancel()

    def _join_results(self) -> EncodedTexts:
        now = perf_counter()
        begun = self.begun or now
        rows, result = self.results[0]
        if len(self.results) > 1:
            rows = [row for part_rows, _ in self.results for row in part_rows]
            parts = [part for _, part in self.results]
            raws = [part.raw for part in parts if part.raw is not None]
            result = PartResult(
                np.concatenate([part.vectors for part in parts]),
                np.concatenate(raws) if raws else None,
                np.concatenate([part.tokens for part in parts]),
                np.concatenate([part.cut for part in parts]),
            )

        order = np.argsort(rows) if len(rows) > 1 else slice(None)  # parts were taken longest text first
        return EncodedTexts(
            result.vectors[order],
            None if result.raw is None else result.raw[order],
            result.tokens[order],
            result.cut[order],
            1000 * (begun - self.submitted),
            1000 * (now - begun),
        )


def _estimate_cost(text: str, max_length: int) -> int:
    """Return an estimate of the work of encoding a text in tokens, of which at most `max_length` are read.

    A very long text also costs the search for the part that is read.
    """
    searched = max(0, len(text) - DENSE_CHARACTERS * (max_length + 1))
    return estimate_tokens(text, max_length) + searched // SEARCHED_CHARACTERS_PER_TOKEN


@dataclass(frozen=True)
class Part:
    """Some texts of a request, for one worker.

    Attributes:
        rows: positions of the part's texts among all texts of the work.
        tokens: estimated tokens of the texts.
        waited: seconds since the request was submitted.
    """

    work: Work
    rows: list[int]
    tokens: int
    waited: float

    @property
    def positions(self) -> list[int]:
        """Positions of the texts in the request, of which the cache may have answered others."""
        positions = self.work.positions
        return self.rows if positions is None else [positions[row] for row in self.rows]


@dataclass(frozen=True)
class EncoderInfo(PromptedEncoder):
    """Description of the encoder that a worker has loaded, or of the embeddings API that it calls.

    Attributes:
        window_tokens: tokens of the texts that are sent to the worker together; 0 for `WINDOW_BATCHES` batches.
        routed: whether queries and documents are encoded by different modules, which a prompt's name chooses.
    """

    spec: EncoderSpec
    fingerprint: str
    dimensions: int
    max_length: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    device: str
    batch_tokens: int
    agreement: Agreement | None
    warning: str | None = None
    model_bytes: int = 0
    window_tokens: int = 0
    routed: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the fields as one dict for JSON, with the fields of the encoder's spec at its top level.

        `agreement` is called `cosine_to_float32`: mean and minimum cosine to float32 vectors, None if not measured. Of
        an `upstream`, only what users may know is returned. See `UpstreamSpec.describe`.
        """
        fields = asdict(self)
        spec, agreement, _ = fields.pop("spec"), fields.pop("agreement"), fields.pop("window_tokens")
        if self.spec.upstream is not None:
            spec["upstream"] = self.spec.upstream.describe()
        described: dict[str, Any] = spec | fields | {"cosine_to_float32": agreement}
        return described

    def find_side_prompt(self, side: SearchSide) -> str | None:
        """Return the name of the prompt for queries or for documents, or None if the encoder's default prompt is used.

        The rules are those of the function of this name.
        """
        return find_side_prompt(self.prompts, side, self.default_prompt_name)

    def choose_prompt(self, prompt_name: str | None, side: SearchSide | None) -> str | None:
        """Return the name of the prompt for the texts of a request, or None for the encoder's default.

        sentence-transformers gives every model empty prompts `query` and `document`. A request that names one of these
        means queries or documents, whose prompt may have another name, such as `passage`.

        Args:
            prompt_name: prompt that the request names, or None.
            side: `query` or `document`, as the request calls its texts, or None.
        """
        if prompt_name is not None and side is not None and self.find_side(prompt_name) not in (side, None):
            raise EncoderError(
                f"{self.name} encodes texts with the prompt {prompt_name!r} by the modules of the side "
                f"{self.find_side(prompt_name)}, and not {side}: leave one of the two out"
            )
        if prompt_name in ("query", "document") and self.prompts.get(prompt_name) == "":
            if prompt_name in (self.spec.prompts or {}):
                return prompt_name
            return self.find_side_prompt("query" if prompt_name == "query" else "document")
        return prompt_name if prompt_name is not None or side is None else self.find_side_prompt(side)
