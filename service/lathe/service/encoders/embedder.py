"""Computation of a response's vectors from a request's texts or vectors, through cache, encoder and chain.

    EmbedRequest ── Embedder.begin ──► Pending ── wait_for_answer ──► Answer
                    resolve the chain,            wait for the encoder,
                    cut long texts,               cache new vectors,
                    look up the cache,            apply the chain to cached vectors,
                    queue missing texts           notify the observer of live vectors

`Embedder.reduce` answers a request with vectors instead of texts. `Embedder` also finds the served encoders by name.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from lathe.service.chains.registry import Registry
from lathe.service.chains.resolve import ChainResolver, InputType, NotAtOnceError, OutputDtype, Target
from lathe.service.encoders.cache import CachedVector, VectorCache
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.work import EncodedTexts, EncodeOptions, EncoderInfo, Work
from lathe.service.encoders.live_vectors import LiveVectors, ObservedVectors
from lathe.service.encoders.model_names import ModelChoice, list_model_names, parse_model
from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.training.encoder.cutting import build_too_long_error, cut_by_words
from lathe.training.encoder.long_texts import MAX_LONG_CHARACTERS, MAX_LONG_TOKENS
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import TooLongError
from lathe.transforms.errors import ArtifactError

CHAIN_TEXTS = Counter("lathe_chain_texts", "Texts answered through a chain", ["encoder", "chain"])
CUT_TEXTS = Counter("lathe_cut_texts", "Texts answered that the encoder did not read to the end", ["encoder"])
CUT_TOKENS = Counter("lathe_cut_tokens", "Tokens of these texts that it did not read, estimated", ["encoder"])


@lru_cache(maxsize=1024)
def _get_counter(encoder: str, chain: str) -> Counter:
    return CHAIN_TEXTS.labels(encoder, chain)


@dataclass(frozen=True)
class EmbedRequest:
    """Texts to embed, with the encoder, chain of transforms, dimensions and dtype to use.

    Attributes:
        texts: the texts.
        engine: engine of the encoder.
        options: options of the encoding.
        chain: name or reference of the chain; None for raw vectors, or for the chain that `dimensions` selects.
        dimensions: dimensions of the outputs; None for all.
        input_type: `query` applies the chain's transform for queries, `document` its transform for documents.
        output_dtype: requested encoding of the outputs.
    """

    texts: list[str]
    engine: Engine
    options: EncodeOptions
    chain: str | None = None
    dimensions: int | None = None
    input_type: InputType = "document"
    output_dtype: OutputDtype | None = None


@dataclass(frozen=True)
class Answer:
    """Vectors `(n, k)` for a response, with the numbers of tokens and the times for its headers.

    Attributes:
        vectors: output of the chain, or the encoder's vectors without a chain.
        target: chain of transforms, dimensions and dtype of the vectors.
        tokens: number of tokens that were encoded, or were encoded when the vectors were cached.
        timings: milliseconds by stage, `queue` and `inference`; empty if the encoder was not used.
        cut_tokens: number of tokens of the texts that the encoder does not read, estimated for very long texts; None
            without texts.
    """

    vectors: NDArray[np.float32]
    target: Target
    tokens: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    cut_tokens: int | None = None

    def build_headers(self, as_codes: bool = False) -> dict[str, str]:
        """Build the HTTP headers that describe the vectors: space id, chain, dimensions, dtype, times (ms) and tokens.

        The token headers are left out without texts.

        Args:
            as_codes: whether documents are codes if no dtype was requested and the chain has a quantizer.
        """
        headers = {
            "x-space-id": self.target.space_id,
            "x-chain": self.target.chain,
            "x-dimensions": str(self.target.dimensions),
            "x-input-type": self.target.input_type,
            "x-output-dtype": self.target.choose_dtype(as_codes),
            "x-queue-time": f"{self.timings.get('queue', 0.0):.3f}",
            "x-inference-time": f"{self.timings.get('inference', 0.0):.3f}",
        }
        if self.cut_tokens is not None:
            headers |= {"x-tokens": str(self.tokens), "x-tokens-cut": str(self.cut_tokens)}
        return headers


@dataclass(frozen=True, kw_only=True)
class Pending:
    """Request whose texts were looked up in the cache, and whose missing texts are queued for the encoder.

    Attributes:
        encoder: name of the encoder.
        target: chain of transforms, dimensions and dtype of the answer.
        live_vectors: passes vectors to their observer; None if there is none.
        cache: cache of vectors before the chain.
        keys: cache keys of the texts; empty if the cache is not used.
        entries: cached vector of each text; None if the text is not cached.
        length_ratios: for each text, number of characters divided by the characters of the part that was looked up or
            encoded; 1 if the text was not cut.
        missing: positions of the texts that were not cached.
        work: encoding of the missing texts; None if there are none.
        needs_chain: whether the vectors of `work` still need the chain, as those of an embeddings API do.
    """

    encoder: str
    target: Target
    live_vectors: LiveVectors | None
    cache: VectorCache
    keys: list[bytes]
    entries: list[CachedVector | None]
    length_ratios: list[float]
    missing: list[int]
    work: Work | None
    needs_chain: bool

    def wait_for_answer(self) -> Answer:
        """Wait until the missing texts are encoded, and return the answer with vectors `(n, k)` after the chain.

        The new vectors are cached, the texts are counted by chain, and the raw vectors are passed to the observer.

        Raises:
            ArtifactError: if the chain transforms a text to NaN or inf.
        """
        encoded_texts = None if self.work is None else self.work.future.result()
        _get_counter(self.encoder, self.target.chain).inc(len(self.entries))
        cached = self._stack_cached()
        if encoded_texts is None:
            tokens, cut = self._count_tokens(None)
            vectors = self._require_finite(self.target.apply(cached))
            self._notify_observer(cached)
            return Answer(vectors, self.target, tokens, cut_tokens=cut)

        timings = {"queue": encoded_texts.queue_ms, "inference": encoded_texts.inference_ms}
        raw = encoded_texts.vectors if encoded_texts.raw is None else encoded_texts.raw
        if self.keys:
            self.cache.put([self.keys[index] for index in self.missing], raw, encoded_texts.tokens, encoded_texts.cut)

        # Cached vectors are stored before the chain, so that all chains share them; it is applied to them here.
        vectors = new_vectors = self.target.apply(encoded_texts.vectors) if self.needs_chain else encoded_texts.vectors
        if len(self.missing) < len(self.entries):
            # (n, k) in the order of the request: new rows from the encoder, all others from the cache.
            vectors = np.empty((len(self.entries), self.target.dimensions), np.float32)
            vectors[self.missing] = new_vectors
            vectors[[row for row, entry in enumerate(self.entries) if entry is not None]] = self.target.apply(cached)

        tokens, cut = self._count_tokens(encoded_texts)
        vectors = self._require_finite(vectors)
        self._notify_observer(cached, raw)
        return Answer(vectors, self.target, tokens, timings, cut_tokens=cut)

    def _require_finite(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Raise `ArtifactError` if a chain of transforms turned a vector into NaN or inf, else return the vectors.

        A chain is tested on two rows when it is loaded. With some weights only other rows overflow.
        """
        if self.target.loaded is not None and not np.isfinite(vectors).all():
            raise ArtifactError(f"the chain {self.target.chain} maps a text to numbers that float32 cannot hold")
        return vectors

    def _stack_cached(self) -> NDArray[np.float32]:
        """Stack the cached vectors `(n, d)`, before the chain, in the order of the texts. Without any, `(0, 0)`."""
        cached = [entry.vector for entry in self.entries if entry is not None]
        return np.concatenate(cached).reshape(len(cached), -1) if cached else np.empty((0, 0), np.float32)

    def _notify_observer(self, *raw: NDArray[np.float32]) -> None:
        """Pass vectors before the chain to the observer of live vectors, if there are a chain and an observer."""
        loaded = self.target.loaded
        if loaded is None or self.live_vectors is None:
            return
        parts = [rows for rows in raw if len(rows)]
        stacked = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.live_vectors.notify(ObservedVectors(self.encoder, loaded, stacked))

    def _count_tokens(self, encoded_texts: EncodedTexts | None) -> tuple[int, int]:
        """Count the tokens of the texts that the encoder read and did not read, and add the latter to the metrics.

        Tokens of a text that was cut before tokenization are estimated from the tokens of the part and the length
        ratio.

        Args:
            encoded_texts: the texts that were just encoded; None if all were cached.
        """
        counts = [(0, 0) if entry is None else (entry.tokens, entry.cut) for entry in self.entries]
        if encoded_texts is not None:
            pairs = zip(encoded_texts.tokens.tolist(), encoded_texts.cut.tolist(), strict=True)
            for index, count in zip(self.missing, pairs, strict=True):
                counts[index] = count
        unread = [
            int((tokens + cut) * ratio) - tokens
            for (tokens, cut), ratio in zip(counts, self.length_ratios, strict=True)
        ]
        CUT_TEXTS.labels(self.encoder).inc(sum(count > 0 for count in unread))
        CUT_TOKENS.labels(self.encoder).inc(sum(unread))
        return sum(tokens for tokens, _ in counts), sum(unread)


