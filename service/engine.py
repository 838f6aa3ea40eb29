"""One encoder at work: a queue, and a thread that owns the model.

        submit()                     worker thread
  caller ───────► queue ──► merge what is alike ──► encode ──► chain ──► future ──► caller

States: loading ──► ready ──► stopped
            └─────► failed (the model cannot be loaded; every request is answered 503)
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.errors import OverloadedError, ServiceError, UnavailableError
from training.encoders import Encoder, EncoderSpec, Side
from training.errors import TrainingError
from transforms.chain import Chain

MERGED_TEXTS = 256
"""Texts encoded together, of one request or several: enough to sort by length, quick to finish."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodeOptions:
    """How texts are encoded; requests alike in this share batches."""

    prompt_name: str | None = None
    truncate: bool = True
    truncation_side: Side = "right"
    normalize: bool = True


@dataclass(frozen=True)
class Embedded:
    """Vectors `(n, k)`, the tokens each text took `(n,)`, and milliseconds waited and worked."""

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]
    queue_ms: float
    inference_ms: float


@dataclass
class Work:
    """A request in the queue; the chain is folded, None for raw vectors."""

    texts: list[str]
    options: EncodeOptions
    chain: Chain | None
    future: "Future[Embedded]" = field(default_factory=Future)
    submitted: float = field(default_factory=time.perf_counter)


class Engine:
    """Serves one encoder from a thread of its own.

    Attributes:
        spec: the encoder.
        state: see the module.
        encoder: None until loaded.
        problem: why it failed.
    """

    def __init__(self, spec: EncoderSpec, load: Callable[[EncoderSpec], Encoder], max_queued_texts: int) -> None:
        self.spec = spec
        self.load = load
        self.max_queued_texts = max_queued_texts
        self.state: Literal["loading", "ready", "failed", "stopped"] = "loading"
        self.encoder: Encoder | None = None
        self.problem: str | None = None
        self.settled = threading.Event()
        self.queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.queued_texts = 0
        self.counting = threading.Lock()
        self.thread = threading.Thread(target=self.run, name=f"engine-{spec.name}", daemon=True)

    def start(self) -> None:
        """Begin to load the model; returns at once."""
        self.thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        self.queue.put(None)
        self.thread.join(timeout=30)

    def require_ready(self) -> Encoder:
        """The loaded encoder.

        Raises:
            UnavailableError: while it loads, or if it cannot.
        """
        if self.state == "ready" and self.encoder is not None:
            return self.encoder
        reason = self.problem or f"the encoder {self.spec.name} is {self.state}"
        raise UnavailableError(reason, code="not_ready")

    async def embed(self, texts: list[str], options: EncodeOptions, chain: Chain | None) -> Embedded:
        """Queue texts and wait for their vectors.

        Raises:
            UnavailableError: if the encoder is not ready.
            OverloadedError: if too many texts wait already; none of these is taken then.
            TooLongError: for a text too long where `truncate` is off.
        """
        self.require_ready()
        with self.counting:
            if self.queued_texts and self.queued_texts + len(texts) > self.max_queued_texts:
                raise OverloadedError(
                    f"{self.queued_texts} texts wait already and at most {self.max_queued_texts} may; try again soon"
                )
            self.queued_texts += len(texts)
        # A large request takes its turns with the others. One that must not be cut stays whole, so
        # that the error names the text by its place in the request.
        size = MERGED_TEXTS if options.truncate else max(len(texts), 1)
        try:
            parts = [
                await self.submit(texts[start : start + size], options, chain)
                for start in range(0, max(len(texts), 1), size)
            ]
        finally:
            with self.counting:
                self.queued_texts -= len(texts)
        return parts[0] if len(parts) == 1 else joined(parts)

    async def submit(self, texts: list[str], options: EncodeOptions, chain: Chain | None) -> Embedded:
        """Queue some texts and wait for them."""
        work = Work(texts, options, chain)
        self.queue.put(work)
        return await asyncio.wrap_future(work.future)

    def run(self) -> None:
        """Load the model, then serve until told to stop."""
        try:
            self.encoder = self.load(self.spec)
            self.encoder.encode(["warm up"])
            self.state = "ready"
        except Exception as error:
            self.problem = str(error) if isinstance(error, TrainingError) else f"{self.spec.name} failed to load"
            self.state = "failed"
            log.exception("the encoder %s cannot be loaded", self.spec.name)
            return
        finally:
            self.settled.set()
        carried: Work | None = None
        while (first := carried or self.queue.get()) is not None:
            group, carried, stopping = self.gather(first)
            self.answer([work for work in group if work.future.set_running_or_notify_cancel()])
            if stopping:
                break
        self.state = "stopped"

    def gather(self, first: Work) -> tuple[list[Work], Work | None, bool]:
        """What waits and is alike, what came after it and is not, and whether to stop then."""
        group, count = [first], len(first.texts)
        while count < MERGED_TEXTS:
            try:
                work = self.queue.get_nowait()
            except queue.Empty:
                return group, None, False
            if work is None:
                return group, None, True
            if work.options != first.options:
                return group, work, False
            group.append(work)
            count += len(work.texts)
        return group, None, False

    def answer(self, group: list[Work]) -> None:
        """Encode the texts of some requests together; if that fails, each alone, so that none fails for another."""
        begun = time.perf_counter()
        try:
            vectors, tokens = self.encode(group)
        except Exception as error:
            if len(group) == 1:
                group[0].future.set_exception(self.presentable(error))
            else:
                for work in group:
                    self.answer([work])
            return
        start = 0
        for work in group:
            rows = slice(start, start + len(work.texts))
            start = rows.stop
            try:
                mine = vectors[rows] if work.chain is None else work.chain.floats(vectors[rows])
            except Exception as error:
                work.future.set_exception(self.presentable(error))
                continue
            waited, worked = 1000 * (begun - work.submitted), 1000 * (time.perf_counter() - begun)
            work.future.set_result(Embedded(mine, tokens[rows], waited, worked))

    def encode(self, group: list[Work]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The encoder's vectors and token counts for all texts of some requests that are alike."""
        if not group:
            return np.empty((0, 0), np.float32), np.empty(0, np.int64)
        options = group[0].options
        encoding = self.require_ready().encode(
            [text for work in group for text in work.texts],
            prompt_name=options.prompt_name,
            truncate=options.truncate,
            truncation_side=options.truncation_side,
            normalize=options.normalize,
        )
        return encoding.vectors, encoding.tokens

    def presentable(self, error: Exception) -> Exception:
        """The error for the caller; an unforeseen one is logged by its type, as it may quote texts."""
        if isinstance(error, TrainingError | ServiceError):
            return error
        log.error("encoding with %s failed: %s", self.spec.name, type(error).__name__)
        return UnavailableError(f"the encoder {self.spec.name} failed on this request", code="encoder_failed")


def joined(parts: list[Embedded]) -> Embedded:
    """The parts of a request as one."""
    return Embedded(
        vectors=np.concatenate([part.vectors for part in parts]),
        tokens=np.concatenate([part.tokens for part in parts]),
        queue_ms=sum(part.queue_ms for part in parts),
        inference_ms=sum(part.inference_ms for part in parts),
    )
