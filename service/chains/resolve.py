"""Resolution of a request's chain name and dimensions to a chain, its output dimensions and its space."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.chains.chain_ref import ChainRef
from service.chains.loaded_chain import LoadedChain
from service.chains.names import RAW
from service.chains.registry import Registry
from service.chains.size_routes import SizeRoutes
from service.errors import BadValueError, ConflictError, WrongShapeError
from training.encoder.space import compute_space_id
from training.encoder.spec import HasSpace
from transforms.chain import Chain


@dataclass(frozen=True)
class Target:
    """A chain cut to a number of dimensions, or no chain.

    Attributes:
        loaded: the chain's version; None for raw vectors.
        folded: the chain with its steps multiplied into one; None for raw vectors.
        chain_ref: reference from which a worker process loads the same chain; None for raw vectors.
        dimensions: dimensions of the outputs.
        space_id: id of the space of the outputs.
    """

    loaded: LoadedChain | None
    folded: Chain | None
    chain_ref: ChainRef | None
    dimensions: int
    space_id: str

    @property
    def chain(self) -> str:
        """Reference `name@version` of the chain, or `none`."""
        return self.loaded.ref if self.loaded else RAW

    def apply(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Transform vectors `(n, d)` by the chain to floats `(n, k)`; without a chain, return them unchanged."""
        return vectors if self.folded is None else self.folded.floats(vectors)

    def quantize(self, floats: NDArray[np.float32]) -> NDArray[Any]:
        """Quantize the floats `(n, k)` from `apply` if the chain has a quantizer; otherwise return them unchanged."""
        quantizer = self.folded.quantizer if self.folded else None
        return floats if quantizer is None else quantizer.recode(floats)

    def apply_to_queries(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Transform vectors `(n, d)` by the chain without its quantizer: floats that search what `apply` returns."""
        return vectors if self.folded is None else self.folded.transform_queries(vectors)


class ChainResolver:
    """Resolver of the chain name and dimensions in a request to a `Target`."""

    def __init__(self, registry: Registry, size_routes: SizeRoutes) -> None:
        self.registry = registry
        self.size_routes = size_routes

    def resolve_for_encoder(
        self, encoder: HasSpace, chain: str | None, dimensions: int | None, normalize: bool = True
    ) -> Target:
        """Resolve a chain name and dimensions for an encoder's vectors.

        If `chain` is None, `dimensions` decides: None or the encoder's own select raw vectors, any others the chain of
        their size route.

        Raises:
            BadValueError: if no chain, or not the named one, serves the dimensions.
            ConflictError: if the chain was fitted on another encoder's vectors.
            UnknownNameError: if there is no such chain.
            ArtifactError: if the chain's files are damaged.
        """
        if chain == RAW and dimensions not in (None, encoder.dimensions):
            raise BadValueError(
                f"raw vectors of {encoder.name} have {encoder.dimensions} dimensions, not {dimensions}",
                param="dimensions",
            )
        if chain is not None and chain != RAW:
            loaded = self.registry.load(chain)
        elif dimensions is None or dimensions == encoder.dimensions:
            raw = compute_space_id(encoder.fingerprint, None, None, encoder.dimensions)
            return Target(None, None, None, encoder.dimensions, raw)
        else:
            loaded = self.size_routes.find_chain_for(encoder.fingerprint, dimensions, encoder.dimensions)
        fitted_on, width = loaded.encoder_fingerprint, loaded.chain.input_dimensions
        if fitted_on not in (None, encoder.fingerprint) or width not in (None, encoder.dimensions):
            raise ConflictError(
                f"the chain {loaded.ref} takes vectors of another space (encoder {fitted_on or 'unnamed'}, "
                f"{width} dimensions) than {encoder.name} ({encoder.fingerprint}, {encoder.dimensions} dimensions)",
                param="chain",
                code="space_mismatch",
            )
        return self._build_target(loaded, encoder.fingerprint, dimensions, normalize, encoder.dimensions)

    def resolve_for_vectors(self, width: int, chain: str, dimensions: int | None) -> Target:
        """Resolve a chain name and dimensions for the caller's vectors of `width` dimensions.

        The outputs are in the space of the encoder that the chain was fitted on.

        Raises:
            WrongShapeError: if the chain takes vectors of other dimensions.
            BadValueError: if the chain does not serve the dimensions.
            UnknownNameError: if there is no such chain.
            ArtifactError: if the chain's files are damaged.
        """
        loaded = self.registry.load(chain)
        if loaded.chain.input_dimensions not in (None, width):
            raise WrongShapeError(
                f"the chain {loaded.ref} takes vectors of {loaded.chain.input_dimensions} dimensions, not {width}",
                param="vectors",
            )
        return self._build_target(loaded, loaded.encoder_fingerprint, dimensions, True, width)

    def _build_target(
        self, loaded: LoadedChain, fingerprint: str | None, dimensions: int | None, normalize: bool, width: int
    ) -> Target:
        """Build the target of a loaded chain with the given output dimensions; None selects all.

        Raises:
            BadValueError: if the chain does not serve the dimensions.
        """
        if dimensions is not None and not loaded.chain.serves(dimensions):
            raise BadValueError(
                f"the chain {loaded.ref} serves {loaded.chain.describe_dimensions()} dimensions, not {dimensions}",
                param="dimensions",
            )
        size = dimensions or loaded.chain.output_dimensions or width
        space = compute_space_id(fingerprint, loaded.ref, loaded.digest, size)
        chain_ref = loaded.build_ref(dimensions, normalize)
        return Target(loaded, loaded.fold(dimensions, normalize), chain_ref, size, space)