def cut_texts(texts: list[str], encoder: EncoderInfo, options: EncodeOptions) -> list[str]:
    """Cut texts to the part that the encoder may read, so that less text is hashed and sent.

    With `long_text` "mean", no text is cut.

    Raises:
        TooLongError: if a text would be cut and `long_text` is "error", or exceeds the maximum of `long_text` "mean".
    """
    if options.long_text == "mean":
        for position, text in enumerate(texts):
            if len(text) > MAX_LONG_CHARACTERS:
                raise TooLongError(
                    f"input {position} is {len(text):,} characters long; long_text mean takes {MAX_LONG_CHARACTERS:,} "
                    f"characters and {MAX_LONG_TOKENS:,} tokens: divide it"
                )
        return texts
    parts = [cut_by_words(text, encoder.max_length, options.truncation_side) for text in texts]
    if options.long_text == "error":
        for position, (text, part) in enumerate(zip(texts, parts, strict=True)):
            if part is not None:
                raise build_too_long_error(position, text, encoder.name, encoder.max_length)
    return [text if part is None else part for text, part in zip(texts, parts, strict=True)]


class Embedder:
    """Served encoders by name, and the chains of transforms that their vectors can go through.

    Attributes:
        aliases: name of the served version, `NAME@V`, by the name of a trained encoder.
    """

    def __init__(self, engines: list[Engine], registry: Registry, cache: VectorCache) -> None:
        self.live_vectors = LiveVectors()
        self.engines = {engine.spec.name: engine for engine in engines}
        self.aliases: dict[str, str] = {}
        self.registry = registry
        self.resolver = ChainResolver(registry)
        self.cache = cache

    def add(self, engine: Engine) -> None:
        """Start an encoder's engine, and add the encoder to the served encoders."""
        engine.start()
        self.engines = self.engines | {engine.spec.name: engine}  # replaced as a whole, because other threads read it

    def remove(self, name: str) -> Engine:
        """Remove an encoder from the served encoders, and return its engine to be stopped. The default raises.

        Raises:
            UnknownNameError: if the encoder is not served.
            ConflictError: if the encoder is the default.
        """
        engine = self.find_engine(name, param="encoder")
        if engine is self.default:
            raise ConflictError(f"{engine.spec.name} is the default encoder, which is always served", param="encoder")
        self.engines = {key: kept for key, kept in self.engines.items() if kept is not engine}
        return engine

    def find_spec(self, name: str) -> EncoderSpec | None:
        """Return the spec of a served encoder. The result is None if the encoder is not served."""
        engine = self.engines.get(name)
        return engine.spec if engine else None

    def fail_unfinished(self) -> None:
        """Answer all unfinished requests of all encoders with an error, as at shutdown."""
        for engine in self.engines.values():
            engine.fail_unfinished()

    @property
    def default(self) -> Engine:
        """Engine for requests that name no encoder: the first engine."""
        return next(iter(self.engines.values()))

    def find_engine(self, name: str | None, param: str = "model") -> Engine:
        """Find the engine of an encoder by its name, its alias or its model's name. None means the default encoder.

        An unknown encoder raises. `NAME@live` means the alias `NAME`.

        Raises:
            UnknownNameError: if there is no such encoder; the message lists the encoders.
        """
        if name is None:
            return self.default
        name = self.aliases.get(name.removesuffix("@live"), name)
        if name in self.engines:  # before the models, which may have the name of another encoder
            return self.engines[name]
        for engine in self.engines.values():
            if name == engine.spec.model:
                return engine
        raise UnknownNameError(
            f"there is no {param} {name!r}; there are: {', '.join([*self.engines, *self.aliases])}",
            param=param,
            code="model_not_found",
        )

    def parse_model(self, model: str | None) -> ModelChoice:
        """Parse a request's `model`, `ENCODER[+CHAIN[@v]][:DIMENSIONS]`.

        Without a model, the default encoder is chosen. The grammar is in `lathe.service.encoders.model_names`.
        """
        if not model:
            return ModelChoice(model, self.default)
        specs = [engine.spec for engine in self.engines.values()]
        return parse_model(model, self.find_engine, {name for spec in specs for name in (spec.name, spec.model)})

    def begin(self, request: EmbedRequest, at_once: bool = False) -> "Pending":
        """Look up a request's texts in the cache, and queue the missing texts for the encoder.

        Unknown names, overload, and an encoder that is not ready raise. The chain is resolved first, and texts are cut
        to what the encoder can read. The call does not wait for the encoder. It may block only to read a chain from
        disk, to fold it, or to use a second-level cache.

        Args:
            request: the texts, and how to embed them.
            at_once: whether to raise `NotAtOnceError` instead of blocking, for callers on the event loop.

        Raises:
            NotAtOnceError: with `at_once`, if this might block.
            ServiceError: for unknown names, dimensions, embedding spaces or encodings that do not match, overload, or
                an encoder that is not ready.
            EncoderError: for a prompt name the encoder does not have.
            TooLongError: for a text that is much too long if `long_text` is "error"; the worker checks shorter ones.
        """
        engine, options = request.engine, request.options
        encoder = engine.get_ready_info()
        prompt = encoder.prompt_key(options.prompt_name)  # an unknown one is refused even where the cache is off

        if at_once and self.cache.second_level is not None:
            raise NotAtOnceError
        target = self.resolver.resolve_for_encoder(
            encoder, request.chain, request.dimensions, options.normalize, request.input_type, at_once
        )
        target = target.with_output_dtype(request.output_dtype)
        if target.folded is not None and not options.normalize:
            # Chains take unit vectors. Whether their outputs are normalized is part of the folded chain.
            options = replace(options, normalize=True)
        if options.long_text is None:
            options = replace(options, long_text=encoder.spec.long_text)

        # Cut before they are hashed: keys, cache and worker see only the part that can be read.
        texts = cut_texts(request.texts, encoder, options)
        length_ratios = [len(text) / max(len(part), 1) for text, part in zip(request.texts, texts, strict=True)]

        keys: list[bytes] = []
        entries: list[CachedVector | None] = [None] * len(texts)
        if self.cache.can_serve(options):
            keys = self.cache.compute_keys(encoder, options, prompt, texts)
            entries = self.cache.get(encoder, keys, options.normalize)
        missing = [index for index, entry in enumerate(entries) if entry is None]

        live_vectors = None if self.live_vectors.observer is None else self.live_vectors
        work, needs_chain = None, engine.spec.upstream is not None
        if missing:
            uncached = texts if len(missing) == len(texts) else [texts[index] for index in missing]
            # Cache and observer take vectors before the chain; otherwise the worker need not send them.
            keep_raw = bool(keys) or live_vectors is not None
            max_length = MAX_LONG_TOKENS if options.long_text == "mean" else encoder.max_length
            applied = None if needs_chain else target.chain_ref
            work = engine.queue.admit(uncached, options, max_length, applied, keep_raw, missing)
        return Pending(
            encoder=engine.spec.name,
            target=target,
            live_vectors=live_vectors,
            cache=self.cache,
            keys=keys,
            entries=entries,
            length_ratios=length_ratios,
            missing=missing,
            work=work,
            needs_chain=needs_chain,
        )

    def reduce(
        self,
        vectors: NDArray[np.float32],
        chain: str,
        dimensions: int | None,
        input_type: InputType = "document",
        output_dtype: OutputDtype | None = None,
    ) -> Answer:
        """Transform vectors `(n, d)` that a caller sent by a chain of transforms into outputs `(n, k)`.

        Outputs that overflow float32 raise. The vectors are also passed to the observer of live vectors, if there is
        one.

        Raises:
            BadValueError: if the chain does not serve the dimensions, or outputs overflow float32 or cannot be encoded
                as requested.
            WrongShapeError: if the chain takes vectors of other dimensions.
            UnknownNameError: if there is no such chain.
            ArtifactError: if the chain's files are damaged.
        """
        target = self.resolver.resolve_for_vectors(vectors.shape[1], chain, dimensions, input_type)
        target = target.with_output_dtype(output_dtype)
        reduced = target.apply(vectors)
        if not np.isfinite(reduced).all():
            raise BadValueError("the vectors hold numbers so large that the chain overflows float32", param="vectors")
        if target.loaded is not None:
            self.live_vectors.notify(ObservedVectors(None, target.loaded, vectors))
        return Answer(reduced, target)

    def list_models(self) -> list[str]:
        """List all values that a request's `model` can have.

        The values are the names of `list_model_names`, in order, followed by the names of trained encoders.
        """
        return [*list_model_names(self.engines, self.registry, self.resolver), *self.aliases]

    def resolve_model(self, model: str) -> ModelChoice:
        """Parse a request's `model`, and raise unless its encoder, chain and dimensions are served together.

        While the encoder was never ready, only its name is checked.

        Raises:
            BadValueError, ConflictError, UnknownNameError: if encoder or chain are not served.
        """
        choice = self.parse_model(model)
        if choice.engine.info is not None:
            self.resolver.resolve_for_encoder(choice.engine.info, choice.chain, choice.dimensions)
        return choice
