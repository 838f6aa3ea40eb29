"""Resolution of requests to create or reindex an index to its complete settings and the files of its chain.

An index has two embedding spaces. Original vectors, of `width` dimensions, come from an encoder or from callers. A
chain of transforms maps them to the vectors that are searched, of `dimensions` dimensions. With the chain `none`
(`RAW`), the original vectors are searched.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from lathe.service.chains.names import RAW
from lathe.service.chains.registry import Registry
from lathe.service.chains.resolve import ChainResolver, Target
from lathe.service.errors import BadValueError, ConflictError
from lathe.service.index.protocol import Artifact, SearchIndex
from lathe.service.index.spec import IndexRequest, IndexSpec, ReindexRequest, require_originals
from lathe.training.encoder.text_encoder import PromptedEncoder, compute_space_id


@dataclass(frozen=True)
class _IndexSpaces:
    """Embedding spaces of an index: of its original vectors, and of the vectors that are searched.

    Attributes:
        encoder: encoder of the original vectors; None if callers send vectors.
        fingerprint: fingerprint of the encoder, or of the encoder that the chain was fitted for; None if unknown.
        width: dimensions of the original vectors.
        target: chain of transforms, cut to the dimensions of the vectors that are searched; no chain for raw vectors.
    """

    encoder: PromptedEncoder | None
    fingerprint: str | None
    width: int
    target: Target

    def describe(self) -> dict[str, Any]:
        """Return the fields of `IndexSpec` that describe the embedding spaces."""
        return {
            "encoder": self.encoder.name if self.encoder else None,
            "encoder_fingerprint": self.fingerprint,
            "width": self.width,
            "raw_space_id": compute_space_id(self.fingerprint, None, None, self.width),
            "chain": self.target.chain,
            "dimensions": self.target.dimensions,
            "space_id": self.target.space_id,
        }


@dataclass(frozen=True)
class SpecResolver:
    """Resolver of requests to create or reindex an index, to complete settings and the files of a chain of transforms.

    Attributes:
        registry: registry of chains.
        resolver: finds the chain and dimensions of a request.
        find_encoder: returns the encoder of a name, or the default encoder for None.
        list_encoders: returns all encoders.
    """

    registry: Registry
    resolver: ChainResolver
    find_encoder: Callable[[str | None], PromptedEncoder]
    list_encoders: Callable[[], Iterable[PromptedEncoder]]

    def resolve_new(self, request: IndexRequest) -> tuple[IndexSpec, Artifact]:
        """Resolve a request for a new index to the settings of the index and the files of its chain of transforms.

        Unknown names, and dimensions that do not fit, raise. The files are the manifest and tensors, or None for raw
        vectors.

        Raises:
            ServiceError: if an encoder or chain is unknown, the chain was fitted on vectors of another encoder, or the
                dimensions do not fit; or if no originals are to be stored, and the chain has no codes.
        """
        encoder = self._find_encoder(request.encoder, request.chain, request.width)
        spaces = self._resolve_spaces(encoder, request.chain, request.dimensions, request.width)
        if request.originals == "none" and spaces.target.quantizer is None:
            raise BadValueError(
                f"originals: none stores only byte codes, and {spaces.target.chain} is not a chain that ends in codes: "
                "fit a chain with `bytes`, or store the originals",
                param="originals",
            )
        spec = IndexSpec(
            **spaces.describe(),
            metric=request.metric,
            m=request.m,
            ef_construction=request.ef_construction,
            text_field=request.text_field,
            originals=request.originals,
        )
        return spec, self._read_artifact(spaces.target)

    def resolve_reindexed(
        self, request: ReindexRequest, index: SearchIndex
    ) -> tuple[IndexSpec, Artifact, PromptedEncoder | None]:
        """Resolve a reindexing to the index's new settings, the files of the chain, and the new encoder.

        The encoder is None if it stays. Settings that the request leaves None are kept, and so is an encoder with the
        same fingerprint, unless `encode` is set. If the request changes neither encoder nor chain nor dimensions, the
        index's own chain files are returned. The settings give the next generation of the index (rows and graph, built
        again) a new, random name. The files are the manifest and tensors, or None for raw vectors.

        Raises:
            ConflictError: if encoder, chain or dimensions would change, and the index stores no originals, or if
                `encode` is set and the index has no encoder.
            ServiceError: if the encoder or chain is unknown, or encoder, chain and dimensions do not fit the index.
        """
        spec = index.spec
        name = request.encoder or (spec.encoder if request.encode else None)
        if request.encode and name is None:
            raise ConflictError("the index has no encoder that encodes its texts again: name one", param="encoder")
        encoder = self.find_encoder(name) if name else None
        if encoder is not None and encoder.fingerprint == spec.encoder_fingerprint and not request.encode:
            encoder = None
        changed = {
            key: value
            for key in ("metric", "m", "ef_construction", "text_field")
            if (value := getattr(request, key)) is not None
        }
        # A random name, so that the folder of an abandoned reindexing is never used by another.
        spec = replace(spec, generation=secrets.token_hex(6), **changed)
        if encoder is None and request.chain is None and request.dimensions is None:
            return spec, index.read_artifact(), None
        chain = request.chain or spec.chain
        # A new encoder decides the dimensions of the original vectors; otherwise the index's stay.
        used_encoder = encoder or self._find_encoder(spec.encoder, chain, spec.width)
        width = None if encoder is not None else spec.width
        spaces = self._resolve_spaces(used_encoder, chain, request.dimensions, width)
        # Searched vectors of another embedding space can only be computed from the originals.
        if spaces.target.space_id != spec.space_id:
            require_originals(spec, "another chain or encoder", "chain" if encoder is None else "encoder")
        moved = encoder is not None and encoder.fingerprint != spec.encoder_fingerprint
        next_vectors = spec.vectors + (encoder is not None)
        spec = replace(spec, **spaces.describe(), vectors=next_vectors, moves=spec.moves + moved)
        return spec, self._read_artifact(spaces.target), encoder

    def _find_encoder(self, name: str | None, chain: str, width: int | None) -> PromptedEncoder | None:
        """Find the encoder of that name, or the encoder that the chain was fitted for, or None if there is none.

        With neither name nor chain, the result is the default encoder, or None if `width` is given.
        """
        if name is not None:
            return self.find_encoder(name)
        if chain == RAW:
            return None if width is not None else self.find_encoder(None)
        fitted_for = self.registry.load(chain).encoder_fingerprint
        if fitted_for is None:
            return None
        return next((encoder for encoder in self.list_encoders() if encoder.fingerprint == fitted_for), None)

    def _resolve_spaces(
        self, encoder: PromptedEncoder | None, chain: str, dimensions: int | None, width: int | None
    ) -> _IndexSpaces:
        """Resolve the embedding spaces of an index of an encoder's vectors through a chain, or of other vectors.

        Settings that do not match raise.

        Args:
            encoder: the encoder; None if there is none or it is unknown.
            chain: name or reference of the chain, or `none`.
            dimensions: dimensions of the vectors that are searched; None for all dimensions of the chain's output.
            width: dimensions of the original vectors; None if they follow from encoder or chain.

        Raises:
            ServiceError: if these do not match, or `width` is needed and None.
        """
        if encoder is not None:
            if width not in (None, encoder.dimensions):
                raise BadValueError(
                    f"vectors of {encoder.name} have {encoder.dimensions} dimensions, not {width}", param="width"
                )
            target = self.resolver.resolve_for_encoder(encoder, chain, dimensions)
            return _IndexSpaces(encoder, encoder.fingerprint, encoder.dimensions, target)
        if chain == RAW:
            if width is None or dimensions not in (None, width):
                raise BadValueError(
                    "raw vectors without an encoder need `width`, and cannot have other `dimensions`", param="width"
                )
            target = Target(None, None, None, width, compute_space_id(None, None, None, width))
            return _IndexSpaces(None, None, width, target)

        loaded = self.registry.load(chain)
        input_dimensions = loaded.chain.input_dimensions or width
        if input_dimensions is None:
            raise BadValueError(
                f"the chain {loaded.ref} takes vectors of any dimensions: set `width` to your vectors' dimensions",
                param="width",
            )
        target = self.resolver.resolve_for_vectors(input_dimensions, chain, dimensions)
        return _IndexSpaces(None, loaded.encoder_fingerprint, input_dimensions, target)

    def _read_artifact(self, target: Target) -> Artifact:
        """Read the manifest and tensors of a target's chain. The result is None for raw vectors."""
        if target.loaded is None:
            return None
        return self.registry.read_files(target.loaded.name, target.loaded.version)
