"""A worker that encodes by calls to an embeddings API, in the place of a worker process.

admission queue ──► Dispatcher (a thread for each call at once) ──► _UpstreamWorker ──► the encoder's `UpstreamEncoder`
"""

import threading
import time
from collections import deque

import numpy as np

from lathe.service.encoders.engine import metrics
from lathe.service.encoders.engine.work import EncodeOptions, EncoderInfo, Part, PartResult, Reply
from lathe.service.errors import UnavailableError
from lathe.training.encoder.spec import EncoderSpec, StoreSettings
from lathe.training.encoder.upstream.client import Usage
from lathe.training.encoder.upstream.encoder import UpstreamEncoder, add_position
from lathe.training.encoder.upstream.space import normalize_rows
from lathe.training.encoder.vector_database import StoredVector
from lathe.training.errors import EncoderError, TrainingError, locate_error
from lathe.training.thread_problem import ThreadProblem

PATIENCE_SECONDS = 10.0
"""Seconds in which a failing call is tried again while its requests wait; after that they are answered with the
error."""

DEVICE = "upstream"
"""Name of the device in descriptions of an encoder behind an API."""


class UpstreamConnection:
    """The `UpstreamEncoder` that all workers of an encoder share, open while one of them uses it.

    Attributes:
        unexpected: exception of the latest request that nothing expects.
    """

    def __init__(self, spec: EncoderSpec, store: StoreSettings | None) -> None:
        self.spec, self.store = spec, store
        self.guard = threading.Lock()
        self.workers: set[_UpstreamWorker] = set()
        self.encoder: UpstreamEncoder | None = None
        self.unexpected = ThreadProblem(f"the latest request to the encoder {spec.name}")

    def start_worker(self, _spec: EncoderSpec) -> "_UpstreamWorker":
        """Return a new worker that encodes by calls to the API over this connection. The spec is ignored."""
        worker = _UpstreamWorker(self)
        with self.guard:
            self.workers.add(worker)
        return worker

    def open(self) -> UpstreamEncoder:
        """Return the encoder that calls the API. Open it first if it is closed.

        Raises:
            TrainingError: if there is no key for the API, or stored vectors cannot be read.
        """
        with self.guard:
            if self.encoder is None:
                self.encoder = UpstreamEncoder(self.spec, self.store, PATIENCE_SECONDS, self._count)
            return self.encoder

    def release(self, worker: "_UpstreamWorker") -> None:
        """Note that a worker has ended. After the last one, close the encoder, which cancels its calls."""
        with self.guard:
            self.workers.discard(worker)
            if self.workers:
                return
            encoder, self.encoder = self.encoder, None
        if encoder is not None:
            encoder.close()

    def find_warning(self) -> str | None:
        """Return a message on what is wrong with the API or the stored vectors, or None if nothing is."""
        if self.unexpected.message is not None:
            return self.unexpected.message
        encoder = self.encoder
        return None if encoder is None else encoder.problem

    def _count(self, usage: Usage, amount: float) -> None:
        metrics.UPSTREAM[usage].labels(self.spec.name).inc(amount)


class _UpstreamWorker:
    """Worker that encodes texts by calls to an embeddings API, one batch at a time.

    It has the methods of `EncoderWorker`.
    """

    def __init__(self, connection: UpstreamConnection) -> None:
        self.connection = connection
        self.encoder: UpstreamEncoder | None = None
        self.sent: deque[list[Part]] = deque()

    def wait_ready(self) -> EncoderInfo:
        """Identify the API's model by its vectors of test texts, unless that was done recently.

        Returns the encoder's description.

        Raises:
            TrainingError: if the model cannot be identified.
        """
        try:
            encoder = self.encoder = self.connection.open()
            encoder.identify()
        except TrainingError:
            raise
        except Exception as error:
            self.connection.unexpected.record(error)
            name = self.connection.spec.name
            raise EncoderError(f"the encoder {name} cannot be opened: unexpected {locate_error(error)}") from None
        return EncoderInfo(
            spec=encoder.spec,
            fingerprint=encoder.fingerprint,
            dimensions=encoder.dimensions,
            max_length=encoder.max_length,
            prompts=encoder.prompts,
            default_prompt_name=encoder.default_prompt_name,
            device=DEVICE,
            batch_tokens=encoder.upstream.batch_size * encoder.max_length,
            agreement=None,
        )

    def send(self, parts: list[Part]) -> None:
        """Hold texts until `receive` requests their vectors."""
        self.sent.append(parts)

    def receive(self, seconds: float) -> Reply:
        """Encode the earliest message that was sent, by calls to the API, and return vectors or an error for each part.

        The API's own time limits apply instead of `seconds`. Parts with equal options share a call. An error belongs to
        the parts whose texts it concerns.
        """
        parts, begun = self.sent.popleft(), time.perf_counter()
        results: dict[int, PartResult | Exception] = {}
        # Each call has a price and a latency of its own, so parts share one where their options allow.
        groups: dict[EncodeOptions, list[int]] = {}
        for position, part in enumerate(parts):
            groups.setdefault(part.work.options, []).append(position)
        for options, positions in groups.items():
            group = [parts[position] for position in positions]
            results |= dict(zip(positions, self._encode_group(group, options), strict=True))
        ordered = [results[position] for position in range(len(parts))]

        succeeded = [result for result in ordered if isinstance(result, PartResult)]
        texts = sum(len(result.tokens) for result in succeeded)
        tokens = sum(int(result.tokens.sum()) for result in succeeded)
        return Reply(ordered, [(texts, tokens, tokens)] if texts else [], time.perf_counter() - begun)

    def _encode_group(self, parts: list[Part], options: EncodeOptions) -> list[PartResult | Exception]:
        """Encode parts with equal options together. Return the vectors or the error of each part, in order."""
        assert self.encoder is not None
        texts = [part.work.texts[row] for part in parts for row in part.rows]
        try:
            prompt = self.encoder.prompt(options.prompt_name)
            long_text = options.long_text or self.encoder.spec.long_text
            encoded = self.encoder.encode_each(
                texts, self.encoder.build_options(prompt, long_text, options.truncation_side)
            )
        except TrainingError as error:
            return [error] * len(parts)
        except Exception as error:  # whatever it is, it fails these requests and leaves the connection open
            self.connection.unexpected.record(error)
            message = f"the encoder {self.connection.spec.name} failed on this request ({locate_error(error)})"
            return [UnavailableError(message, code="encoder_failed")] * len(parts)

        # A request that succeeds clears the warning of an earlier one.
        self.connection.unexpected.message = None
        results, start = [], 0
        for part in parts:
            results.append(_build_result(part, encoded[start : start + len(part.rows)], options.normalize))
            start += len(part.rows)
        return results

    def alive(self) -> bool:
        """Return whether this worker uses the connection's open encoder."""
        return self.encoder is not None and self.encoder is self.connection.encoder

    def stop(self) -> None:
        """Release the connection. The last worker closes it, which ends the calls of all workers."""
        self.connection.release(self)


def _build_result(part: Part, encoded: list[StoredVector | Exception], normalize: bool) -> PartResult | Exception:
    """Return the vectors of a part's texts as one array with their token counts, or the first error among them.

    The error names the position of its text in the request.
    """
    rows = []
    for position, text_result in zip(part.positions, encoded, strict=True):
        if isinstance(text_result, Exception):
            return add_position(text_result, position)
        rows.append(text_result)
    vectors = np.stack([row.vector for row in rows])
    tokens = np.array([row.tokens for row in rows], np.int64)
    return PartResult(normalize_rows(vectors) if normalize else vectors, None, tokens, np.zeros_like(tokens))
