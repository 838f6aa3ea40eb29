"""An encoder behind an embeddings API."""

import asyncio
import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.batching import estimate_tokens
from lathe.training.encoder.spec import EncoderSpec, LongText, Side, StoreSettings
from lathe.training.encoder.text_encoder import Encoding, TextEncoder
from lathe.training.encoder.upstream.client import MAX_CALL_BYTES, NUMBER_BYTES, OnUsage, UpstreamClient, Usage
from lathe.training.encoder.upstream.protocols import PROTOCOLS, ApiAnswer, CallOptions
from lathe.training.encoder.upstream.space import UpstreamSpace, normalize_rows
from lathe.training.encoder.upstream.store import UpstreamStore
from lathe.training.encoder.vector_database import StoredVector
from lathe.training.endpoint import read_key
from lathe.training.endpoint_client import CallError
from lathe.training.errors import (
    EncoderError,
    NotFiniteError,
    TextError,
    UpstreamError,
    UpstreamUnavailableError,
    locate_error,
)
from lathe.training.thread_problem import ThreadProblem
from lathe.transforms.vectors import find_valid_rows

T = TypeVar("T")

DEFAULT_MAX_LENGTH = 8192
"""Number of tokens that an API is assumed to read of a text if the settings name no number. Longer texts are cut by
words."""

PATIENCE_SECONDS = 600.0
"""Seconds during which a job tries a failing call again."""

log = logging.getLogger(__name__)


