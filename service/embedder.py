"""From a request's texts or vectors to the vectors of its answer."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Counter

from service.cache import Entry, VectorCache
from service.engine.engine import Engine
from service.engine.process import EncoderInfo
from service.engine.work import EncodeOptions, Work
from service.errors import BadValueError, ConflictError, UnknownNameError, WrongShapeError
from service.index.spec import IndexSpec
from service.live.tap import Seen, Tap
from service.registry import Registry
from service.targets import Target, Targets
from training.encoder.cutting import cut_by_words, too_long
from training.encoder.space import space_id
from training.encoder.spec import EncoderSpec
from transforms.errors import ArtifactError

CHAIN_TEXTS = Counter("lathe_chain_texts", "Texts answered through a chain", ["encoder", "chain"])


@dataclass(frozen=True)
class Answer:
    """Vectors `(n, k)` with what their headers say.

    Attributes:
        raw: `(n, d)` before the chain, those of the cache first; None where there was no chain, or nobody watches.
        out_of_domain: how far they lie from what the chain was fitted on, for a header; None if nobody asked.
    """

    vectors: NDArray[np.float32]
    target: Target
    tokens: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    raw: NDArray[np.float32] | None = None
    out_of_domain: str | None = None

    def headers(self) -> dict[str, str]:
        """The headers of every vector answer; times in milliseconds."""
        found = {
            "x-space-id": self.target.space_id,
            "x-chain": self.target.chain,
            "x-dimensions": str(self.target.dimensions),
            "x-queue-time": f"{self.timings.get('queue', 0.0):.3f}",
            "x-inference-time": f"{self.timings.get('inference', 0.0):.3f}",
        }
        return found if self.out_of_domain is None else found | {"x-out-of-domain": self.out_of_domain}


@dataclass(frozen=True)
class Pending:
    """A request whose texts were found in the cache or wait for the encoder.

    Attributes:
        encoder: its name.
        target: where the vectors go.
        tap: where they pass by those that watch; None if nobody did when the request came.
        keys: of the texts in the cache; none if it is not used.
        found: what it held.
        missing: places of the texts that it did not hold.
        work: those texts, on their way; None if there are none.
    """

    encoder: str
    target: Target
    tap: Tap | None
    cache: VectorCache
    keys: list[bytes]
    found: list[Entry | None]
    missing: list[int]
    work: Work | None

    def answer(self) -> Answer:
        """All vectors in the order of the texts; waits for the encoder if it must."""
        done = None if self.work is None else self.work.future.result()
        CHAIN_TEXTS.labels(self.encoder, self.target.chain).inc(len(self.found))
        cached = self.cached()
        if done is None:
            return Answer(self.target.apply(cached), self.target, self.cached_tokens(), raw=self.shown(cached))
        timings = {"queue": done.queue_ms, "inference": done.inference_ms}
        raw = done.vectors if done.raw is None else done.raw
        if self.keys:
            self.cache.put([self.keys[index] for index in self.missing], raw, done.tokens)
        vectors = done.vectors
        if len(self.missing) < len(self.found):
            vectors = np.empty((len(self.found), self.target.dimensions), np.float32)
            vectors[self.missing] = done.vectors
            vectors[[index for index, entry in enumerate(self.found) if entry is not None]] = self.target.apply(cached)
        tokens = int(done.tokens.sum()) + self.cached_tokens()
        return Answer(vectors, self.target, tokens, timings, self.shown(cached, raw))

    def cached(self) -> NDArray[np.float32]:
        """Vectors that the cache held, before the chain; none are `(0, 0)`."""
        found = [entry.vector for entry in self.found if entry is not None]
        return np.stack(found) if found else np.empty((0, 0), np.float32)

    def shown(self, *raw: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Let those see what is before a chain who watch it."""
        loaded = self.target.loaded
        if loaded is None or self.tap is None:
            return None
        parts = [rows for rows in raw if len(rows)]
        together = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.tap.pass_by(Seen(self.encoder, loaded, together))
        return together

    def cached_tokens(self) -> int:
        """Tokens those texts took when they were encoded."""
        return sum(entry.tokens for entry in self.found if entry is not None)


def cut_texts(texts: list[str], encoder: EncoderInfo, options: EncodeOptions) -> list[str]:
    """Return texts without what their encoder surely does not read, so that nothing else is hashed, held and sent.

    Raises:
        TooLongError: if nothing may be cut off.
    """
    cut = [cut_by_words(text, encoder.max_length, options.truncation_side) for text in texts]
    if not options.truncate:
        for place, (text, part) in enumerate(zip(texts, cut, strict=True)):
            if part is not None:
                raise too_long(place, text, encoder.name, encoder.max_length)
    return [text if part is None else part for text, part in zip(texts, cut, strict=True)]


