"""Where vectors go: which chain, cut to which size, in which space."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engine.chain_ref import ChainRef
from service.errors import BadValueError, ConflictError, WrongShapeError
from service.places import Places
from service.registry import LoadedChain, Registry
from training.encoder.space import space_id
from training.encoder.spec import HasSpace
from transforms.chain import Chain

RAW = "none"
"""What raw vectors say their chain is, and what asks for them by name."""


@dataclass(frozen=True)
class Target:
    """A chain or none, cut to a size.

    Attributes:
        loaded: None for raw vectors.
        folded: the chain as it is applied; None for raw vectors.
        asked: the same for a worker.
        dimensions: of the answer.
        space_id: of the answer.
    """

    loaded: LoadedChain | None
    folded: Chain | None
    asked: ChainRef | None
    dimensions: int
    space_id: str

    @property
    def chain(self) -> str:
        """`name@version`, or `none`."""
        return self.loaded.ref if self.loaded else RAW

    def apply(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take vectors `(n, d)` there, as floats; raw ones are there already."""
        return vectors if self.folded is None else self.folded.floats(vectors)

    def codes(self, floats: NDArray[np.float32]) -> NDArray[Any]:
        """What files hold of floats that `apply` gave: the codes of a chain that quantises, else the floats."""
        quantizer = self.folded.quantizer if self.folded else None
        return floats if quantizer is None else quantizer.transform(floats)


class Targets:
    """Finds the target that a request's names mean."""

    def __init__(self, registry: Registry, places: Places) -> None:
        self.registry = registry
        self.places = places

    def of_encoder(
        self, encoder: HasSpace, chain: str | None, dimensions: int | None, normalize: bool = True
    ) -> Target:
        """The chain and size for an encoder's vectors.

        No chain and no size, or the encoder's own, mean raw vectors; a size alone the chain that
        has its place.

        Raises:
            BadValueError: for a size nobody serves.
            ConflictError: for a chain fitted on another encoder's vectors.
            UnknownNameError: for a chain there is not.
            ArtifactError: for a damaged one.
        """
        if chain == RAW and dimensions not in (None, encoder.dimensions):
            raise BadValueError(f"raw vectors are {encoder.dimensions} wide, not {dimensions}", param="dimensions")
        if chain is not None and chain != RAW:
            loaded = self.registry.load(chain)
        elif dimensions is None or dimensions == encoder.dimensions:
            raw = space_id(encoder.fingerprint, None, None, encoder.dimensions)
            return Target(None, None, None, encoder.dimensions, raw)
        else:
            loaded = self.places.chain_for(encoder.fingerprint, dimensions, encoder.dimensions)
        fitted_on, width = loaded.encoder_fingerprint, loaded.chain.input_dimensions
        if fitted_on not in (None, encoder.fingerprint) or width not in (None, encoder.dimensions):
            raise ConflictError(
                f"the chain {loaded.ref} takes vectors of another space (encoder {fitted_on or 'unnamed'}, "
                f"{width} wide) than {encoder.name} gives ({encoder.fingerprint}, {encoder.dimensions} wide)",
                param="chain",
                code="space_mismatch",
            )
        return self.cut(loaded, encoder.fingerprint, dimensions, normalize, encoder.dimensions)

    def of_vectors(self, width: int, chain: str, dimensions: int | None) -> Target:
        """The chain and size for vectors of the caller's; the space is that of the chain's encoder.

        Raises:
            WrongShapeError: for vectors of another width than the chain's.
            BadValueError: for a size it does not serve.
            UnknownNameError: for a chain there is not.
            ArtifactError: for a damaged one.
        """
        loaded = self.registry.load(chain)
        if loaded.chain.input_dimensions not in (None, width):
            raise WrongShapeError(
                f"the chain {loaded.ref} takes vectors {loaded.chain.input_dimensions} wide, these are {width}",
                param="vectors",
            )
        return self.cut(loaded, loaded.encoder_fingerprint, dimensions, True, width)

    def cut(
        self, loaded: LoadedChain, fingerprint: str | None, dimensions: int | None, normalize: bool, width: int
    ) -> Target:
        """A chain at a size.

        Raises:
            BadValueError: if it does not serve that size.
        """
        if dimensions is not None and not loaded.chain.serves(dimensions):
            raise BadValueError(
                f"the chain {loaded.ref} serves {loaded.chain.describe_dimensions()} dimensions, not {dimensions}",
                param="dimensions",
            )
        size = dimensions or loaded.chain.output_dimensions or width
        space = space_id(fingerprint, loaded.ref, loaded.digest, size)
        asked = loaded.as_asked(dimensions, normalize)
        return Target(loaded, loaded.fold(dimensions, normalize), asked, size, space)