class UpstreamEncoder(TextEncoder):
    """Encoder behind an embeddings API, with the interface of `lathe.training.encoder.encoder.Encoder`.

    Thread-safe: all calls are made in the event loop of one thread, and a text that is being encoded is not sent again.

    Attributes:
        spec: spec of the encoder.
        dimensions: dimensions of the vectors.
        max_length: tokens that the API is assumed to read of a text.
        prompts: prompts by name.
        default_prompt_name: name of the prompt for texts that name none; None for none.
        fingerprint: hash of provider, model, revision, what the API reports of the model, dimensions, length and
            prompts.
        usage: calls, texts, tokens and cost of this process by counter; see `Usage`.
        store: stored vectors; None if vectors are not stored.
        unexpected: latest exception of a call that is not an expected error.
        read_problem: why stored vectors cannot be read; None if they can.
        write_problem: why the latest vectors were not stored; None if they were.
        space: the embedding space of the vectors.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        store: StoreSettings | None,
        patience: float = PATIENCE_SECONDS,
        on_usage: OnUsage = lambda _usage, _amount: None,
    ) -> None:
        """Prepare the encoder, and start the thread that calls the API. Call `identify` before texts are encoded.

        Args:
            spec: spec with an `upstream`.
            store: where vectors are stored; None, or 0 bytes, stores none.
            patience: seconds during which a failing call is tried again.
            on_usage: called with a counter and the amount to add to it, from another thread.

        Raises:
            UpstreamError: if the database of stored vectors cannot be opened.
            EncoderError: if the environment variable of the key is not set, or there is no prompt of the default's
                name.
        """
        assert spec.upstream is not None
        self.spec, self.upstream = spec, spec.upstream
        self.protocol = PROTOCOLS[self.upstream.protocol]
        self.max_length = spec.max_length or DEFAULT_MAX_LENGTH
        self.prompts = {**self.protocol.prompts, **spec.prompts}
        self.default_prompt_name = spec.default_prompt_name or self.protocol.default_prompt
        self.prompt(None)
        key = self._read_key()
        self.usage: Counter[Usage] = Counter()
        self.store = UpstreamStore(store) if store is not None and store.max_bytes else None
        self.unexpected = ThreadProblem(f"the latest call of the encoder {spec.name}")
        self.read_problem: str | None = None
        self.write_problem: str | None = None
        self.closing = False
        self.guard = threading.Lock()
        self.in_flight: dict[bytes, asyncio.Future[StoredVector | Exception]] = {}
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name=f"{spec.name}-calls", daemon=True)
        self.thread.start()
        self._run(self._prepare(key, patience, on_usage))

    def _read_key(self) -> str | None:
        try:
            variable = self.upstream.api_key_env
            return None if variable is None else read_key(variable, f"api_key_env of {self.name}")
        except ValueError as error:
            raise EncoderError(str(error)) from None

    async def _prepare(self, key: str | None, patience: float, on_usage: OnUsage) -> None:
        """Create the client, the semaphore and the `UpstreamSpace` within the event loop that uses them."""

        def count(usage: Usage, amount: float) -> None:
            self.usage[usage] += amount  # type: ignore[assignment]
            on_usage(usage, amount)

        self.client = UpstreamClient(self.upstream, key, patience, count)
        self.slots = asyncio.Semaphore(self.upstream.concurrency)
        self.space = UpstreamSpace(self.spec, self.max_length, self.prompts, self.prompt(None), self.client, self.store)

    def close(self) -> None:
        """Cancel all calls, end the thread, and close the connections and the store. A second call does nothing.

        Coroutines that are started afterwards raise `UpstreamUnavailableError`.
        """
        with self.guard:
            closing, self.closing = self.closing, True

        if not closing:
            asyncio.run_coroutine_threadsafe(self._cancel_calls(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()
            if self.store is not None:
                self.store.close()

    async def _cancel_calls(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.endpoint.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the event loop, and return its result. If the encoder is closed, raise.

        Raises:
            UpstreamUnavailableError: if the encoder is closed before the call or during it.
        """
        with self.guard:  # so that `close` cancels every coroutine that was scheduled before it
            if self.closing:
                work.close()
                raise UpstreamUnavailableError(f"the encoder {self.name} was stopped")
            future = asyncio.run_coroutine_threadsafe(work, self.loop)

        try:
            return future.result()
        except CancelledError:  # by `close`
            raise UpstreamUnavailableError(f"the encoder {self.name} was stopped") from None

    @property
    def device(self) -> str:  # type: ignore[override]  # torch is imported only when the device is read
        """Name of the torch device on which chains of transforms are fitted to the encoder's vectors."""
        from lathe.training.encoder.devices import best_device

        return best_device()

    @property
    def problem(self) -> str | None:
        """Message that says why some texts get no vectors, or why vectors are not stored. None without a problem."""
        if self.space.problem is not None:
            return f"{self.space.problem}; until then, {self.name} answers for stored texts only"
        if self.unexpected.message is not None:
            return self.unexpected.message
        if (problem := self.client.endpoint.problem) is not None:
            return f"the latest call of the encoder {self.name} to {self.upstream.provider_name}: {problem}"
        return self.read_problem or self.write_problem

    def describe(self) -> dict[str, Any]:
        """Return the encoder's settings as a dict for the metadata of a fitted chain of transforms.

        Keys are the fields of `spec`, with `fingerprint`, `dimensions`, `max_length` and `prompts`. `upstream` holds
        provider, protocol and what the API reports of its model, but not address and key.
        """
        return self.spec.to_json() | {
            "upstream": self.upstream.describe() | {"stated": self.space.known.reported},
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
            "max_length": self.max_length,
            "prompts": self.prompts,
        }

    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        long_text: LongText | None = None,
        truncation_side: Side = "right",
        normalize: bool = True,
        on_batch: Callable[[int], None] | None = None,
    ) -> Encoding:
        """Encode texts to vectors `(n, d)` in float32, in the order given. A refused text or a zero vector raises.

        The first text that the API refuses, or whose vector is not finite or zero, raises. The result also has the
        token count of each text. The API is called only for texts whose vectors are not stored. The API truncates long
        texts. `on_batch` is called once, when all texts are done.

        Raises:
            TextError: for the first text that is not Unicode or that the API refuses.
            NotFiniteError: for the first text whose vector has NaN, inf or only zeros.
            EncoderError: for an unknown prompt, a `truncation_side` that the API does not support, or a `long_text` of
                "mean".
            UpstreamError: if the API gives no vectors.
        """
        self._require_unicode(texts)
        prompt = self.prompt(prompt_name)
        outcomes = self.encode_each(
            texts, self.build_options(prompt, long_text or self.spec.long_text, truncation_side)
        )
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        tokens = np.empty(len(texts), np.int64)

        for row, outcome in enumerate(outcomes):
            if isinstance(outcome, Exception):
                raise outcome
            vectors[row], tokens[row] = outcome.vector, outcome.tokens

        if on_batch:
            on_batch(len(texts))

        return Encoding(normalize_rows(vectors) if normalize else vectors, tokens, int(tokens.sum()))

    def build_options(self, prompt: str | None, long_text: LongText, truncation_side: Side) -> CallOptions:
        """Build the options of API calls that encode texts with this prompt and this treatment of long texts.

        Args:
            prompt: text of the prompt.
            long_text: "truncate" or "error".
            truncation_side: end of a long text that is cut off.

        Raises:
            EncoderError: if `long_text` is "mean": chunks need the model's tokenizer, which an API does not give.
        """
        if long_text == "mean":
            raise EncoderError(
                f"{self.name} is behind an embeddings API, which does not say how it divides texts into tokens: "
                "long_text may be truncate or error"
            )
        return CallOptions(prompt, long_text == "truncate", truncation_side)

    def encode_each(self, texts: Sequence[str], options: CallOptions) -> list[StoredVector | Exception]:
        """Return, for each text, its vector as the API gave it, not normalized, or the exception that says why not.

        Vectors that are stored are read, and the API is called for the other texts. Texts that repeat are encoded once.
        An exception about a text has the text's position in `texts`.

        Raises:
            EncoderError: if the API does not support the `truncation_side` of `options`.
            UpstreamError: if stored vectors cannot be read.
        """
        if options.truncation_side == "left" and not self.protocol.cuts_left:
            raise EncoderError(f"{self.name} truncates long texts only at the end: leave truncation_direction at right")

        keys = [self._compute_key(text, options) for text in texts]
        stored = self._read_stored(keys)
        outcomes: dict[bytes, StoredVector | Exception] = {
            key: vector for key, vector in zip(keys, stored, strict=True) if vector is not None
        }
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in outcomes}

        if missing:
            outcomes |= self._run(self._fetch(missing, options))

        each = [outcomes[key] for key in keys]
        return [
            add_position(outcome, position) if isinstance(outcome, Exception) else outcome
            for position, outcome in enumerate(each)
        ]

    def _read_stored(self, keys: Sequence[bytes]) -> list[StoredVector | None]:
        """Read the stored vector of each key, in order, None if not stored. A failure sets `read_problem` and raises.

        If the store fails, `read_problem` is set and the `UpstreamError` is raised. Otherwise `read_problem` becomes
        None.
        """
        if self.store is None:
            return [None] * len(keys)

        try:
            stored = self.store.get(keys)
        except UpstreamError as error:
            self.read_problem = str(error)
            raise

        self.read_problem = None
        return stored

    def _compute_key(self, text: str, options: CallOptions) -> bytes:
        context = repr((self.fingerprint, options.prompt, options.truncation_side))
        payload = f"{context}\0{text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(payload, digest_size=16).digest()

    async def _fetch(self, texts: Mapping[bytes, str], options: CallOptions) -> dict[bytes, StoredVector | Exception]:
        """Request vectors of texts from the API, and return vectors or exceptions by key. Texts in flight are awaited.

        The embedding space is checked first; if the check fails, its error is the result of each text. A text that
        another call has sent already is not sent again: its result is awaited.
        """
        try:
            await self.space.check()
        except UpstreamError as error:
            return dict.fromkeys(texts, _strip_frames(error))
        except Exception as error:  # an unexpected error must fail only these texts
            return dict.fromkeys(texts, self._record_unexpected(error))

        # No await between here and `in_flight`: two calls with the same text must not both send it.
        waiting = {key: self.in_flight.get(key) or self.loop.create_future() for key in texts}
        unsent = [key for key in texts if key not in self.in_flight]
        self.in_flight |= {key: waiting[key] for key in unsent}
        # The size of an answer grows with the dimensions, and is limited to `MAX_CALL_BYTES`.
        max_texts = max(1, MAX_CALL_BYTES // (self.dimensions * NUMBER_BYTES))
        batch_size = min(self.upstream.batch_size, max_texts)
        batches = [unsent[start : start + batch_size] for start in range(0, len(unsent), batch_size)]

        try:
            await asyncio.gather(*(self._fetch_batch({key: texts[key] for key in batch}, options) for batch in batches))
        finally:
            for key in unsent:
                future = self.in_flight.pop(key)
                if not future.done():  # the task was cancelled
                    future.set_result(UpstreamUnavailableError(f"the encoder {self.name} was stopped"))

        return {key: await future for key, future in waiting.items()}

    async def _fetch_batch(self, texts: Mapping[bytes, str], options: CallOptions) -> None:
        """Call the API for a batch of texts, store vectors, and set each text's future. A refused batch is halved.

        The result, in `in_flight`, is a vector or an exception; nothing is raised. If the API refuses the call because
        of a text, each half of the batch is sent as a call of its own, down to the refused text.
        """
        keys = list(texts)
        try:
            async with self.slots:
                answer = await self.client.send(list(texts.values()), options, self.max_length)
            outcomes = self._check_and_store(texts, answer)
            self.unexpected.message = None
        except CallError as error:
            if len(keys) > 1:
                for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                    await self._fetch_batch({key: texts[key] for key in half}, options)
                return
            outcomes = [TextError(f"{self.upstream.provider_name}: {error}")]
        except UpstreamError as error:
            outcomes = [_strip_frames(error)] * len(keys)
        except Exception as error:  # an unexpected error must fail only the texts of this call
            outcomes = [self._record_unexpected(error)] * len(keys)

        for key, outcome in zip(keys, outcomes, strict=True):
            self.in_flight[key].set_result(outcome)

    def _record_unexpected(self, error: Exception) -> UpstreamError:
        self.unexpected.record(error)
        return UpstreamError(
            f"{self.upstream.provider_name}: an unexpected {locate_error(error)}, from a call or its answer"
        )

    def _check_and_store(self, texts: Mapping[bytes, str], answer: ApiAnswer) -> list[StoredVector | Exception]:
        """Check and store an answer's vectors, and return a vector or exception for each text. Another model raises.

        A vector with NaN, inf or only zeros is not stored; its text gets a `NotFiniteError`.

        Raises:
            SpaceChangedError: if the API reports another model than before.
            UpstreamError: if the vectors have other dimensions than before.
        """
        self.space.check_reported_model(answer.reported)
        if answer.vectors.shape[1] != self.dimensions:
            raise UpstreamError(
                f"{self.upstream.provider_name}: it answered vectors of {answer.vectors.shape[1]} dimensions, not "
                f"{self.dimensions} as before"
            )

        estimates = [estimate_tokens(text, self.max_length) for text in texts.values()]
        tokens = _share_tokens(estimates, answer.tokens)
        usable = find_valid_rows(answer.vectors)

        if self.store is not None:
            keys = [key for key, is_usable in zip(texts, usable, strict=True) if is_usable]
            counts = [count for count, is_usable in zip(tokens, usable, strict=True) if is_usable]
            self._store(keys, answer.vectors[usable], counts)  # a millisecond; a thread of its own would cost two

        return [
            StoredVector(vector, count)
            if is_usable
            else NotFiniteError(f"{self.name} gives NaN, inf or only zeros for this text")
            for vector, count, is_usable in zip(answer.vectors, tokens, usable, strict=True)
        ]

    def _store(self, keys: Sequence[bytes], vectors: NDArray[np.float32], tokens: Sequence[int]) -> None:
        """Store vectors under their keys. A failure is not raised: the first is logged, and `write_problem` is set.

        After a success, `write_problem` becomes None.
        """
        assert self.store is not None
        try:
            self.store.put(keys, vectors, tokens, self.fingerprint)
            self.write_problem = None
        except UpstreamError as error:
            if self.write_problem is None:
                log.warning("%s", error)
            self.write_problem = str(error)

    def identify(self) -> None:
        """Identify the API's embedding space by its vectors of probe texts, and set `fingerprint` and `dimensions`.

        The API is not called if this or another process called it less than `probe_seconds` ago. If the API cannot be
        reached, the space that was last confirmed is used. If the vectors are of another space than before, texts that
        are not stored are refused; see `problem`.

        Raises:
            UpstreamError: if the API gives no valid answer, and no space of it is stored.
        """
        self._run(self.space.identify())
        self.fingerprint, self.dimensions = self.space.known.fingerprint, self.space.known.probes.shape[1]
        self.client.dimensions = self.dimensions


def _strip_frames(error: UpstreamError) -> UpstreamError:
    """Remove the traceback and causes of an error, in place, and return the error.

    Frames of the traceback would keep a whole answer in memory.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def add_position(error: Exception, position: int) -> Exception:
    """Return a copy of a text's error with the text's position in the input. Any other error is returned unchanged."""
    return type(error)(error.reason, position) if isinstance(error, TextError | NotFiniteError) else error


def _share_tokens(estimates: Sequence[int], total: int | None) -> list[int]:
    """Divide the tokens of a call among texts in proportion to the estimates. Without a total, return the estimates.

    The shares add up to `total`. Without a `total`, which some APIs do not report, the estimates are returned.
    """
    if total is None:
        return list(estimates)
    # Rounded cumulative sums, not rounded shares: the shares add up to `total`.
    ends = np.round(np.cumsum(estimates) * (total / max(sum(estimates), 1))).astype(int)
    shared: list[int] = np.diff(ends, prepend=0).tolist()
    return shared
