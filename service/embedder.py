"""From a request's texts or vectors to the vectors of its answer."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool

from service.engine import EncodeOptions, Engine
from service.errors import BadValueError, ConflictError, UnknownNameError, WrongShapeError
from service.index.spec import IndexSpec
from service.registry import Registry
from service.targets import Target, Targets
from training.space import space_id
from transforms.errors import ArtifactError


@dataclass(frozen=True)
class Answer:
    """Vectors `(n, k)` with what their headers say."""

    vectors: NDArray[np.float32]
    target: Target
    tokens: int = 0
    timings: dict[str, float] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """The headers of every vector answer; times in milliseconds."""
        return {
            "x-space-id": self.target.space_id,
            "x-chain": self.target.chain,
            "x-dimensions": str(self.target.dimensions),
            "x-queue-time": f"{self.timings.get('queue', 0.0):.3f}",
            "x-inference-time": f"{self.timings.get('inference', 0.0):.3f}",
        }


class Embedder:
    """The encoders of a server, by name, with the chains behind them."""

    def __init__(self, engines: list[Engine], registry: Registry, targets: Targets) -> None:
        self.engines = {engine.spec.name: engine for engine in engines}
        self.default = engines[0]
        self.registry = registry
        self.targets = targets

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

    async def embed(
        self, texts: list[str], engine: Engine, chain: str | None, dimensions: int | None, options: EncodeOptions
    ) -> Answer:
        """Encode texts and take them through a chain.

        Raises:
            ServiceError: for names, sizes and spaces that do not go together, overload, not ready.
        """
        encoder = engine.require_ready()
        encoder.prompt(options.prompt_name)
        target = await run_in_threadpool(
            self.targets.of_encoder, encoder, chain, dimensions, normalize=options.normalize
        )
        if target.folded is not None:  # chains take unit vectors; whether they give them is folded in
            options = EncodeOptions(options.prompt_name, options.truncate, options.truncation_side)
        done = await engine.embed(texts, options, target.folded)
        timings = {"queue": done.queue_ms, "inference": done.inference_ms}
        return Answer(done.vectors, target, int(done.tokens.sum()), timings)

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
        return asyncio.run(engine.embed(texts, EncodeOptions(), None)).vectors

    def reduce(self, vectors: NDArray[np.float32], chain: str, dimensions: int | None) -> Answer:
        """Take the caller's own vectors `(n, d)` through a chain.

        Raises:
            ServiceError: as `Targets.of_vectors`; 400 for numbers too large to map.
        """
        target = self.targets.of_vectors(vectors.shape[1], chain, dimensions)
        reduced = target.apply(vectors)
        if not np.isfinite(reduced).all():
            raise BadValueError("the vectors hold numbers too large to map in float32", param="vectors")
        return Answer(reduced, target)

    def models(self) -> list[str]:
        """What `model` may name: bare encoders first, then each with each of its live chains."""
        names = list(self.engines)
        ready = [engine for engine in self.engines.values() if engine.encoder is not None]
        for chain in self.registry.names():
            live = self.registry.live(chain)
            if live is None:
                continue
            try:
                fitted_on = self.registry.manifest(chain, live).get("encoder")
            except ArtifactError:  # it cannot be served, so it is not offered
                continue
            for engine in ready:
                if fitted_on is None or fitted_on["fingerprint"] == engine.require_ready().fingerprint:
                    names.append(f"{engine.spec.name}+{chain}")
        return names