class Embedder:
    """The encoders of a server, by name, with the chains behind them."""

    def __init__(
        self, engines: list[Engine], registry: Registry, targets: Targets, cache: VectorCache, tap: Tap
    ) -> None:
        self.tap = tap
        self.engines = {engine.spec.name: engine for engine in engines}
        self.registry = registry
        self.targets = targets
        self.cache = cache

    def add(self, engine: Engine) -> None:
        """Serve one more encoder; its engine is started here."""
        engine.start()
        self.engines = self.engines | {engine.spec.name: engine}  # others may be reading the old one

    def remove(self, name: str) -> Engine:
        """Serve an encoder no longer; its engine, to be stopped.

        Raises:
            UnknownNameError: if it is not served.
            ConflictError: if it is the default.
        """
        engine = self.engine(name, param="encoder")
        if engine is self.default:
            raise ConflictError(f"{engine.spec.name} is the default encoder, which is always served", param="encoder")
        self.engines = {key: other for key, other in self.engines.items() if other is not engine}
        return engine

    def spec_of(self, name: str) -> EncoderSpec | None:
        """How an encoder is loaded; None for one that is served no more."""
        engine = self.engines.get(name)
        return engine.spec if engine else None

    def give_up(self) -> None:
        """Answer all that is not finished with an error: the server ends."""
        for engine in self.engines.values():
            engine.give_up()

    @property
    def default(self) -> Engine:
        """The engine of requests that name none."""
        return next(iter(self.engines.values()))

    def engine(self, name: str | None, param: str = "model") -> Engine:
        """The engine of an encoder, by its name or its model's; the first if None.

        Raises:
            UnknownNameError: listing those there are.
        """
        if name is None:
            return self.default
        for engine in self.engines.values():
            if name in (engine.spec.name, engine.spec.model):
                return engine
        raise UnknownNameError(
            f"there is no {param} {name!r}; there are: {', '.join(self.engines)}", param=param, code="model_not_found"
        )

    def engine_and_chain(self, model: str | None) -> tuple[Engine, str | None]:
        """What a request's `model` names: `ENCODER` or `ENCODER+CHAIN[@v]`."""
        name, _, chain = (model or "").partition("+")
        return self.engine(name or None), chain or None

    def begin(
        self, texts: list[str], engine: Engine, chain: str | None, dimensions: int | None, options: EncodeOptions
    ) -> "Pending":
        """Find where texts go, look them up, and let those not seen before wait for the encoder; never blocks.

        Raises:
            ServiceError: for names, sizes and spaces that do not go together, overload, not ready.
            EncoderError: for a prompt the encoder does not know.
            TooLongError: for a text that is much too long, where `truncate` is off; the encoder tells the others.
        """
        encoder = engine.require_ready()
        encoder.prompt(options.prompt_name)  # an unknown one is refused even where the cache is off
        target = self.targets.of_encoder(encoder, chain, dimensions, normalize=options.normalize)
        if target.folded is not None:  # chains take unit vectors; whether they give them is folded in
            options = replace(options, normalize=True)
        texts = cut_texts(texts, encoder, options)
        keys: list[bytes] = []
        found: list[Entry | None] = [None] * len(texts)
        if self.cache.serves(options):
            keys = self.cache.keys(encoder, options, texts)
            found = self.cache.get(encoder, keys, options.normalize)
        missing = [index for index, entry in enumerate(found) if entry is None]
        tap = self.tap if self.tap.open else None  # once: raw vectors come back only if they were asked for
        work = None
        if missing:
            wanted = texts if len(missing) == len(texts) else [texts[index] for index in missing]
            work = engine.submit(wanted, options, target.asked, keep_raw=bool(keys) or tap is not None)
        return Pending(engine.spec.name, target, tap, self.cache, keys, found, missing, work)

    def engine_of_index(self, spec: IndexSpec) -> Engine:
        """The engine whose vectors an index holds.

        Raises:
            WrongShapeError: if the index takes vectors only.
            ConflictError: if no encoder here gives such vectors, with both spaces' ids.
        """
        if spec.encoder is None:
            raise WrongShapeError("this index was made without an encoder: send vectors, not texts", param="texts")
        engine = self.engines.get(spec.encoder)
        if engine is None:
            raise ConflictError(
                f"this index holds vectors of the encoder {spec.encoder}, which is not served here (there are: "
                f"{', '.join(self.engines)}): send vectors, or add it",
                param="texts",
                code="space_mismatch",
            )
        encoder = engine.require_ready()
        if encoder.fingerprint != spec.encoder_fingerprint:
            mine = space_id(encoder.fingerprint, None, None, encoder.dimensions)
            raise ConflictError(
                f"{spec.encoder} is no longer the encoder this index was made with: its vectors belong to the space "
                f"{mine}, the index's to {spec.raw_space_id}; reindex with an encoder, or set the old one up again",
                param="texts",
                code="space_mismatch",
            )
        return engine

    def encode_for_index(self, spec: IndexSpec, texts: list[str]) -> NDArray[np.float32]:
        """Vectors `(n, d)` in an index's space, for a thread of the index's own; waits its turn.

        Raises:
            ServiceError: as `engine_of_index`.
        """
        engine = self.engine_of_index(spec)
        return self.begin(texts, engine, None, None, EncodeOptions()).answer().vectors

    def reduce(self, vectors: NDArray[np.float32], chain: str, dimensions: int | None) -> Answer:
        """Take the caller's own vectors `(n, d)` through a chain.

        Raises:
            ServiceError: as `Targets.of_vectors`; 400 for numbers too large to map.
        """
        target = self.targets.of_vectors(vectors.shape[1], chain, dimensions)
        reduced = target.apply(vectors)
        if not np.isfinite(reduced).all():
            raise BadValueError("the vectors hold numbers too large to map in float32", param="vectors")
        if target.loaded is None or not self.tap.open:
            return Answer(reduced, target)
        self.tap.pass_by(Seen(None, target.loaded, vectors))
        return Answer(reduced, target, raw=vectors)

    def models(self) -> list[str]:
        """What `model` may name: bare encoders first, then each with each of its live chains."""
        names = list(self.engines)
        ready = [engine.info for engine in self.engines.values() if engine.info is not None]
        for chain in self.registry.names():
            live = self.registry.live(chain)
            if live is None:
                continue
            try:
                fitted_on = self.registry.manifest(chain, live).get("encoder")
            except ArtifactError:  # it cannot be served, so it is not offered
                continue
            for encoder in ready:
                if fitted_on is None or fitted_on["fingerprint"] == encoder.fingerprint:
                    names.append(f"{encoder.name}+{chain}")
        return names
